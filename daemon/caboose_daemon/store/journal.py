"""The journal: SQLite in WAL mode, so that a daemon killed at any time restarts with its state.

Design
------
Written on the loop's thread, one transaction per turn: everything accepted in a turn is committed before the next
begins, without waiting for the disk to sync (a killed process loses nothing; a machine crash loses the last moments).
If the journal cannot be written (a full disk), the failure is counted and shown, unwritten rows are kept up to a limit
and retried, and monitoring continues. Reads for the page use a separate connection.
"""

import logging
import sqlite3
from collections import deque
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.jobs.layer_table import layer_table
from caboose_daemon.jobs.pipeline import Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.jobs.totals import JobTotals
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.steps.samples.sample import Sample, pack
from caboose_daemon.store import sample_retention, step_table
from caboose_wire import Event

logger = logging.getLogger("caboose.daemon")

SCHEMA_VERSION = "6"
UPGRADES = {
    # Had no incidents, and only the first and last finding of an episode.
    "1": "ALTER TABLE episodes ADD COLUMN worst BLOB; ALTER TABLE episodes ADD COLUMN told_step INTEGER; "
    "UPDATE meta SET value = '2' WHERE key = 'schema';",
    # Had no rollbacks.
    "2": "ALTER TABLE attempts ADD COLUMN reason TEXT NOT NULL DEFAULT ''; "
    "ALTER TABLE attempts ADD COLUMN start_step INTEGER NOT NULL DEFAULT 0; "
    "UPDATE meta SET value = '3' WHERE key = 'schema';",
    # Had fewer step columns; missing ones are added on opening.
    "3": "UPDATE meta SET value = '4' WHERE key = 'schema';",
    # Had no totals; they start from the rows it still has.
    "4": "UPDATE meta SET value = '5' WHERE key = 'schema';",
    # Its sample tables had other names.
    "5": "UPDATE meta SET value = '6' WHERE key = 'schema';",
}
"""Upgrade from each schema to the next; new tables and step columns are added on opening."""
RENAMED = {"looks": "samples", "closeups": "latest_samples"}
"""Tables by their names before schema 6, and their names now."""
MAX_WAITING = 200_000
MAX_WAITING_SAMPLES = 128
"""Samples are large; further ones are lost while the file cannot be written."""
SWEEP_EVERY = 20_000
"""Steps written between two runs of the retention."""


class JournalError(RuntimeError):
    """The journal cannot be opened; the message names the fix."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with the journal's settings."""
    if read_only:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False)
    else:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA busy_timeout = 2000")
    return connection


