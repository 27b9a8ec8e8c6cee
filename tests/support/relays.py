"""Real relays for tests: processes, in trees of any depth."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.processes import READY_SECONDS, caboose_command, clean_environment, end, wait_until


@dataclass
class RelayProcess:
    """A running `caboose relay`."""

    process: "subprocess.Popen[str]"
    endpoint: str
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self, number: int) -> int:
        """Asks it to end and returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(10)


@contextlib.contextmanager
def running_relay(
    directory: Path,
    upstream: str,
    *arguments: str,
    listen: str = "tcp://127.0.0.1:0",
    env: Mapping[str, str] | None = None,
) -> Iterator[RelayProcess]:
    """A relay process that is ready when the block begins and gone when it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    ready, log = directory / "ready.json", directory / "relay.log"
    ready.unlink(missing_ok=True)
    command = [*caboose_command(), "relay", "--listen", listen, "--upstream", upstream]
    command += ["--ready-file", str(ready), "--name", directory.name, *arguments]
    with log.open("a") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, text=True, env=clean_environment(**(env or {})), cwd=directory
        )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, READY_SECONDS)
        if not ready.exists():
            raise AssertionError(f"the relay did not start:\n{log.read_text()}")
        yield RelayProcess(process, json.loads(ready.read_text())["endpoints"][0], log)
    finally:
        end(process)


@contextlib.contextmanager
def relay_tree(directory: Path, upstream: str, widths: Sequence[int], *arguments: str) -> Iterator[list[RelayProcess]]:
    """Trees of relays, `widths[0]` at the top and `widths[1]` below each; gives those at the bottom."""
    with contextlib.ExitStack() as stack:
        above = [upstream]
        relays: list[RelayProcess] = []
        for depth, width in enumerate(widths):
            places = [(one, number) for one in range(len(above)) for number in range(width)]
            relays = [
                stack.enter_context(running_relay(directory / f"{depth}-{one}-{number}", above[one], *arguments))
                for one, number in places
            ]
            above = [relay.endpoint for relay in relays]
        yield relays
