"""A damaged journal is kept aside, a fresh one is begun, and one line says so; a newer one is left alone."""

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from caboose_daemon.app.app import Daemon, StartError
from caboose_daemon.config import Config, DaemonConfig
from caboose_daemon.store import opening
from caboose_daemon.store.schema import SCHEMA_VERSION
from support.journals import NUM_STEPS, started_on, write_journal
from support.processes import running_daemon
from support.scenario import JournaledCore

Damage = Callable[[Path], None]
PAGE = 4096


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "stopped": write_journal(tmp_path_factory.mktemp("stopped")),
        "killed": write_journal(tmp_path_factory.mktemp("killed"), is_killed=True),
    }


@pytest.fixture
def stopped(originals: dict[str, Path], tmp_path: Path) -> Path:
    """The data directory of a daemon that ended as it should."""
    return Path(shutil.copytree(originals["stopped"], tmp_path / "stopped"))


@pytest.fixture
def killed(originals: dict[str, Path], tmp_path: Path) -> Path:
    """The data directory of a daemon that was killed: its rows are in the -wal."""
    return Path(shutil.copytree(originals["killed"], tmp_path / "killed"))


def flip(path: Path, *places: int) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 0xFF
    path.write_bytes(content)


def root_page(data: Path, table: str) -> int:
    with closing(sqlite3.connect(data / "journal.sqlite")) as connection:
        return int(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0])


def flipped_magic(data: Path) -> None:
    flip(data / "journal.sqlite", 3)


def flipped_page_size(data: Path) -> None:
    flip(data / "journal.sqlite", 16)


def flipped_schema(data: Path) -> None:
    flip(data / "journal.sqlite", 100)


def flipped_name(data: Path) -> None:
    """The first letter of a table's name: SQLite's message has it, and is then not UTF-8."""
    path = data / "journal.sqlite"
    flip(path, path.read_bytes().index(b"tablesteps") + len("table"))


def flipped_page(data: Path) -> None:
    flip(data / "journal.sqlite", PAGE * (root_page(data, "steps") - 1))


def flipped_pages(data: Path) -> None:
    """The header of every page but the first."""
    size = (data / "journal.sqlite").stat().st_size
    flip(data / "journal.sqlite", *range(PAGE, size, PAGE))