class Journal(Sink):
    """Writes all changes; implements the pipeline's Sink."""

    def __init__(self, path: Path, state: State, *, max_steps: int, retention_days: float) -> None:
        self.path = path
        self._state = state
        self._max_steps = max_steps
        self._retention_seconds = retention_days * 86_400.0
        self._known: set[str] = set()
        self._changed: dict[str, Job] = {}
        """Jobs with unwritten rows."""
        self._new_jobs: dict[str, float] = {}
        self._waiting: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._num_since_sweep = 0
        self._waiting_samples: dict[str, int] = {}
        """Unwritten samples, by job."""
        try:
            self._connection = connect(path)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA journal_size_limit = 16777216")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._upgrade()
            self._connection.executescript((files("caboose_daemon.store") / "schema.sql").read_text())
            self._connection.execute(step_table.CREATE)
            for statement in step_table.missing(self._columns("steps")):
                self._connection.execute(statement)
            self._check_version()
        except sqlite3.Error as error:
            raise JournalError(f"{path}: {error}; move the file away, or choose another --data-dir") from error

    def _upgrade(self) -> None:
        """Upgrades an older journal, one schema at a time."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            return
        for version, changes in UPGRADES.items():
            if self._connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (version,):
                self._connection.executescript(f"BEGIN; {changes} COMMIT")
        for old, new in RENAMED.items():
            if self._columns(old) and not self._columns(new):
                self._connection.execute(f"ALTER TABLE {old} RENAME TO {new}")

    def _columns(self, table: str) -> list[str]:
        """A table's column names; empty if there is no such table."""
        return [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")]

    def _check_version(self) -> None:
        self._connection.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
        (version,) = self._connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if version != SCHEMA_VERSION:
            raise JournalError(
                f"{self.path}: written by another version (schema {version}, this one reads {SCHEMA_VERSION}); "
                "choose another --data-dir"
            )

    def _write(self, job: Job, sql: str, *values: Any) -> None:
        self._changed[job.name] = job
        if job.name not in self._known:  # separate from the rows, whose oldest may be dropped
            self._new_jobs[job.name] = job.created
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._state.journal_lost += 1
        sql = sql.replace("(?,", "((SELECT id FROM jobs WHERE name = ?),", 1)
        self._waiting.append((sql, (job.name, *values)))

    def _put(self, job: Job, table: str, **values: Any) -> None:
        """Writes a row, replacing one with the same key."""
        self._write(job, _insert(table, tuple(values)), *values.values())

    def attempt_began(self, job: Job) -> None:
        attempt = job.attempt
        assert attempt is not None, "called when an attempt begins"
        self._put(
            job,
            "attempts",
            number=attempt.number,
            began=attempt.began,
            world=attempt.world,
            launch=attempt.launch,
            agent_attempt=attempt.agent_attempt,
            reason=attempt.reason,
            start_step=attempt.start_step,
        )

    def member_changed(self, job: Job, member: Member) -> None:
        """Writes the rank, so that a restarted daemon knows its ranks."""
        assert job.attempt is not None, "a member belongs to an attempt"
        self._put(
            job,
            "members",
            attempt=job.attempt.number,
            rank=member.hello.rank,
            incarnation=member.hello.incarnation,
            host=member.hello.host,
            pid=member.hello.pid,
            state=member.state,
            error=member.error,
            step=member.step,
            last_seen=member.last_seen,
        )
        if member.state == "live" and member.hello.rank == min(job.attempt.members):
            self._put(job, "descriptions", attempt=job.attempt.number, body=msgspec.msgpack.encode(member.hello))

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        self._write(job, step_table.INSERT, *step_table.to_row(summary))
        if job.meters.latest is not None and job.meters.latest.step == summary.step:
            self._put(job, "latest_samples", body=msgspec.msgpack.encode(layer_table(job)))
        if job.meters.sample is not None:
            self._keep(job, job.meters.sample, summary.attempt)
        self._num_since_sweep += 1

    def _keep(self, job: Job, sample: Sample, attempt: int) -> None:
        if sum(self._waiting_samples.values()) >= MAX_WAITING_SAMPLES:
            self._state.journal_lost += 1
            return
        self._waiting_samples[job.name] = self._waiting_samples.get(job.name, 0) + 1
        self._write(
            job,
            "INSERT INTO samples VALUES (?, (SELECT coalesce(max(number), 0) + 1 FROM samples JOIN jobs ON id = job "
            "WHERE name = ?), ?, ?, ?, ?, ?, ?)",
            job.name,
            attempt,
            sample.step,
            sample.time,
            sample.seen,
            sample.is_onset,
            pack(sample),
        )

    def episode_changed(self, job: Job, episode: Episode) -> None:
        is_worst_elsewhere = episode.worst not in (episode.first, episode.last)
        self._put(
            job,
            "episodes",
            id=episode.id,
            attempt=episode.attempt,
            severity=str(episode.severity),
            num_findings=episode.num_findings,
            detected_time=episode.detected_time,
            last_time=episode.last_time,
            is_open=episode.is_open,
            first=msgspec.msgpack.encode(episode.first),
            last=msgspec.msgpack.encode(episode.last),
            worst=msgspec.msgpack.encode(episode.worst) if is_worst_elsewhere else None,
            told_step=episode.reported_step,
        )

    def incident_changed(self, job: Job, incident: Incident) -> None:
        """Writes the incident; its episodes are in their own table."""
        body = msgspec.structs.replace(incident, episodes=())
        self._put(
            job,
            "incidents",
            number=incident.number,
            rule=incident.rule,
            worst=str(incident.worst),
            opened_time=incident.opened_time,
            closed_time=incident.closed_time,
            members=msgspec.msgpack.encode([member.id for member in incident.episodes]),
            body=msgspec.msgpack.encode(body),
        )

    def event_declared(self, job: Job, event: Event) -> None:
        self._put(
            job,
            "events",
            attempt=event.attempt,
            step=event.step,
            time=event.time,
            kind=event.kind,
            fields=msgspec.msgpack.encode(event.fields),
        )

    def decision_changed(self, job: Job, decision: Decision) -> None:
        self._put(
            job,
            "decisions",
            number=decision.number,
            time=decision.time,
            state=decision.state,
            body=msgspec.msgpack.encode(decision),
        )

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        """Writes a ledger entry, or deletes it if it is no longer held."""
        if entry.is_held:
            body = msgspec.msgpack.encode(entry)
            self._put(job, "ledger", kind=entry.kind, name=entry.name, time=entry.time, body=body)
        else:
            sql = "DELETE FROM ledger WHERE (job, kind, name) = (?, ?, ?)"
            self._write(job, sql, entry.kind, entry.name)

    def commit(self, now: float) -> None:
        """Writes everything since the last call, in one transaction."""
        if not self._waiting:
            return
        try:
            self._connection.execute("BEGIN")
            self._connection.executemany(
                "INSERT OR IGNORE INTO jobs (name, created) VALUES (?, ?)", self._new_jobs.items()
            )
            for sql, values in self._waiting:
                self._connection.execute(sql, values)
            self._connection.executemany(
                "INSERT OR REPLACE INTO totals SELECT id, ? FROM jobs WHERE name = ?",
                [(msgspec.msgpack.encode(JobTotals.of(job)), name) for name, job in self._changed.items()],
            )
            sample_retention.thin(self._connection, self._waiting_samples)
            if self._num_since_sweep >= SWEEP_EVERY:
                self._sweep(now)
            self._state.journal_bytes = self._size()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._failed(error)
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return
        self._waiting.clear()
        self._changed.clear()
        self._waiting_samples.clear()
        self._known.update(self._new_jobs)
        self._new_jobs.clear()
        if self._state.journal_error:
            logger.warning("the journal is writable again")
            self._state.journal_error = ""

    def _sweep(self, now: float) -> None:
        self._num_since_sweep = 0
        oldest = now - self._retention_seconds
        for (number,) in self._connection.execute("SELECT id FROM jobs").fetchall():
            self._connection.execute(
                "DELETE FROM steps WHERE job = ?1 AND (time < ?2 OR (attempt, step) < ("
                "SELECT attempt, step FROM steps WHERE job = ?1 ORDER BY attempt DESC, step DESC LIMIT 1 OFFSET ?3))",
                (number, oldest, self._max_steps - 1),
            )
        self._connection.execute("DELETE FROM events WHERE time < ?", (oldest,))
        self._connection.execute("DELETE FROM samples WHERE time < ?", (oldest,))
        self._connection.execute(
            "DELETE FROM jobs WHERE id NOT IN (SELECT job FROM steps) AND id NOT IN (SELECT job FROM attempts "
            "WHERE began >= ?)",
            (oldest,),
        )
        self._known.clear()  # a job that returns after that is inserted again
        self._connection.execute("DELETE FROM episodes WHERE is_open = 0 AND last_time < ?", (oldest,))
        self._connection.execute("DELETE FROM incidents WHERE closed_time < ?", (oldest,))
        self._connection.execute("DELETE FROM decisions WHERE time < ?", (oldest,))

    def _failed(self, error: sqlite3.Error) -> None:
        if not self._state.journal_error:
            logger.error("the journal cannot be written; monitoring continues without it: %s", error)
        self._state.journal_failures += 1
        self._state.journal_error = str(error)

    def _size(self) -> int:
        pages = int(self._connection.execute("PRAGMA page_count").fetchone()[0])
        return pages * int(self._connection.execute("PRAGMA page_size").fetchone()[0])

    def close(self, now: float) -> None:
        """Writes unwritten rows and closes the file."""
        self.commit(now)
        self._connection.close()


@cache
def _insert(table: str, columns: tuple[str, ...]) -> str:
    names, places = ", ".join(columns), ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} (job, {names}) VALUES (?, {places})"  # noqa: S608 - names from this file
