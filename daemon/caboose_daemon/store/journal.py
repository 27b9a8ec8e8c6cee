"""The journal: SQLite in WAL mode, so that a daemon killed at any time restarts with its state.

Design
------
Written on the loop's thread. The rows of a turn are committed before the state's lock is released, so that nobody reads
what is not committed: a killed process loses nothing that was shown. Decisions and the ledger are synced to disk at the
end of the turn (`sync`), HTTP writes before they are answered (`write`): a loss of power loses the last seconds of
steps, and none of those. Retention, and moving the -wal into the file, have a thread of their own (see `retention`).

A row is checked by the code that restores it (see `rows`) before it waits to be written; one that could not be restored
is refused and counted. If the journal cannot be written (a full disk), the failure is counted and shown, unwritten rows
are kept up to a limit and retried, and monitoring continues. A change over HTTP is refused instead. Reads for the page
use a separate connection.
"""

import itertools
import logging
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.jobs.layer_table import layer_table
from caboose_daemon.jobs.pipeline import Change, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.jobs.totals import JobTotals
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.steps import named
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.steps.named import NamedNumber
from caboose_daemon.steps.samples.sample import Sample, pack
from caboose_daemon.steps.view import GONE
from caboose_daemon.store import step_table
from caboose_daemon.store.backlog import Backlog, forget_changes, mark_changes
from caboose_daemon.store.database import Database, JournalError
from caboose_daemon.store.marker import Marker
from caboose_daemon.store.retention import Retention
from caboose_daemon.store.rows import RowError, check_row
from caboose_daemon.store.schema import make_tables
from caboose_wire import Event

logger = logging.getLogger("caboose.daemon")

MAX_WAITING = 200_000
MAX_WAITING_SAMPLES = 128
"""Samples are large; further ones are lost while the file cannot be written."""
MAX_REPORTS = 512
"""Ranks whose last reports are kept for a restart; of a larger job none are."""
MAX_ROWS = 5_000
"""Rows of one transaction; a turn rarely has as many, the time after a full disk does."""
RETRY_SECONDS = 0.25
"""While the journal cannot be written, it is tried no more often than this."""
BAD_VALUES = (
    *(sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError),
    *(OverflowError, ValueError),
)
"""What SQLite raises about one row, and not about the file."""


