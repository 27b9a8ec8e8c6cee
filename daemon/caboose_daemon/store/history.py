"""Reads the journal: jobs for a restarted daemon, and curves for the page."""

import json
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from caboose_daemon.incidents.episodes import MAX_KEPT as MAX_EPISODES
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.incidents.incident_log import MAX_KEPT
from caboose_daemon.jobs.job import RECENT_EVENTS, RECENT_STEPS, Attempt, Job, Member
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.jobs.totals import JobTotals
from caboose_daemon.rollback import bad_spans
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.rollback_state.record import MAX_DECISIONS
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.steps.regimes import RegimeTracker
from caboose_daemon.store.journal import SCHEMA_VERSION, JournalError, connect
from caboose_daemon.store.series import series
from caboose_daemon.store.step_table import IS_BAD, SELECTED, to_summary
from caboose_wire import Event, Hello

MAX_RESTORED = 200
"""Jobs loaded into memory, the most recent first."""
MakeAttempt = Callable[[Job, int, str, int, float], Attempt]
"""Job, world, launch, the agent's attempt number, now; see `Pipeline.make_attempt`."""


def restore(path: Path, state: State, pipeline: Pipeline, now: float) -> None:
    """Restores the jobs of a journal to their last written state."""
    connection = connect(path)
    try:
        _restore(connection, state, pipeline, now)
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise JournalError(f"{path}: {error}; move the file away, or choose another --data-dir") from error
    finally:
        connection.close()


def read_jobs(path: Path, make_attempt: MakeAttempt, now: float) -> list[Job]:
    """The jobs of a journal that may be in use, the most recent first; read-only."""
    try:
        connection = connect(path.resolve(), read_only=True)
        try:
            (version,) = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() or ("",)
            if version != SCHEMA_VERSION:
                raise JournalError(
                    f"{path}: written by another version (schema {version}, this one reads {SCHEMA_VERSION}); "
                    "start a daemon of this version on it once to upgrade it"
                )
            return _jobs(connection, make_attempt, now)
        finally:
            connection.close()
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise JournalError(f"{path}: not a Caboose journal ({error})") from None


def _restore(connection: sqlite3.Connection, state: State, pipeline: Pipeline, now: float) -> None:
    for job in _jobs(connection, pipeline.make_attempt, now):
        state.jobs[job.name] = job


def _jobs(connection: sqlite3.Connection, make_attempt: MakeAttempt, now: float) -> list[Job]:
    rows = connection.execute(
        "SELECT j.id, j.name, j.created, a.number, a.world, a.launch, a.agent_attempt, a.reason, a.start_step "
        "FROM jobs j "
        "JOIN attempts a ON a.job = j.id AND a.number = (SELECT max(number) FROM attempts WHERE job = j.id) "
        "ORDER BY a.began DESC LIMIT ?",
        (MAX_RESTORED,),
    ).fetchall()
    jobs = []
    for number, name, created, attempt, world, launch, agent_attempt, reason, start_step in rows:
        job = Job(name=name, created=created, num_attempts=attempt)
        job.attempt = make_attempt(job, world, launch, agent_attempt, now)
        job.attempt.reason, job.attempt.start_step = reason, start_step
        _restore_description(connection, number, job)
        _restore_members(connection, number, job)
        _restore_steps(connection, number, job)
        kept = _incidents(connection, number)
        episodes = _episodes(connection, number, {id_ for ids, _ in kept for id_ in ids})
        job.episodes.restore(episodes)
        (last,) = connection.execute("SELECT max(number) FROM incidents WHERE job = ?", (number,)).fetchone()
        job.incidents.restore(_with_episodes(kept, episodes), episodes, num_opened=last or 0)
        job.attempt.engine.resume()
        _restore_totals(connection, number, job)
        job.events.extend(_events(connection, number))
        _restore_regimes(job)
        job.rollback.restore(_decisions(connection, number), attempt, bad_spans.unsolved(job))
        job.rollback.ledger.restore(_ledger(connection, number))
        jobs.append(job)
    return jobs


