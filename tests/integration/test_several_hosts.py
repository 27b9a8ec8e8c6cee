"""Three hosts with a network between them: training, relay and daemon, while links break and a host is rebooted."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.hosts import Host, hosts, why_not
from support.processes import caboose_command, clean_environment, end, torchrun, wait_until
from support.training import SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")]

STEPS = 200
STEP_SECONDS = 0.1
FORWARDER = """
import asyncio, sys
port, host, to, delay = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
async def pump(reader, writer):
    queue, loop = asyncio.Queue(), asyncio.get_running_loop()
    async def late():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            writer.write(data)
            await writer.drain()
    task = asyncio.create_task(late())
    try:
        while data := await reader.read(65536):
            queue.put_nowait((loop.time() + delay, data))
    except OSError:
        pass
    finally:
        await asyncio.sleep(delay)
        task.cancel()
        writer.close()
async def serve(reader, writer):
    far = await asyncio.open_connection(host, to)
    await asyncio.gather(pump(reader, far[1]), pump(far[0], writer), return_exceptions=True)
async def main():
    async with await asyncio.start_server(serve, "0.0.0.0", port) as server:
        await server.serve_forever()
asyncio.run(main())
"""


class Site:
    """A daemon on the first host, a relay on the second, a training on the third."""

    def __init__(self, made: list[Host], folder: Path) -> None:
        self.daemon_host, self.relay_host, self.training_host = made
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, host: Host, name: str, command: list[str], **env: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                host.command(command), stdout=log, stderr=log, env=clean_environment(**env), cwd=self.folder
            )
        self._processes.append(process)
        return process

    def start_daemon(self) -> None:
        addresses = ("--listen", f"tcp://{self.daemon_host.address}:5757", "--http", "127.0.0.1:9757")
        data = ("--data-dir", str(self.folder / "data"))
        self.start(self.daemon_host, "daemon", caboose_command("daemon", *addresses, *data, "--insecure"))
        assert wait_until(lambda: self._get("/api/v1/jobs") is not None, 20), (self.folder / "daemon.log").read_text()

    def start_relay(self, upstream: str = "") -> None:
        upstream = upstream or f"tcp://{self.daemon_host.address}:5757"
        command = caboose_command("relay", "--listen", "tcp://0.0.0.0:5758", "--upstream", upstream, "--insecure")
        self.start(self.relay_host, "relay", command)

    def start_training(self) -> "subprocess.Popen[bytes]":
        command = torchrun(SCRIPT, str(self.folder), "--steps", str(STEPS), "--step-seconds", str(STEP_SECONDS))
        endpoint = f"tcp://{self.relay_host.address}:5758"
        return self.start(
            self.training_host, "job", command, CABOOSE_ENDPOINT=endpoint, CABOOSE_INSECURE="1", CABOOSE_JOB="train"
        )

    def _get(self, path: str) -> Any:
        def ask() -> Any:
            return httpx.get(f"http://127.0.0.1:9757{path}", timeout=5, trust_env=False).json()

        try:
            return self.daemon_host.inside(ask)
        except httpx.HTTPError:
            return None

    @property
    def step(self) -> int:
        """The last step that the daemon judged."""
        rows = (self._get("/api/v1/jobs") or {}).get("jobs", [])
        return max((int(row["step"]) for row in rows), default=-1)

    def critical(self) -> list[Any]:
        """Incidents that would have paged somebody."""
        found = self._get("/api/v1/jobs/train/incidents")["incidents"]
        return [one for one in found if one["severity"] == "critical"]

    def losses(self) -> list[list[str]]:
        return [json.loads((self.folder / f"rank{rank}.json").read_text())["losses"] for rank in range(2)]

    def close(self) -> None:
        for process in reversed(self._processes):
            end(process)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with hosts(3) as made:
        found = Site(made, tmp_path)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The losses of the same training with the agent switched off."""
    folder = tmp_path_factory.mktemp("plain")
    command = torchrun(SCRIPT, str(folder), "--steps", str(STEPS))
    subprocess.run(command, env=clean_environment(CABOOSE_DISABLED="1"), check=True, timeout=120, capture_output=True)
    return [json.loads((folder / f"rank{rank}.json").read_text())["losses"] for rank in range(2)]


def cut_the_daemon_off(site: Site) -> None:
    site.daemon_host.cut()
    time.sleep(4.0)
    site.daemon_host.heal()


def cut_the_relay_off(site: Site) -> None:
    site.relay_host.cut()
    time.sleep(4.0)
    site.relay_host.heal()


def reboot_the_relay(site: Site) -> None:
    site.relay_host.reboot()
    site.start_relay()


def reboot_the_daemon(site: Site) -> None:
    site.daemon_host.reboot()
    site.start_daemon()


@pytest.mark.parametrize("trouble", [cut_the_daemon_off, cut_the_relay_off, reboot_the_relay, reboot_the_daemon])
def test_training_is_unharmed_and_the_picture_is_right_again_without_a_page(
    site: Site, plain: list[list[str]], trouble: Callable[[Site], None]
) -> None:
    site.start_daemon()
    site.start_relay()
    job = site.start_training()
    assert wait_until(lambda: site.step >= 20, 40), (site.folder / "job.log").read_text()
    trouble(site)
    assert wait_until(lambda: site.step >= 150 or job.poll() is not None, 60)
    assert job.wait(90) == 0, (site.folder / "job.log").read_text()
    assert site.losses() == plain
    assert wait_until(lambda: site.step == STEPS, 15), f"{site.step}: {(site.folder / 'relay.log').read_text()}"
    assert site.critical() == []


def test_a_network_of_100_ms_and_stalls_changes_nothing_but_the_lag(site: Site, plain: list[list[str]]) -> None:
    site.start_daemon()
    program = [sys.executable, "-c", FORWARDER, "6000", site.daemon_host.address, "5757", "0.1"]
    forwarder = site.start(site.relay_host, "forwarder", program)
    site.start_relay("tcp://127.0.0.1:6000")
    job = site.start_training()
    assert wait_until(lambda: site.step >= 20, 40), (site.folder / "job.log").read_text()
    for _ in range(3):  # `ip netns exec` becomes the forwarder, so it is what stops
        forwarder.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        forwarder.send_signal(signal.SIGCONT)
        time.sleep(1.0)
    assert job.wait(90) == 0, (site.folder / "job.log").read_text()
    assert site.losses() == plain
    assert wait_until(lambda: site.step == STEPS, 15)
    assert site.critical() == []
