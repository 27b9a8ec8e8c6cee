"""The journal keeps what was accepted, within bounds, and survives not being writable for a while."""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caboose_daemon.config import Config
from caboose_daemon.store import journal as journal_module
from caboose_daemon.store import retention
from caboose_daemon.store.history import HistoryReader
from support.http import http
from support.processes import DaemonProcess, wait_until
from support.ranks import a_report, simulated_ranks
from support.scenario import INF, NAN, JournaledCore, scenario, watching

Make = Callable[..., JournaledCore]


def steps_in(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    try:
        return [step for (step,) in connection.execute("SELECT step FROM steps ORDER BY attempt, step")]
    finally:
        connection.close()


# Retention


def test_exactly_the_configured_number_of_steps_is_kept(
    journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP_EVERY", 50)

    scenario(ranks=1, core=journaled(max_steps=10)).healthy(100)

    assert steps_in(tmp_path / "journal.sqlite") == list(range(91, 101))


def test_what_is_older_than_the_retention_goes(
    journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP_EVERY", 10)
    story = scenario(ranks=1, core=journaled(retention_days=1.0))
    story.declares("data_switch").nan_loss(0, at=5).healthy(4)
    story.now += 2 * 86_400

    story.healthy(11)

    path = tmp_path / "journal.sqlite"
    assert steps_in(path) == list(range(10, 21))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM episodes").fetchone() == (0,)
    connection.close()


def test_an_open_episode_is_kept_however_old(journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SWEEP_EVERY", 3)
    story = scenario(ranks=1, core=journaled(retention_days=1.0)).nan_loss(0, at=1)
    story.now += 2 * 86_400
    story.healthy(2)

    connection = sqlite3.connect(tmp_path / "journal.sqlite")
    assert connection.execute("SELECT count(*) FROM episodes WHERE is_open").fetchone() == (1,)
    connection.close()


# A journal that cannot be written


def fill_up(core: JournaledCore) -> None:
    """Lets the file grow no further, as a full disk does."""
    core.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (pages,) = core.execute("PRAGMA page_count").fetchone()
    core.execute(f"PRAGMA max_page_count = {pages}")


def make_room(core: JournaledCore) -> None:
    core.execute("PRAGMA max_page_count = 1000000")


def test_a_full_disk_stops_no_watching_and_loses_no_row_once_there_is_room(journaled: Make, tmp_path: Path) -> None:
    core = journaled(config=Config(rules=watching("non_finite", {})))
    story = scenario(ranks=1, core=core).healthy(10)
    fill_up(core)

    story.healthy(500).nan_loss(0, at=511, steps=3)

    assert story.job.num_steps == 513
    assert story.only("non_finite").severity == "critical"
    assert core.state.journal_failures > 0
    assert core.state.journal_error == "database or disk is full"
    assert len(steps_in(tmp_path / "journal.sqlite")) < 513

    make_room(core)
    story.healthy(1)

    assert steps_in(tmp_path / "journal.sqlite") == list(range(1, 515))
    assert core.state.journal_error == ""
    assert core.state.journal_lost == 0


def test_a_full_disk_is_logged_once_and_so_is_its_end(journaled: Make, caplog: pytest.LogCaptureFixture) -> None:
    core = journaled()
    story = scenario(ranks=1, core=core).healthy(10)
    fill_up(core)
    with caplog.at_level(logging.WARNING, logger="caboose.daemon"):
        story.healthy(500)
        make_room(core)
        story.healthy(10)

    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_rows_that_wait_are_bounded_the_oldest_go_and_are_counted(
    journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_WAITING", 20)
    core = journaled(config=Config(rules=watching("non_finite", {})))
    connection = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    core.execute("PRAGMA busy_timeout = 0")
    connection.execute("BEGIN IMMEDIATE")
    story = scenario(ranks=1, core=core).healthy(100)
    connection.execute("ROLLBACK")
    connection.close()
    assert core.state.journal_lost > 0

    story.healthy(1)

    assert core.state.journal_error == "", "the job's own row was not among those given up"
    assert steps_in(tmp_path / "journal.sqlite") == list(range(82, 102))


def test_a_daemon_whose_journal_is_locked_says_so_and_catches_up(daemon: DaemonProcess) -> None:
    path = daemon.data_dir / "journal.sqlite"
    with simulated_ranks(daemon.endpoint, 1) as (rank,):
        rank.send(a_report(1))
        assert wait_until(lambda: steps_in(path) == [1], 10)
        assert daemon.get("/readyz") == {"status": "ready", "problems": []}

        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for step in range(2, 12):
            rank.send(a_report(step))
        assert wait_until(lambda: "503" in _ready_status(daemon), 20)
        assert "the journal cannot be written: database is locked" in daemon.text("/readyz")
        assert daemon.get("/api/v1/jobs/train")["num_steps"] == 11, "watching goes on"
        assert "caboose_journal_failures_total 0.0" not in daemon.text("/metrics")

        other.execute("ROLLBACK")
        other.close()
        assert wait_until(lambda: "200" in _ready_status(daemon), 20)
        assert steps_in(path) == list(range(1, 12))


def _ready_status(daemon: DaemonProcess) -> str:
    return str(http.get(f"{daemon.url}readyz", timeout=10).status_code)


# Curves


@pytest.fixture
def reader(tmp_path: Path, journaled: Make) -> Iterator[HistoryReader]:
    journaled()
    reader = HistoryReader(tmp_path / "journal.sqlite")
    yield reader
    reader.close()


def test_a_curve_in_few_points_keeps_its_extremes(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).healthy(500).losses(50.0).healthy(499)

    rows = reader.series("train", 10)

    assert len(rows) in (10, 11)
    assert sum(int(row["num_steps"] or 0) for row in rows) == 1000
    assert max(row["loss_max"] or 0 for row in rows) == 50.0
    assert rows[-1]["step"] == 1000


def test_a_short_curve_is_given_whole(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).losses(1.0, 2.0, 3.0)

    assert [(row["step"], row["loss"]) for row in reader.series("train", 1000)] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_bad_steps_are_counted_in_their_bucket(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).losses(1.0, NAN, INF, 1.0)

    rows = reader.series("train", 2)

    assert [(row["num_bad"], row["num_steps"]) for row in rows] == [(0, 1), (2, 2), (0, 1)]


def test_an_unknown_job_has_no_curve(reader: HistoryReader) -> None:
    assert reader.series("nobody", 10) == []