def truncated(data: Path) -> None:
    os.truncate(data / "journal.sqlite", (data / "journal.sqlite").stat().st_size // 2 + 100)


def emptied(data: Path) -> None:
    os.truncate(data / "journal.sqlite", 0)


def text(data: Path) -> None:
    (data / "journal.sqlite").write_text("a shopping list\n" * 1000)


def directory(data: Path) -> None:
    (data / "journal.sqlite").unlink()
    (data / "journal.sqlite").mkdir()
    (data / "journal.sqlite" / "note").write_text("somebody's")


def foreign(data: Path) -> None:
    (data / "journal.sqlite").unlink()
    with closing(sqlite3.connect(data / "journal.sqlite")) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")


DAMAGES = (
    *(flipped_magic, flipped_page_size, flipped_schema, flipped_name, flipped_page, flipped_pages),
    *(truncated, emptied, text, directory, foreign),
)


def set_aside(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir() if ".damaged-" in path.name)


def content_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else (path / "note").read_bytes()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_a_damaged_journal_is_kept_aside_and_a_fresh_one_is_begun(
    damage: Damage, stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(stopped)
    before = content_of(stopped / "journal.sqlite")

    with caplog.at_level(logging.ERROR, logger="caboose.daemon"), started_on(stopped) as daemon:
        (kept,) = [name for name in set_aside(stopped) if not name.endswith(("-wal", "-shm"))]
        (record,) = (record for record in caplog.records if "damaged" in record.getMessage())
        assert kept in record.getMessage()
        assert record.exc_info is None
        assert daemon.state.journal_set_aside == kept
        assert content_of(stopped / kept) == before
        assert daemon._context.problems() == []
        assert daemon._journal.commit(0.0)
    with started_on(stopped) as daemon:
        assert daemon.state.journal_set_aside == "", "the fresh one is sound"
        assert len([name for name in set_aside(stopped) if not name.endswith(("-wal", "-shm"))]) == 1


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_with_strict_journal_it_is_one_line_and_stays_where_it_is(damage: Damage, stopped: Path) -> None:
    damage(stopped)
    before = content_of(stopped / "journal.sqlite")

    with pytest.raises(StartError) as refused, started_on(stopped, is_strict=True):
        pass

    assert str(refused.value).startswith(f"{stopped / 'journal.sqlite'}: ")
    assert "\n" not in str(refused.value)
    assert "without --strict-journal" in str(refused.value)
    assert set_aside(stopped) == []
    assert content_of(stopped / "journal.sqlite") == before


def test_what_can_be_read_of_a_damaged_journal_is_taken_over(stopped: Path) -> None:
    flipped_page(stopped)

    with started_on(stopped) as daemon:
        job = daemon.state.jobs["train"]
        assert (job.num_attempts, job.num_steps, len(job.layers)) == (1, NUM_STEPS, 4)
        assert list(job.incidents)
        assert list(job.rollback.decisions)
        assert [entry.name for entry in job.rollback.ledger] == ["/checkpoints/20"]


def test_the_rows_before_and_after_a_bad_page_are_taken_over(tmp_path: Path) -> None:
    core = JournaledCore(tmp_path / "journal.sqlite")
    core.execute("INSERT INTO jobs VALUES (1, 'train', 1.0)")
    with core.journal.database.transaction():
        for number in range(1, 1001):
            core.execute(f"INSERT INTO decisions VALUES (1, {number}, 1.0, 'x', zeroblob(200))")
    core.journal.close(0.0)
    pages = (tmp_path / "journal.sqlite").stat().st_size // PAGE
    flip(tmp_path / "journal.sqlite", PAGE * (pages // 2))

    with started_on(tmp_path):
        pass

    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        numbers = [number for (number,) in connection.execute("SELECT number FROM decisions ORDER BY number")]
    assert (numbers[0], numbers[-1]) == (1, 1000)
    assert 900 < len(numbers) < 1000


# The -wal


@pytest.mark.parametrize(
    ("directory", "mode", "is_warned"), [(0o755, 0o644, True), (0o755, 0o600, False), (0o700, 0o644, False)]
)
def test_a_journal_that_all_may_read_is_logged_with_the_fix(
    directory: int, mode: int, is_warned: bool, stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.chmod(directory)
    journal = stopped / "journal.sqlite"
    journal.chmod(mode)
    with caplog.at_level(logging.WARNING, logger="caboose.daemon"), started_on(stopped):
        pass
    assert [record.getMessage() for record in caplog.records if "chmod" in record.getMessage()] == (
        [f"{journal} can be read by all users (mode 644): run `chmod 600 {journal}*`"] if is_warned else []
    )


def test_an_intact_wal_is_nothing_to_report(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), started_on(killed, is_strict=True) as daemon:
        assert daemon.state.jobs["train"].num_steps == NUM_STEPS
        assert set_aside(killed) == []
    assert caplog.records == []


def test_a_wal_that_was_removed_is_noticed(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    (killed / "journal.sqlite-wal").unlink()
    with pytest.raises(StartError, match=r"journal\.sqlite-wal is missing"), started_on(killed, is_strict=True):
        pass

    with caplog.at_level(logging.ERROR), started_on(killed):
        pass
    assert ["journal.sqlite-wal is missing" in record.getMessage() for record in caplog.records] == [True]
    caplog.clear()
    with caplog.at_level(logging.ERROR), started_on(killed):
        assert caplog.records == [], "after a clean end there is none to miss"


def test_a_start_that_is_refused_later_leaves_a_journal_that_was_closed(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartError, match="nowhere"):
        Daemon(Config(daemon=DaemonConfig(data_dir=str(stopped), keys="nowhere")))
    with caplog.at_level(logging.ERROR), started_on(stopped):
        assert caplog.records == []


@pytest.mark.parametrize("place", [5, 21, 40, 32 + 24 + PAGE + 500], ids=["magic", "salt", "frame 1", "frame 2"])
def test_a_damaged_wal_is_noticed_and_kept_aside(place: int, killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    wal = killed / "journal.sqlite-wal"
    flip(wal, place)
    before = wal.read_bytes()
    with pytest.raises(StartError, match=r"journal\.sqlite-wal is damaged"), started_on(killed, is_strict=True):
        pass
    assert wal.read_bytes() == before

    with caplog.at_level(logging.ERROR), started_on(killed):
        assert "journal.sqlite-wal is damaged" in caplog.records[0].getMessage()
        copies = [path for path in killed.iterdir() if ".damaged-" in path.name]
        assert before in [path.read_bytes() for path in copies], "what was lost can still be looked at"


@pytest.mark.parametrize("cut", [1, 24, PAGE, PAGE + 24, 10 * PAGE])
def test_a_wal_whose_end_was_never_written_is_none_that_is_damaged(cut: int, killed: Path) -> None:
    wal = killed / "journal.sqlite-wal"
    os.truncate(wal, wal.stat().st_size - cut)

    with started_on(killed, is_strict=True):
        pass


def test_frames_of_an_earlier_round_are_no_damage(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    core = JournaledCore(tmp_path / "a" / "journal.sqlite")
    for number in range(200):
        core.execute(f"INSERT INTO jobs VALUES ({number}, 'job-{number}', 1.0)")
    core.execute("PRAGMA wal_checkpoint(RESTART)")
    core.execute("DELETE FROM jobs WHERE id = 1")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    core.close()

    with started_on(tmp_path / "b", is_strict=True):
        pass


def test_the_wal_of_a_journal_that_was_removed_is_not_that_of_the_fresh_one(killed: Path) -> None:
    (killed / "journal.sqlite").unlink()

    with started_on(killed) as daemon:
        assert daemon.state.jobs == {}
    assert set_aside(killed) != []


# Versions


def test_a_journal_of_a_later_version_is_left_alone_byte_for_byte(killed: Path, stopped: Path) -> None:
    later = str(int(SCHEMA_VERSION) + 93)
    for original, is_open in ((stopped, False), (killed, True)):
        data = original
        connection = sqlite3.connect(data / "journal.sqlite", isolation_level=None)
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("DROP TABLE quarantine")
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (later,))
        if is_open:  # as it is when that version was killed
            copy = Path(shutil.copytree(data, data.with_name("copy")))
            (copy / "journal.sqlite-shm").unlink()
            data = copy
        connection.close()
        names = sorted(path.name for path in data.iterdir() if path.name != "lock")
        before = {name: (data / name).read_bytes() for name in names}
        for is_strict in (False, True):
            with (
                pytest.raises(StartError, match=f"schema {later}, this one reads {SCHEMA_VERSION}") as refused,
                started_on(data, is_strict=is_strict),
            ):
                pass
            assert "\n" not in str(refused.value)
        after = {path.name: path.read_bytes() for path in data.iterdir() if path.name != "lock"}
        assert after == before


# Large files


def test_a_file_that_takes_too_long_is_checked_beside_the_running_daemon(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flip(stopped / "journal.sqlite", PAGE * (root_page(stopped, "samples") - 1))
    monkeypatch.setattr(opening, "CHECK_SECONDS", -1.0)
    monkeypatch.setattr(opening, "PROGRESS_STEPS", 1)

    with started_on(stopped) as daemon:
        assert daemon.state.journal_set_aside == ""
        assert not daemon._inspected.is_checked
        daemon._journal.retention._check_pages()
        assert daemon.state.journal_damage
        (problem,) = daemon._context.problems()
    assert problem.startswith("the journal is damaged: ")


@pytest.mark.slow
def test_a_daemon_starts_on_a_damaged_journal_and_shows_where_it_is(stopped: Path) -> None:
    directory = stopped.parent / "daemon"
    directory.mkdir()
    flipped_pages(stopped)
    stopped.rename(directory / "data")
    with running_daemon(directory) as daemon:
        (kept,) = [name for name in set_aside(directory / "data") if not name.endswith(("-wal", "-shm"))]
        assert daemon.get("/api/v1/daemon")["journal"]["set_aside"] == kept
        assert "Traceback" not in daemon.log.read_text()
        assert daemon.get("/readyz")["status"] == "ready"
