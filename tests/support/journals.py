"""Journals as a daemon leaves them, and daemons that are started on them in this process, without a thread."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from caboose_daemon.app.app import Daemon
from caboose_daemon.config import Config, DaemonConfig, JournalConfig
from caboose_daemon.rollback.requests import ManualRequest
from caboose_daemon.store.marker import Marker
from caboose_wire import Event
from support.scenario import JournaledCore, scenario

FILES = ("journal.sqlite", "journal.sqlite-wal", "journal.state")
NUM_STEPS = 60


def write_journal(directory: Path, *, is_killed: bool = False) -> Path:
    """A data directory with a job that has rows in every table; `is_killed`: with the -wal of a daemon that was."""
    work = directory / "work"
    work.mkdir(parents=True)
    core = JournaledCore(work / "journal.sqlite")
    story = scenario(ranks=2, core=core).sampled(3).healthy(10).nan_loss(0, at=20, steps=3)
    saved = {"path": "/checkpoints/20", "step": 20, "world": 2, "num_bytes": 1000}
    story.says(0, Event(attempt=0, step=20, time=story.now, kind="checkpoint", fields=saved)).declares("data_switch")
    story.healthy(NUM_STEPS - story.step)
    core.pipeline.review(story.job)
    assert core.requests.ask(story.job, ManualRequest(by="me"), story.now).state == "refused"
    core.commit(story.now)
    data = directory / "data"
    data.mkdir()
    if not is_killed:
        core.journal.close(story.now)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(work / name, data / name)
    core.close()
    assert (data / "journal.sqlite-wal").exists() == is_killed
    assert Marker(data / "journal.sqlite").state == ("open" if is_killed else "closed")
    return data


@contextlib.contextmanager
def started_on(data: Path, *, is_strict: bool = False) -> Iterator[Daemon]:
    """A daemon that has opened the journal of a data directory, and has not begun to receive."""
    addresses = DaemonConfig(listen="tcp://127.0.0.1:0", http="127.0.0.1:0", data_dir=str(data))
    daemon = Daemon(Config(daemon=addresses, journal=JournalConfig(strict=is_strict)))
    try:
        yield daemon
    finally:
        daemon.close()
