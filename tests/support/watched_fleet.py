"""The fleet of `support.fleet`, played once under a real daemon that Prometheus and VictoriaMetrics scrape."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.fleet import BIG, FOUR, REAL, play, real_job, real_ranks
from support.processes import DaemonProcess, running_daemon, wait_until
from support.prometheus import Store, running_prometheus, running_victoria

JOB_SECONDS = 400.0
"""How long a real job may take to start and train on a busy machine."""


REMOTE = "written on"
"""The VictoriaMetrics that Prometheus writes to."""


@dataclass(frozen=True)
class WatchedFleet:
    """What was recorded, by whom, and when."""

    stores: dict[str, Store]
    daemon: DaemonProcess
    start: float
    stop: float

    @property
    def prometheus(self) -> Store:
        return self.stores["prometheus"]


@contextlib.contextmanager
def watched_fleet(
    directory: Path, *, seconds: float, steps: int, with_victoria: bool = True, is_written_on: bool = False
) -> Iterator[WatchedFleet]:
    """Plays the story for `seconds` beside a real job of `steps`, and leaves the stores up to be asked.

    `is_written_on`: Prometheus writes what it scrapes to a further VictoriaMetrics.
    """
    with contextlib.ExitStack() as stack:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "caboose.toml").write_text(f"[export]\ntensorboard_dir = '{directory / 'tensorboard'}'\n")
        daemon = stack.enter_context(running_daemon(directory / "daemon", "--config", str(directory / "caboose.toml")))
        target = daemon.url.removeprefix("http://").rstrip("/")
        remote = stack.enter_context(running_victoria(directory / "remote")) if is_written_on else None
        written = "" if remote is None else remote.url
        prometheus = running_prometheus(directory / "prometheus", target, remote=written)
        stores = {"prometheus": stack.enter_context(prometheus)}
        if remote is not None:
            stores[REMOTE] = remote
        if with_victoria:
            stores["victoria-metrics"] = stack.enter_context(running_victoria(directory / "victoria", target))
        start = time.time()
        with real_job(daemon, directory / "job", steps=steps, step_seconds=0.9 * seconds / steps) as job:
            # The real job takes a while to start: the simulated ones begin with its first step, so that they are seen
            # side by side.
            wait_until(lambda: job.poll() is not None or _has_begun(daemon), JOB_SECONDS, every=0.2)
            start = time.time()
            deadline = time.monotonic() + JOB_SECONDS
            play(daemon, seconds, lambda: job.poll() is not None or time.monotonic() > deadline)
            code = job.wait(1)
            assert code == 0, (directory / "job" / "job.log").read_text()[-3000:]
        for store in stores.values():
            assert wait_until(lambda: _has_all(store, daemon), 60, every=0.5), store.name  # noqa: B023
        yield WatchedFleet(stores, daemon, start, time.time())


@contextlib.contextmanager
def watched_ranks(directory: Path, *, seconds: float, steps: int) -> Iterator[WatchedFleet]:
    """The real job of four ranks for `seconds`; its last steps are still to come, so that all ranks are live."""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(directory / "daemon"))
        target = daemon.url.removeprefix("http://").rstrip("/")
        store = stack.enter_context(running_prometheus(directory / "prometheus", target))
        job = stack.enter_context(real_ranks(daemon, directory / "job", steps=steps, step_seconds=seconds / steps))
        assert wait_until(lambda: _has_begun(daemon, FOUR), JOB_SECONDS, every=0.2)
        start = time.time()
        assert wait_until(lambda: job.poll() is not None or _step(daemon, FOUR) >= 0.97 * steps, JOB_SECONDS, every=0.5)
        assert job.poll() is None, (directory / "job" / "job.log").read_text()[-3000:]
        yield WatchedFleet({"prometheus": store}, daemon, start, time.time())


def _has_begun(daemon: DaemonProcess, job: str = REAL) -> bool:
    return bool(_step(daemon, job))


def _step(daemon: DaemonProcess, name: str) -> int:
    return int(next((job["step"] for job in daemon.get("/api/v1/jobs")["jobs"] if job["job"] == name), 0))


def _has_all(store: Store, daemon: DaemonProcess) -> bool:
    """Whether the last steps have been scraped."""
    found = {s["metric"]["training_job"]: float(s["value"][1]) for s in store.now("caboose_job_step")}
    return all(found.get(job) == daemon.get(f"/api/v1/jobs/{job}")["step"] for job in (BIG, REAL))
