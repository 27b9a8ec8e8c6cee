"""The retention runs beside the loop, in small transactions, and gives space back."""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from caboose_daemon.store import retention, schema
from caboose_daemon.store.database import Database
from support.processes import wait_until
from support.scenario import JournaledCore, scenario


def fill(core: JournaledCore, steps: int, *, time_: float = 1000.0) -> None:
    """A job with so many steps, written without judging them."""
    core.execute("INSERT OR IGNORE INTO jobs VALUES (1, 'train', 1000.0)")
    with core.journal.database.transaction() as connection:
        connection.executemany(
            "INSERT INTO steps (job, attempt, step, time, num_ranks, bad) VALUES (1, 1, ?, ?, 1, 0)",
            [(step, time_ + step) for step in range(1, steps + 1)],
        )


def num_steps(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM steps").fetchone()[0])


def test_a_sweep_deletes_in_small_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    core = JournaledCore(tmp_path / "journal.sqlite", max_steps=100)
    fill(core, 5000)
    sizes: list[int] = []
    before = {"changes": 0}

    def note(database: Database) -> None:
        changes = database.connection.total_changes
        sizes.append(changes - before["changes"])
        before["changes"] = changes

    core.journal.retention.advance(2000.0)
    monkeypatch.setattr(Database, "before_commit", note)
    core.journal.retention.advance(2000.0 + retention.SWEEP_SECONDS)

    assert num_steps(tmp_path / "journal.sqlite") == 100
    assert max(sizes) <= retention.BATCH
    assert sum(sizes) >= 4900
    core.close()


def test_a_sweep_comes_every_hour_also_over_restarts(tmp_path: Path) -> None:
    core = JournaledCore(tmp_path / "journal.sqlite", max_steps=100)
    fill(core, 200)
    core.journal.retention.advance(1000.0)
    core.journal.retention.advance(1000.0 + retention.SWEEP_SECONDS)
    assert num_steps(core.journal.path) == 100
    core.close()

    core = JournaledCore(tmp_path / "journal.sqlite", max_steps=50)
    core.journal.retention.advance(1000.0 + 1.5 * retention.SWEEP_SECONDS)
    assert num_steps(core.journal.path) == 100, "the last sweep is not an hour ago"
    core.journal.retention.advance(1000.0 + 2 * retention.SWEEP_SECONDS)
    assert num_steps(core.journal.path) == 50
    core.close()


def test_space_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    core = JournaledCore(tmp_path / "journal.sqlite", max_steps=100)
    fill(core, 200_000)
    core.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = (tmp_path / "journal.sqlite").stat().st_size

    core.journal.retention.advance(1000.0)
    core.journal.retention.advance(1000.0 + retention.SWEEP_SECONDS)
    core.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    kept = 2 * retention.BATCH * 4096  # free pages that are used again soon
    assert before > 6_500_000
    assert (tmp_path / "journal.sqlite").stat().st_size < kept + 500_000
    core.close()


def make_without_vacuum(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)


def test_a_small_journal_of_an_earlier_version_is_rewritten_once_so_that_it_can_shrink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    core = JournaledCore(path)
    fill(core, 1000)
    core.journal.close(0.0)
    make_without_vacuum(path)
    monkeypatch.setattr(schema, "MAX_CONVERTED_BYTES", 1000)
    core = JournaledCore(path)
    assert core.journal.database.pragma("auto_vacuum") == 0, "a large one is left as it is"
    core.journal.close(0.0)
    monkeypatch.undo()

    core = JournaledCore(path)
    assert core.journal.database.pragma("auto_vacuum") == schema.INCREMENTAL
    assert num_steps(path) == 1000
    core.close()


def test_the_wal_is_moved_into_the_file_before_it_grows_long(tmp_path: Path) -> None:
    core = JournaledCore(tmp_path / "journal.sqlite")
    wal = tmp_path / "journal.sqlite-wal"
    for number in range(8):
        core.execute("DELETE FROM steps")
        fill(core, 40_000)
        core.journal.retention.advance(1000.0 + 100 * number)
    assert wal.stat().st_size < 5 * retention.MAX_WAL_BYTES
    core.close()


def test_the_thread_thins_samples_and_ends_within_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "EVERY_SECONDS", 0.01)
    core = JournaledCore(tmp_path / "journal.sqlite", max_steps=10)
    fill(core, 100)
    core.journal.retention._num_steps = retention.SWEEP_EVERY
    core.journal.retention.start(lambda: 2000.0)
    assert wait_until(lambda: num_steps(core.journal.path) == 10, 10)
    began = time.monotonic()
    core.journal.retention.stop()
    assert time.monotonic() - began < 2.0
    assert "caboose-retention" not in [thread.name for thread in threading.enumerate()]
    core.close()


def test_the_loop_commits_while_a_sweep_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = JournaledCore(tmp_path / "journal.sqlite", max_steps=10)
    fill(core, 50_000)
    story = scenario(ranks=1, core=core, job="other").healthy(1)
    monkeypatch.setattr(retention, "EVERY_SECONDS", 0.001)
    core.commit = core.journal.commit  # type: ignore[method-assign, assignment]  # without the retention of tests
    core.journal.retention._num_steps = retention.SWEEP_EVERY
    core.journal.retention.start(lambda: story.now)
    num = 0
    while num_steps(core.journal.path) > 1000:
        story.healthy(1)
        num += 1
        assert core.state.journal_error == ""
    assert num > 10
    core.journal.retention.stop()
    core.close()


def test_a_job_that_is_over_goes_with_all_its_rows(tmp_path: Path) -> None:
    core = JournaledCore(tmp_path / "journal.sqlite", retention_days=1.0)
    story = scenario(ranks=1, core=core).declares("data_switch").nan_loss(0, at=5).leaves(0)
    story.wait(2.0)
    now = story.now + 10 * 86_400

    core.journal.retention.advance(now)
    core.journal.retention.advance(now + retention.SWEEP_SECONDS)

    for table in ("jobs", "attempts", "members", "steps", "events", "episodes", "incidents", "totals"):
        assert core.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    core.journal.event_declared(story.job, next(iter(story.job.events)))
    assert core.journal.commit(now), "a job that comes back is written again"
    core.close()
