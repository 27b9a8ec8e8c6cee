"""Starts runs from a process that has torch imported already: the ranks begin within a second instead of several.

Design
------
The warm process reads one request per line, and forks for each. The fork is what `torchrun` is after its imports: it
parses the same arguments and calls the same `elastic_launch`, with a function instead of a command, so that the ranks
are forked too. Each fork has an environment, a session and a log of its own, and writes its exit code to a file. The
runner watches it by a pidfd. The warm process never computes anything with torch: no thread is lost in a fork.

What this does not show is the end of an interpreter: a forked rank runs its exit functions and leaves. So some episodes
are started by the command itself (`plan.Episode.is_cold`).
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.processes import clean_environment, end

NO_CODE = -signal.SIGKILL


class Launched:
    """A run that the warm process has forked, with the methods of `Popen` that a stage needs."""

    def __init__(self, pid: int, code_file: Path) -> None:
        self.pid = pid
        self._code_file = code_file
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None

    def poll(self) -> int | None:
        if self._pidfd is not None and not _is_readable(self._pidfd, 0.0):
            return None
        return self._code()

    def wait(self, timeout: float) -> int:
        if self._pidfd is not None and not _is_readable(self._pidfd, timeout):
            raise subprocess.TimeoutExpired("torchrun", timeout)
        return self._code()

    def kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _code(self) -> int:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        try:
            return int(self._code_file.read_text())
        except (OSError, ValueError):
            return NO_CODE


def _is_readable(descriptor: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


class Launcher:
    """The warm process, from the runner's side."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def start(self, arguments: list[str], env: dict[str, str], log: Path) -> Launched:
        """Forks a run; `arguments` are torchrun's, the script and its argument last."""
        code_file = log.with_suffix(".code")
        request = {"arguments": arguments, "env": env, "log": str(log), "code": str(code_file)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts the runs has ended")
        return Launched(int(line), code_file)


@contextlib.contextmanager
def launcher(directory: Path) -> Iterator[Launcher]:
    """The warm process; ended with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "launcher.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "chaos.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=clean_environment(),
            start_new_session=True,
        )
    try:
        yield Launcher(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        end(process)
        process.stdout.close()


# The warm process


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(request["log"], "ab") as log, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.clear()
        os.environ.update(request["env"])
        code = _launch(request["arguments"])
        Path(request["code"]).write_text(str(code))
    finally:
        os._exit(code)


def _launch(arguments: list[str]) -> int:
    """torchrun's own way, with a function for the ranks."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from chaos import job

    config, _, command = run.config_from_args(run.parse_args(arguments))
    config.start_method = "fork"
    try:
        elastic_launch(config, job.warm_main)(command[-1])
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def main() -> None:
    """Imports what the ranks need, and forks on request until its input ends."""
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.run  # noqa: F401 - imported for the forks

    import chaos.job  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks need no waiting for
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        sys.stdout.write(f"{_fork(json.loads(line))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