def _restore_description(connection: sqlite3.Connection, number: int, job: Job) -> None:
    """The run's description; older journals may not have it."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'descriptions'").fetchone()
    query = "SELECT body FROM descriptions WHERE job = ? ORDER BY attempt DESC LIMIT 1"
    row = connection.execute(query, (number,)).fetchone() if known else None
    if row is not None:
        job.describe(msgspec.msgpack.decode(row[0], type=Hello))


def _restore_members(connection: sqlite3.Connection, number: int, job: Job) -> None:
    attempt = job.attempt
    assert attempt is not None, "restored with its attempt"
    for rank, incarnation, host, pid, state, error, step, last_seen in connection.execute(
        "SELECT rank, incarnation, host, pid, state, error, step, last_seen FROM members WHERE job = ? AND attempt = ?",
        (number, attempt.number),
    ):
        hello = Hello(
            job=job.name,
            rank=rank,
            world=attempt.world,
            host=host,
            pid=pid,
            incarnation=incarnation,
            launch=attempt.launch,
            attempt=attempt.agent_attempt,
        )
        was_live = state == "live"  # it is live again once it reports
        attempt.members[rank] = Member(
            hello=hello, last_seen=last_seen, state="expected" if was_live else state, step=step, error=error
        )


def _restore_steps(connection: sqlite3.Connection, number: int, job: Job) -> None:
    rows = connection.execute(
        f"SELECT {SELECTED} FROM steps WHERE job = ? ORDER BY attempt DESC, step DESC LIMIT ?",  # noqa: S608 - constants
        (number, RECENT_STEPS),
    ).fetchall()
    job.recent.extend(to_summary(row) for row in reversed(rows))
    if rows and job.attempt is not None and rows[0][0] == job.attempt.number:
        job.attempt.aligner.last_closed = rows[0][1]


def _restore_totals(connection: sqlite3.Connection, number: int, job: Job) -> None:
    """The job's totals; if the journal has none, they are counted from its rows."""
    row = connection.execute("SELECT body FROM totals WHERE job = ?", (number,)).fetchone()
    if row is not None:
        msgspec.msgpack.decode(row[0], type=JobTotals).restore(job)
        return
    (num_steps, num_non_finite) = connection.execute(
        f"SELECT count(*), coalesce(sum({IS_BAD}), 0) FROM steps WHERE job = ?",  # noqa: S608 - constants
        (number,),
    ).fetchone()
    found = Counter((episode.rule, str(episode.first.severity)) for episode in job.episodes)
    opened = dict(connection.execute("SELECT rule, count(*) FROM incidents WHERE job = ? GROUP BY rule", (number,)))
    JobTotals(
        num_steps=num_steps,
        num_non_finite=num_non_finite,
        findings=tuple((*key, count) for key, count in found.items()),
        incidents=opened,
    ).restore(job)


def _restore_regimes(job: Job) -> None:
    """Replays the attempt's steps in memory, with the events declared before each."""
    attempt = job.attempt
    assert attempt is not None, "restored with its attempt"
    attempt.regimes = RegimeTracker(is_resumed=attempt.number > 1 or attempt.start_step > 0)
    events = deque(sorted((e for e in job.events if e.attempt == attempt.number), key=lambda event: event.step))
    for step in (summary for summary in job.recent if summary.attempt == attempt.number):
        before = []
        while events and events[0].step < step.step:
            before.append(events.popleft())
        attempt.regimes.observe(lr=step.lr, num_samples=step.num_samples, step_seconds=step.step_seconds, events=before)


