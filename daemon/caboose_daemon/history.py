"""Reads the journal back: a restarted daemon's jobs, and the curves a page asks for."""

import sqlite3
from pathlib import Path

import msgspec

from caboose_daemon.episodes import Episode
from caboose_daemon.job import RECENT_EVENTS, RECENT_STEPS, Job, Member
from caboose_daemon.journal import BAD_LOSS, BAD_NORM, JournalError, connect
from caboose_daemon.pipeline import Pipeline
from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.state import State
from caboose_daemon.summary import StepSummary
from caboose_wire import Event, Hello

STEP_COLUMNS = (
    "attempt, step, time, loss, loss_min, loss_max, grad_norm, lr, "
    "step_seconds, data_seconds, agent_seconds, num_ranks, bad"
)
IS_BAD = "(bad != 0 OR coalesce(abs(loss) = 9e999, 0) OR coalesce(abs(grad_norm) = 9e999, 0))"
"""NaN has a flag of its own in the table; infinity is stored as it is, and 9e999 is how SQLite spells it."""
MAX_RESTORED = 200
"""Jobs taken back into memory, the most recent first."""


def restore(path: Path, state: State, pipeline: Pipeline, now: float) -> None:
    """Puts back the jobs a journal knows, as they stood when it was last written."""
    connection = connect(path)
    try:
        _restore(connection, state, pipeline, now)
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise JournalError(f"{path}: {error}; move the file away, or choose another --data-dir") from error
    finally:
        connection.close()


def _restore(connection: sqlite3.Connection, state: State, pipeline: Pipeline, now: float) -> None:
    rows = connection.execute(
        "SELECT j.id, j.name, j.created, a.number, a.world, a.launch, a.agent_attempt FROM jobs j "
        "JOIN attempts a ON a.job = j.id AND a.number = (SELECT max(number) FROM attempts WHERE job = j.id) "
        "ORDER BY a.began DESC LIMIT ?",
        (MAX_RESTORED,),
    ).fetchall()
    for number, name, created, attempt, world, launch, agent_attempt in rows:
        job = Job(name=name, created=created, num_attempts=attempt)
        job.attempt = pipeline.make_attempt(attempt, world, launch, agent_attempt, now)
        _restore_members(connection, number, job)
        _restore_steps(connection, number, job)
        job.episodes.restore(_episodes(connection, number))
        job.attempt.engine.resume(episode.last for episode in job.episodes.open)
        for episode in job.episodes:
            key = (episode.rule, str(episode.first.severity))
            job.finding_counts[key] = job.finding_counts.get(key, 0) + 1
        job.events.extend(_events(connection, number))
        state.jobs[name] = job


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
        was_live = state == "live"  # whether it still is will show when it speaks
        attempt.members[rank] = Member(
            hello=hello, last_seen=last_seen, state="expected" if was_live else state, step=step, error=error
        )


def _restore_steps(connection: sqlite3.Connection, number: int, job: Job) -> None:
    rows = connection.execute(
        f"SELECT {STEP_COLUMNS} FROM steps WHERE job = ? ORDER BY attempt DESC, step DESC LIMIT ?",  # noqa: S608 - constants
        (number, RECENT_STEPS),
    ).fetchall()
    job.recent.extend(_summary(row) for row in reversed(rows))
    (job.num_steps, job.num_non_finite) = connection.execute(
        f"SELECT count(*), coalesce(sum({IS_BAD}), 0) FROM steps WHERE job = ?",  # noqa: S608 - constants
        (number,),
    ).fetchone()
    if rows and job.attempt is not None and rows[0][0] == job.attempt.number:
        job.attempt.aligner.last_closed = rows[0][1]


def _summary(row: tuple[object, ...]) -> StepSummary:
    values = list(row)
    bad = values.pop()
    assert isinstance(bad, int), "the column is an integer"
    if bad & BAD_LOSS:
        values[3] = float("nan")
    if bad & BAD_NORM:
        values[6] = float("nan")
    return StepSummary(*values)  # type: ignore[arg-type]  # the columns are the fields, in order


def _episodes(connection: sqlite3.Connection, number: int) -> list[Episode]:
    rows = connection.execute(
        "SELECT id, attempt, severity, num_findings, detected_time, last_time, is_open, first, last "
        "FROM (SELECT * FROM episodes WHERE job = ? ORDER BY id DESC LIMIT 200) ORDER BY id",
        (number,),
    )
    episodes = []
    for id_, attempt, severity, num, detected, seen, is_open, *blobs in rows:
        first, last = (msgspec.msgpack.decode(blob, type=Finding) for blob in blobs)
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
                worst=first if first.severity == severity else last,
                told_step=first.step,
            )
        )
    return episodes


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


class HistoryReader:
    """Answers a page's question for a curve, from a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, read_only=True)

    def series(self, job: str, points: int) -> list[dict[str, float | int | None]]:
        """The job's steps in at most about `points` buckets, each with its extremes, so that no spike is lost."""
        found = self._connection.execute("SELECT id FROM jobs WHERE name = ?", (job,)).fetchone()
        if found is None:
            return []
        (count,) = self._connection.execute("SELECT count(*) FROM steps WHERE job = ?", found).fetchone()
        (first, last) = self._connection.execute(
            "SELECT min(step), max(step) FROM steps WHERE job = ?", found
        ).fetchone()
        if not count:
            return []
        width = max(1, -(-(last - first + 1) // points))
        cursor = self._connection.execute(
            "SELECT attempt, max(step) AS step, max(time) AS time, avg(loss) AS loss, "  # noqa: S608 - constants
            "min(coalesce(loss_min, loss)) AS loss_min, max(coalesce(loss_max, loss)) AS loss_max, "
            "avg(grad_norm) AS grad_norm, max(grad_norm) AS grad_norm_max, max(lr) AS lr, "
            "avg(step_seconds) AS step_seconds, avg(data_seconds) AS data_seconds, "
            f"avg(agent_seconds) AS agent_seconds, sum({IS_BAD}) AS num_bad, count(*) AS num_steps "
            "FROM steps WHERE job = ? GROUP BY attempt, step / ? ORDER BY attempt, step",
            (*found, width),
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()