class Journal(Sink):
    """Writes all changes; implements the pipeline's Sink. sqlite3.DatabaseError: the file is damaged."""

    def __init__(
        self, path: Path, state: State, *, max_steps: int, retention_days: float, has_store: bool = False
    ) -> None:
        self.path = path
        self._state = state
        self._changed: dict[str, Job] = {}
        """Jobs with unwritten rows."""
        self._waiting: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._num_steps = 0
        """Unwritten ones."""
        self._waiting_samples: dict[str, int] = {}
        """Unwritten samples, by job."""
        self._is_sync_due = False
        self._next_try = 0.0
        self._refused: set[str] = set()
        """Tables of which a row was refused and logged."""
        self._marker = Marker(path)
        try:
            self.database = Database(path)
            make_tables(self.database)
            (mark_changes if has_store else forget_changes)(self.database)
        except (sqlite3.OperationalError, OSError) as error:
            raise JournalError(f"{path}: {error}; free disk space, or choose another --data-dir") from error
        self._marker.set("open")
        self._page_size = self.database.pragma("page_size")
        self._num_commits = 0
        self.retention = Retention(path, self.database.turn, state, max_steps=max_steps, retention_days=retention_days)

    def backlog(self) -> Backlog:
        """What a common database is to get of it."""
        return Backlog(self.path, self.database.turn)

    def _write(self, job: Job, sql: str, *values: Any) -> None:
        self._changed[job.name] = job
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._state.journal_lost += 1
        sql = sql.replace("(?,", "((SELECT id FROM jobs WHERE name = ?),", 1)
        self._waiting.append((sql, (job.name, *values)))

    def _put(self, job: Job, table: str, **values: Any) -> None:
        """Writes a row, replacing one with the same key."""
        if self._is_readable(table, values):
            self._write(job, _insert(table, tuple(values)), *values.values())

    def _is_readable(self, table: str, values: dict[str, Any]) -> bool:
        """Whether a restore can read the row; one that it cannot read is refused and counted."""
        try:
            check_row(table, values)
        except RowError as error:
            self._refuse(table, error)
            return False
        return True

    def _refuse(self, table: str, error: Exception) -> None:
        self._state.journal_refused += 1
        if table not in self._refused:
            self._refused.add(table)
            logger.error("a row of %s is not written, because it could not be read again: %s", table, error)

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
            proof=attempt.proof,
            is_over=int(attempt.is_over),
        )

    def attempt_changed(self, job: Job) -> None:
        """Writes whether it is over, and how far the ranks had come that sent no Bye."""
        self.attempt_began(job)
        members = job.attempt.members.values() if job.attempt is not None else ()
        for member in members:
            if member.state not in GONE:
                self.member_changed(job, member)

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
            self._put(job, "descriptions", attempt=job.attempt.number, body=_encoded(member.hello))

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        self._put(job, "steps", **step_table.to_columns(summary))
        for part in summary.parts:
            self._put(job, "part_steps", **step_table.part_columns(summary, part))
        self._put_named(job, summary.attempt, summary.step, summary.named)
        if job.meters.latest is not None and job.meters.latest.step == summary.step:
            self._put(job, "latest_samples", body=_encoded(layer_table(job)))
        if job.meters.sample is not None:
            self._keep(job, job.meters.sample, summary.attempt)
        if job.last_sampled is not None and job.last_sampled.step == summary.step:
            self._put_facts(job, job.last_sampled)
        self._num_steps += 1

    def _put_facts(self, job: Job, sampled: AlignedStep) -> None:
        """What diagnoses and the page read of the last sampled step."""
        if job.samples:
            self._put(job, "sample_facts", attempt=sampled.attempt, step=sampled.step, body=_encoded(job.samples[-1]))
        if len(sampled.reports) <= MAX_REPORTS:
            self._put(job, "last_reports", attempt=sampled.attempt, body=_encoded(sampled.reports))

    def _put_named(self, job: Job, attempt: int, step: int, numbers: Iterable[NamedNumber]) -> None:
        for number in numbers:
            self._put(job, "named_steps", **step_table.named_columns(attempt, step, number))

    def _keep(self, job: Job, sample: Sample, attempt: int) -> None:
        if sum(self._waiting_samples.values()) >= MAX_WAITING_SAMPLES:
            self._state.journal_lost += 1
            return
        self._waiting_samples[job.name] = self._waiting_samples.get(job.name, 0) + 1
        values = {
            "attempt": attempt,
            "step": sample.step,
            "time": float(sample.time),
            "seen": sample.seen,
            "is_onset": int(sample.is_onset),
            "body": pack(sample),
        }
        if self._is_readable("samples", values):
            self._write(
                job,
                "INSERT INTO samples VALUES (?, (SELECT coalesce(max(number), 0) + 1 FROM samples JOIN jobs "
                "ON id = job WHERE name = ?), ?, ?, ?, ?, ?, ?)",
                job.name,
                *values.values(),
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
            is_open=int(episode.is_open),
            first=_encoded(episode.first),
            last=_encoded(episode.last),
            worst=_encoded(episode.worst) if is_worst_elsewhere else None,
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
            members=_encoded([member.id for member in incident.episodes]),
            body=_encoded(body),
        )

    def event_declared(self, job: Job, event: Event) -> None:
        self._put(
            job,
            "events",
            attempt=event.attempt,
            step=event.step,
            time=event.time,
            kind=event.kind,
            fields=_encoded(event.fields),
        )
        self._put_named(job, event.attempt, event.step, job.named.admit(named.of_validation(event)))

    def decision_changed(self, job: Job, decision: Decision) -> None:
        self._put(
            job,
            "decisions",
            number=decision.number,
            time=decision.time,
            state=decision.state,
            body=_encoded(decision),
        )
        self._is_sync_due = True

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        """Writes a ledger entry, or deletes it if it is no longer held."""
        if entry.is_held:
            body = _encoded(entry)
            self._put(job, "ledger", kind=entry.kind, name=entry.name, time=entry.time, body=body)
        else:
            sql = "DELETE FROM ledger WHERE (job, kind, name) = (?, ?, ?)"
            self._write(job, sql, entry.kind, entry.name)
        self._is_sync_due = True

    def commit(self, now: float, *, is_synced: bool = False, is_forced: bool = False) -> bool:
        """Writes everything since the last call; False if rows still wait. `is_forced`: also just after a failure."""
        if self._state.journal_error and now < self._next_try and not is_forced:
            return not self._waiting
        if self._state.journal_error and not self._waiting:
            return self.sync(now, is_forced=True)  # whether it can be written again
        while self._waiting:
            if not self._commit_some(now, is_synced=is_synced):
                return False
        return True

    def _commit_some(self, now: float, *, is_synced: bool) -> bool:
        """Writes the oldest rows in one transaction; whether it was committed."""
        num = min(len(self._waiting), MAX_ROWS)
        try:
            with self.database.transaction(is_synced=is_synced) as connection:
                connection.executemany(
                    "INSERT OR IGNORE INTO jobs (name, created) VALUES (?, ?)",
                    [(name, job.created) for name, job in self._changed.items()],
                )
                for sql, values in itertools.islice(self._waiting, num):
                    try:
                        connection.execute(sql, values)
                    except BAD_VALUES as error:  # it would fail for ever, and with it all that wait behind it
                        self._refuse(sql.split()[4 if "REPLACE" in sql else 2], error)
                connection.executemany(
                    "INSERT OR REPLACE INTO totals SELECT id, ? FROM jobs WHERE name = ?", list(self._totals())
                )
                self._measure()
        except sqlite3.Error as error:
            self._failed(error, now)
            return False
        for _ in range(num):
            self._waiting.popleft()
        if not self._waiting:
            self._forget()
        self._succeeded()
        return True

    def _totals(self) -> Iterator[tuple[bytes, str]]:
        for name, job in self._changed.items():
            body = _encoded(JobTotals.of(job))
            if self._is_readable("totals", {"body": body}):
                yield body, name

    def _forget(self) -> None:
        """No row waits."""
        self.retention.note(self._num_steps, list(self._waiting_samples))
        self._waiting.clear()
        self._changed.clear()
        self._waiting_samples.clear()
        self._num_steps = 0

    def write(self, change: Change, now: float) -> str:
        """Commits a change before it is made, and syncs it to disk; the problem, and nothing of it is kept, or empty.

        Called without the state's lock: only this thread changes the state.
        """
        if not self.commit(now, is_forced=True):
            return self._state.journal_error
        num_refused, was_sync_due = self._state.journal_refused, self._is_sync_due
        change.record(self)
        if self._state.journal_refused > num_refused:
            problem = "it could not be read again"
        elif self._waiting and self.commit(now, is_synced=True, is_forced=True):
            self._is_sync_due = False
            return ""
        elif not self._waiting and self.sync(now, is_forced=True):
            return ""
        else:
            problem = self._state.journal_error
        self._waiting.clear()
        self._changed.clear()
        self._is_sync_due = was_sync_due
        return problem

    def sync(self, now: float, *, is_forced: bool = False) -> bool:
        """Syncs decisions and ledger to disk where some were committed since the last call; whether it was possible."""
        if not (self._is_sync_due or is_forced):
            return True
        try:
            with self.database.transaction(is_synced=True) as connection:
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('synced', ?)", (str(now),))
        except sqlite3.Error as error:
            self._failed(error, now)
            return False
        self._is_sync_due = False
        self._succeeded()
        return True

    def _failed(self, error: sqlite3.Error, now: float) -> None:
        if not self._state.journal_error:
            logger.error("the journal cannot be written; monitoring continues without it: %s", error)
        self._state.journal_failures += 1
        self._state.journal_error = str(error)
        self._next_try = now + RETRY_SECONDS

    def _succeeded(self) -> None:
        if self._state.journal_error:
            logger.warning("the journal is writable again")
            self._state.journal_error = ""

    def _measure(self) -> None:
        """The size of the file, now and then."""
        self._num_commits += 1
        if self._num_commits % 16 == 1:
            self._state.journal_bytes = self.database.pragma("page_count") * self._page_size

    def close(self, now: float) -> None:
        """Writes unwritten rows and closes the file."""
        self.retention.stop()
        self.commit(now, is_forced=True)
        self._marker.set("closed")  # closing the last connection removes the -wal
        self.database.close()


def _encoded(value: Any) -> bytes:
    """The body of a row; where it cannot be encoded, one that cannot be read, so that the row is refused."""
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError):
        return b""


@cache
def _insert(table: str, columns: tuple[str, ...]) -> str:
    names, places = ", ".join(columns), ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} (job, {names}) VALUES (?, {places})"  # noqa: S608 - names from this file