def _episodes(connection: sqlite3.Connection, number: int, members: set[int]) -> list[Episode]:
    """The latest ones, all open ones, and those of kept incidents; oldest first."""
    rows = connection.execute(
        "SELECT id, attempt, severity, num_findings, detected_time, last_time, is_open, told_step, first, last, worst "
        "FROM episodes WHERE job = ?1 AND (is_open OR id IN (SELECT value FROM json_each(?2)) "
        "OR id IN (SELECT id FROM episodes WHERE job = ?1 ORDER BY id DESC LIMIT ?3)) ORDER BY id",
        (number, json.dumps(sorted(members)), MAX_EPISODES),
    )
    episodes = []
    for id_, attempt, severity, num, detected, seen, is_open, told_step, *blobs in rows:
        first, last, worst = (None if blob is None else msgspec.msgpack.decode(blob, type=Finding) for blob in blobs)
        assert first is not None, "the column is never empty"
        assert last is not None, "nor is this one"
        episodes.append(
            Episode(
                id=id_,
                attempt=attempt,
                first=first,
                last=last,
                severity=Severity(severity),
                num_findings=num,
                detected_time=detected,
                last_time=seen,
                is_open=bool(is_open),
                worst=worst or (first if first.severity == severity else last),
                reported_step=first.step if told_step is None else told_step,
            )
        )
    return episodes


def _incidents(connection: sqlite3.Connection, number: int) -> list[tuple[list[int], Incident]]:
    """The latest ones and all open ones, with the ids of their episodes; oldest first."""
    rows = connection.execute(
        "SELECT members, body FROM incidents WHERE job = ?1 AND (closed_time IS NULL "
        "OR number IN (SELECT number FROM incidents WHERE job = ?1 ORDER BY number DESC LIMIT ?2)) ORDER BY number",
        (number, MAX_KEPT),
    )
    return [
        (msgspec.msgpack.decode(ids, type=list[int]), msgspec.msgpack.decode(body, type=Incident)) for ids, body in rows
    ]


def _with_episodes(kept: list[tuple[list[int], Incident]], episodes: list[Episode]) -> Iterator[Incident]:
    known = {episode.id: episode for episode in episodes}
    for ids, incident in kept:
        found = tuple(known[i] for i in ids if i in known)
        if found:  # else the retention has deleted its episodes
            yield msgspec.structs.replace(incident, episodes=found)


def _events(connection: sqlite3.Connection, number: int) -> list[Event]:
    rows = connection.execute(
        "SELECT attempt, step, time, kind, fields FROM "
        "(SELECT * FROM events WHERE job = ? ORDER BY id DESC LIMIT ?) ORDER BY id",
        (number, RECENT_EVENTS),
    )
    return [
        Event(attempt=attempt, step=step, time=time, kind=kind, fields=msgspec.msgpack.decode(fields))
        for attempt, step, time, kind, fields in rows
    ]


def _decisions(connection: sqlite3.Connection, number: int) -> list[Decision]:
    rows = connection.execute(
        "SELECT body FROM (SELECT * FROM decisions WHERE job = ? ORDER BY number DESC LIMIT ?) ORDER BY number",
        (number, MAX_DECISIONS),
    )
    return [msgspec.msgpack.decode(body, type=Decision) for (body,) in rows]


def _ledger(connection: sqlite3.Connection, number: int) -> list[LedgerEntry]:
    rows = connection.execute("SELECT body FROM ledger WHERE job = ? ORDER BY time", (number,))
    return [msgspec.msgpack.decode(body, type=LedgerEntry) for (body,) in rows]


class HistoryReader:
    """Reads curves and samples for the page, on its own connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = connect(path, read_only=True)

    def series(self, job: str, points: int, first: int | None = None, last: int | None = None) -> list[dict[str, Any]]:
        """The job's steps from `first` to `last` in about `points` buckets that keep every spike."""
        return series(self.connection, job, points, first, last)

    def latest_sample(self, job: str) -> dict[str, Any] | None:
        """The job's last sample of its layers; None if there is none."""
        if not self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'latest_samples'").fetchone():
            return None
        query = "SELECT body FROM latest_samples JOIN jobs ON jobs.id = latest_samples.job WHERE jobs.name = ?"
        row = self.connection.execute(query, (job,)).fetchone()
        return None if row is None else msgspec.msgpack.decode(row[0], type=dict[str, Any])

    def close(self) -> None:
        self.connection.close()
