"""The daemon of an episode: started, killed and started again at the same addresses, as a service manager would."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from chaos import clock
from chaos.proxy import Proxy
from support.processes import DaemonProcess, caboose_command, end, running_daemon

DISK_BYTES = 4 * 2**20
CONFIG = """
[rollback]
mode = "auto"
budget = 20
cooldown_steps = 5
margin_steps = 3
patience_steps = 3
spike_steps = 0
"""


class Supervised:
    """A daemon that may be gone at any moment."""

    def __init__(self, directory: Path, proxy: Proxy, env: dict[str, str], *, has_clock: bool, has_disk: bool) -> None:
        self.directory = directory
        self.clock = directory / "clock"
        self.num_starts = 0
        self.deaths: list[str] = []
        """Ends that nobody asked for."""
        self._proxy = proxy
        self._env = env
        self._has_clock = has_clock
        self._lives = contextlib.ExitStack()
        self._disk = contextlib.ExitStack()
        self._process: DaemonProcess | None = None
        self._listen, self._http = "tcp://127.0.0.1:0", "127.0.0.1:0"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "caboose.toml").write_text(CONFIG)
        self.is_mounted = has_disk and self._mount()

    def start(self) -> None:
        """Starts it, if it does not run, and waits until it is ready."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "chaos.clocked_daemon", str(self.clock)] if self._has_clock else None
        process = self._lives.enter_context(
            running_daemon(
                self.directory,
                "--config",
                "caboose.toml",
                listen=self._listen,
                http=self._http,
                env=self._env,
                command=command or caboose_command(),
            )
        )
        self._listen, self._http = process.endpoint, process.url.removeprefix("http://").rstrip("/")
        self._process = process
        self._proxy.target = process.endpoint
        self.num_starts += 1

    @property
    def process(self) -> DaemonProcess:
        assert self._process is not None, "the daemon does not run"
        return self._process

    @property
    def known(self) -> DaemonProcess | None:
        """The running daemon, for threads that take what they find."""
        return self._process

    @property
    def pid(self) -> int:
        return self.process.process.pid

    def kill(self) -> None:
        """SIGKILL."""
        self.note_death()
        if self._process is not None:
            self._process.process.kill()
        self._gone()

    def end(self) -> None:
        """SIGTERM."""
        self.note_death()
        if self._process is not None:
            end(self._process.process, patience=15)
        self._gone()

    def note_death(self) -> None:
        """Notes whether it has ended by itself."""
        if self._process is not None and (code := self._process.process.poll()) is not None:
            self.deaths.append(f"exit code {code}")
            self._gone()

    def keep_up(self) -> None:
        """Starts it again if it has ended by itself."""
        self.note_death()
        self.start()

    def _gone(self) -> None:
        if self._process is not None:
            self._process.process.wait(10)
        self._process = None
        self._lives.close()

    @contextlib.contextmanager
    def limited(self, what: int, soft: int) -> Iterator[None]:
        """A lower soft limit of a resource, for a while."""
        process = self.process.process
        with limited(process.pid, what, soft):
            yield

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        process = self.process.process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def move_clock(self, seconds: float) -> None:
        clock.move(self.clock, seconds)

    def _mount(self) -> bool:
        """A disk of its own for the data, small enough to be filled; needs the right to mount."""
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(data)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        self._disk.callback(subprocess.run, ["umount", "--lazy", str(data)], check=True)
        return True

    def close(self) -> None:
        """Ends it, and gives the disk back."""
        try:
            self._lives.close()
        finally:
            self._disk.close()


@contextlib.contextmanager
def limited(pid: int, what: int, soft: int) -> Iterator[None]:
    """A lower soft limit of a resource of a running process; nothing if the process is gone."""
    try:
        before, hard = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (soft, hard))
    except ProcessLookupError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, (before, hard))


def num_descriptors(pid: int) -> int:
    """One more than the highest descriptor in use: the limit at which no other can be opened."""
    return max((int(name) for name in os.listdir(f"/proc/{pid}/fd")), default=0) + 1


def address_space(pid: int) -> int:
    """Bytes of address space in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
