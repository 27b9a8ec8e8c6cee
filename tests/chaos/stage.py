"""Everything that takes part in an episode: the daemon, the network, the run under torchrun, and a client that writes.

Design
------
The episode's script runs on the main thread and changes these parts one after the other. Threads only move bytes
(`proxy`), write over HTTP (`writer`), read what the ranks wrote (`ranks`), or repeat an attack. Every process is ended
with the stage, also on Ctrl-C: torchrun puts each rank into a session of its own, so ranks are ended by their ids.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from chaos.daemon import Supervised
from chaos.launcher import Launched, Launcher
from chaos.plan import Episode
from chaos.proxy import Proxy, network
from chaos.ranks import Life, Ranks
from chaos.writer import Writer
from support.processes import clean_environment, torchrun

JOB = "chaos"
SCRIPT = Path(__file__).with_name("job.py")
STEP_SECONDS = 0.04
SNAPSHOTS = {"every": 8, "keep": 8}
"""A target must still be held when the boundary comes, some 40 steps after the request."""
MAX_STEPS = 1500
REPEAT_SECONDS = 0.03


class Stage:
    """One episode's processes."""

    def __init__(self, episode: Episode, directory: Path, proxy: Proxy, launcher: Launcher | None) -> None:
        self.episode = episode
        self.directory = directory
        self.proxy = proxy
        self._launcher = launcher
        self.draw = random.Random(f"stage:{episode.seed}:{episode.number}")
        self.out = directory / "run"
        self.out.mkdir(parents=True)
        self.starved = self.out / "starved"
        self.rank_clock = directory / "rank-clock"
        self._env = {"XDG_STATE_HOME": str(directory / "state")}
        self.daemon = Supervised(
            directory / "daemon",
            proxy,
            self._env,
            has_clock=episode.fault == "daemon_clock",
            has_disk=episode.fault == "daemon_disk",
        )
        self.ranks = Ranks(self.out)
        self.writer = Writer(self.daemon, JOB)
        self.job: subprocess.Popen[bytes] | Launched | None = None
        self.left: list[int] = []
        """Processes of the run that torchrun left behind."""

    def start_job(self, **env: str) -> None:
        """torchrun with both ranks."""
        episode = self.episode
        settings: dict[str, Any] = {
            "sharding": episode.sharding,
            "seed": episode.seed,
            "mode": episode.mode,
            "bad_batch": episode.bad_batch,
            "step_seconds": STEP_SECONDS,
            "snapshots": SNAPSHOTS,
            "max_steps": MAX_STEPS,
            "victim": episode.victim,
            "clock": str(self.rank_clock),
            "closes": episode.closes,
            "exit_code": episode.exit_code,
        }
        if episode.fault == "rank_threads" and episode.mode == "advise":
            self.starved.touch()  # from attach on; `auto` refuses to attach then
        (self.out / "settings.json").write_text(json.dumps(settings))
        command = torchrun(SCRIPT, str(self.out / "settings.json"))
        if episode.fault == "rank_killed":
            command[3:3] = ["--max-restarts", "1"]
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = (
                "1"  # shared, restarted gloo ranks find their dead peers' addresses
            )
        given = {**self._env, "CABOOSE_ENDPOINT": self.proxy.endpoint, "CABOOSE_JOB": JOB, **env}
        path = self.directory / "job.log"
        if self._launcher is not None and not episode.is_cold:
            self.job = self._launcher.start(command[3:], clean_environment(**given), path)
            return
        with path.open("wb") as log:
            self.job = subprocess.Popen(
                command, stdout=log, stderr=log, env=clean_environment(**given), start_new_session=True
            )

    # What faults use

    @property
    def victim(self) -> Life:
        """The life of the rank that is hit."""
        return next(life for life in self.ranks.newest if life.rank == self.episode.victim)

    def kill_rank(self) -> int:
        """SIGKILL for one rank, unless torchrun has no restart left; returns the number of the restart that follows."""
        victim = self.victim
        if victim.restart == 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
        return 1

    @contextlib.contextmanager
    def repeated(self, act: Callable[[], None]) -> Iterator[None]:
        """Does something again and again, beside the block."""
        ending = threading.Event()

        def run() -> None:
            while not ending.wait(REPEAT_SECONDS):
                act()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join(10)

    # What the script uses

    def wait_until(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Whether it came true in time; gives up when the run is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.is_running():
            if condition():
                return True
            time.sleep(0.01)
        return bool(condition())

    def is_running(self) -> bool:
        return self.job is not None and self.job.poll() is None

    def let_end(self) -> None:
        """The run ends at one of its next steps."""
        (self.out / "stop").touch()

    def wait_for_exit(self, seconds: float) -> int | None:
        """torchrun's exit code; None if it did not end."""
        assert self.job is not None
        try:
            code = self.job.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self.ranks.read()
        return code

    def close(self) -> list[int]:
        """Ends everything; returns the ids of processes of the run that torchrun had left behind."""
        self.writer.close()
        left = [life.pid for life in self.ranks.lives if life.exited is None and life.pid and _is_alive(life.pid)]
        was_over = not self.is_running()
        if self.job is not None:
            _end_tree(self.job)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.ranks.close()
        self.daemon.close()
        return left if was_over else []


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end_tree(process: "subprocess.Popen[bytes] | Launched") -> None:
    """A process and all that it started."""
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = []
    if process.poll() is None:
        process.kill()
    for child in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait(10)


@contextlib.contextmanager
def staged(episode: Episode, directory: Path, launcher: Launcher | None) -> Iterator[Stage]:
    """A stage whose daemon runs and whose run has been started; all ended with the block."""
    with network(episode.seed) as proxy:
        stage = Stage(episode, directory, proxy, launcher)
        try:
            if episode.is_cold:  # its ranks need longer than the daemon
                stage.start_job()
            stage.daemon.start()
            if not episode.is_cold:
                stage.start_job()
            stage.writer.start()
            yield stage
        finally:
            stage.left = stage.close()
