"""Looks at a journal before it is opened for writing: its version, its -wal, its pages.

Design
------
Everything here reads. A journal of a later version is refused and stays as it is, byte for byte. A damaged one is moved
aside with its -wal and -shm, under a name with the time, and the daemon begins a fresh one; with `is_strict` it is
refused instead. A journal that cannot be read for another reason (permissions, another process) is refused.

The pages are checked with SQLite's quick_check, which reads the whole file: 1 GB takes 6 s. So it ends after
`CHECK_SECONDS`; the retention checks a file that was not finished, beside the running daemon. quick_check finds damage
in the structure of the file. It does not find a flipped bit inside a number: SQLite keeps no checksum of a page. A row
that such a bit makes unreadable is set aside (see `quarantine`).
"""

import contextlib
import logging
import os
import shlex
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from caboose_daemon.store.database import JournalError, connect
from caboose_daemon.store.marker import Marker
from caboose_daemon.store.schema import SCHEMA_VERSION
from caboose_daemon.store.wal import wal_problem

logger = logging.getLogger("caboose.daemon")

CHECK_SECONDS = 5.0
PROGRESS_STEPS = 100_000
"""Instructions of SQLite between two looks at the clock; about 1 ms."""
PARTS = ("", "-wal", "-shm")


class Damaged(Exception):
    """The journal is damaged; the message is the reason."""


@dataclass(frozen=True)
class Inspected:
    """What was found."""

    set_aside: Path | None = None
    """The damaged journal under its new name."""
    is_checked: bool = True
    """Whether all pages were checked."""
    wal_copy: str = ""
    """The name of the copy of a -wal whose rows are lost."""


def inspect(path: Path, *, is_strict: bool, wall: Callable[[], float] = time.time) -> Inspected:
    """Checks a journal; JournalError where it must not be used."""
    try:
        return _inspect(path, is_strict, wall)
    except Damaged as damage:
        if is_strict:
            raise JournalError(
                f"{path}: {damage}; move the file away, or start without --strict-journal: it is then kept aside"
            ) from None
        return Inspected(set_aside=keep_aside(path, str(damage), wall))
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror or error}; choose another --data-dir") from None


def _inspect(path: Path, is_strict: bool, wall: Callable[[], float]) -> Inspected:
    _clear_left_overs(path, wall)
    if not _has_content(path):
        return Inspected()
    is_wal_missing = Marker(path).state == "open" and not Path(f"{path}-wal").exists()  # reading makes one
    with _reading(path) as connection:
        _check_version(path, connection)
        wal_copy = _check_wal(path, is_wal_missing, is_strict, wall)
        _warn_if_exposed(path)
        return Inspected(is_checked=_check_pages(connection), wal_copy=wal_copy)


def keep_aside(path: Path, reason: str, wall: Callable[[], float] = time.time) -> Path:
    """Moves a damaged journal, its -wal and -shm out of the way; returns its new name."""
    target = path.with_name(f"{path.name}.damaged-{_stamp(wall)}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged-{_stamp(wall)}-{number}")
    for part in PARTS:
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{target}{part}")
    logger.error("%s is damaged (%s): kept as %s, and a fresh journal is begun", path, reason, target.name)
    return target


def _clear_left_overs(path: Path, wall: Callable[[], float]) -> None:
    """Moves the -wal of a journal that was removed: SQLite would take its rows for those of the fresh one."""
    if path.exists():
        return
    for part in PARTS[1:]:
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{path}{part}.damaged-{_stamp(wall)}")


def _stamp(wall: Callable[[], float]) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall()))


def _has_content(path: Path) -> bool:
    """Whether there is a file to check; raises Damaged where there was one."""
    if not path.exists():
        return False
    if path.is_dir():
        raise Damaged("it is a directory")
    if path.stat().st_size == 0:
        if Marker(path).state:
            raise Damaged("it is empty")
        return False  # a daemon was ended while it made its first journal
    if not os.access(path, os.R_OK | os.W_OK):
        raise JournalError(f"{path}: no permission to read and write it; sudo chown {os.getuid()} {path}")
    return True


def _warn_if_exposed(path: Path) -> None:
    """A journal that others may read stays as it is, for somebody may have wanted that; it is logged at each start."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o007 and stat.S_IMODE(path.parent.stat().st_mode) & 0o001:
        logger.warning(
            "%s can be read by all users (mode %03o): run `chmod 600 %s*`", path, mode, shlex.quote(str(path))
        )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing; what SQLite cannot read is Damaged."""
    before = {part for part in PARTS if Path(f"{path}{part}").exists()}
    connection = connect(path, read_only=True)
    try:
        yield connection
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise JournalError(f"{path}: {error}: another process uses it; end that, or wait for it") from None
        raise Damaged(str(error)) from None
    except sqlite3.DatabaseError as error:
        raise Damaged(str(error)) from None
    finally:
        connection.close()
        for part in PARTS:
            if part not in before:  # reading a file in WAL mode makes them, empty
                with contextlib.suppress(FileNotFoundError):
                    os.remove(f"{path}{part}")


def _check_wal(path: Path, is_missing: bool, is_strict: bool, wall: Callable[[], float]) -> str:
    """Checks the -wal; the name of the copy of a bad one. Its rows are lost, the journal before them is not."""
    wal = Path(f"{path}-wal")
    found = wal_problem(wal)
    if found:
        problem = f"{wal.name} is damaged ({found}): the rows after that are lost"
    elif is_missing:
        problem = f"{wal.name} is missing although the daemon was not ended: its last rows are lost"
    else:
        return ""
    if is_strict:
        raise JournalError(f"{path}: {problem}; restore it, or start without --strict-journal")
    logger.error("%s: %s", path, problem)
    if not found:
        return ""
    copy = wal.with_name(f"{wal.name}.damaged-{_stamp(wall)}")
    with contextlib.suppress(OSError):  # no room for it
        shutil.copy2(wal, copy)
    return copy.name


def _check_version(path: Path, connection: sqlite3.Connection) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return
    found = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() if "meta" in tables else None
    if found is None or not isinstance(found[0], str) or not found[0].isdecimal() or int(found[0]) < 1:
        raise Damaged("it is not a Caboose journal")
    if int(found[0]) > int(SCHEMA_VERSION):
        raise JournalError(
            f"{path}: written by a later version (schema {found[0]}, this one reads {SCHEMA_VERSION}); "
            "start that version, or choose another --data-dir"
        )


def _check_pages(connection: sqlite3.Connection) -> bool:
    deadline = time.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_STEPS)
    try:
        check_pages(connection)
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        return False
    finally:
        connection.set_progress_handler(None, 0)
    return True


def check_pages(connection: sqlite3.Connection) -> None:
    """Raises Damaged if SQLite finds a page that is not as it should be."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise Damaged(" ".join(str(found).split()))
