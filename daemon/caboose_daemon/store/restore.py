"""Restores the jobs of a journal to their last written state.

Design
------
Every row is read by its type (see `rows`). A row that cannot be read is collected as a `BadRow`, and the job goes on
without it. Without its attempt a job gets one made from its steps and ranks. A job that cannot be put together even so
is left out, and noted. Only a file that SQLite cannot read ends a restore: sqlite3.DatabaseError.
"""

import json
import logging
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from caboose_daemon.incidents.episodes import MAX_KEPT as MAX_EPISODES
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.incidents.incident_log import MAX_KEPT
from caboose_daemon.jobs.job import RECENT_EVENTS, RECENT_SAMPLES, RECENT_STEPS, Attempt, Job, Member
from caboose_daemon.jobs.totals import JobTotals
from caboose_daemon.rollback import bad_spans
from caboose_daemon.rollback_state.record import MAX_DECISIONS
from caboose_daemon.steps.aligned import combine
from caboose_daemon.steps.columns import PartNumbers, StepSummary
from caboose_daemon.steps.named import NamedNumber, in_order
from caboose_daemon.steps.regimes import RegimeTracker
from caboose_daemon.store.quarantine import BadRow, noted_jobs
from caboose_daemon.store.rows import KEYS, ROWS, AttemptRow, JobRow, MemberRow, RowError, read_row
from caboose_daemon.store.step_table import IS_BAD
from caboose_wire import Hello

logger = logging.getLogger("caboose.daemon")

MAX_RESTORED = 200
"""Jobs loaded into memory, the most recent first."""
MakeAttempt = Callable[[Job, int, str, int, float], Attempt]
"""Job, world, launch, the agent's attempt number, now; see `Pipeline.make_attempt`."""


@dataclass
class Restored:
    """The jobs, the most recent first, and the rows that could not be read."""

    jobs: list[Job] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)


def restore_jobs(connection: sqlite3.Connection, make_attempt: MakeAttempt, now: float) -> Restored:
    """The last jobs of a journal."""
    found = Restored()
    rows = connection.execute(
        "SELECT j.id, j.name, j.created FROM jobs j LEFT JOIN attempts a ON a.job = j.id "
        "GROUP BY j.id ORDER BY max(a.began) DESC LIMIT ?",
        (MAX_RESTORED,),
    ).fetchall()
    left_out = noted_jobs(connection)
    for number, name, created in rows:
        if number in left_out:
            continue
        values = {"id": number, "name": name, "created": created}
        try:
            row = _job_row(values, now, found)
            job = _JobReader(connection, number, found.bad).read(row, make_attempt, now)
        except sqlite3.Error:
            raise
        except Exception as error:
            logger.exception("job %s cannot be restored", name)
            found.bad.append(BadRow("jobs", values, f"{type(error).__name__}: {error}"))
            continue
        if job is not None:
            found.jobs.append(job)
    return found


def _job_row(values: dict[str, Any], now: float, found: Restored) -> JobRow:
    """The row of a job; a time of creation that cannot be read is replaced."""
    try:
        return read_row("jobs", values)  # type: ignore[no-any-return]  # of its table
    except RowError as error:
        row: JobRow = read_row("jobs", {**values, "created": now})  # with a bad name: raises again
        found.bad.append(BadRow("jobs", values, str(error), repair={"created": now}))
        return row


class _JobReader:
    """Reads the rows of one job; `bad` collects those that cannot be read."""

    def __init__(self, connection: sqlite3.Connection, number: int, bad: list[BadRow]) -> None:
        self._connection = connection
        self._number = number
        self._bad = bad

    def read(self, row: JobRow, make_attempt: MakeAttempt, now: float) -> Job | None:
        """The job; None if none of its rows is of a run."""
        last = self._last_attempt()
        if last is None:
            return None
        job = Job(name=row.name, created=row.created, num_attempts=last.number)
        job.attempt = make_attempt(job, last.world, last.launch, last.agent_attempt, now)
        job.attempt.reason, job.attempt.start_step, job.attempt.proof = last.reason, last.start_step, last.proof
        described = Hello(job=job.name, rank=0, world=last.world, host="", pid=0, incarnation="")
        for described in self._rows("descriptions", "ORDER BY attempt DESC LIMIT 1"):
            job.describe(described)
        job.attempt.engine.part = job.parts[0].name if job.parts else ""
        self._restore_members(job, job.attempt, described, is_over=bool(last.is_over))
        job.attempt.is_over = bool(last.is_over) or job.has_ended
        self._restore_steps(job, job.attempt)
        self._restore_samples(job, job.attempt)
        kept = list(self._incidents())
        episodes = list(self._episodes({id_ for ids, _ in kept for id_ in ids}))
        job.episodes.restore(episodes)
        (newest,) = self._first("SELECT max(number) FROM incidents WHERE job = ?")
        num_opened = newest if isinstance(newest, int) else 0
        job.incidents.restore(_with_episodes(kept, episodes), episodes, num_opened=num_opened)
        try:
            job.attempt.engine.resume()
        except Exception:  # the rules then learn their baselines anew
            logger.exception("job %s: what its rules had found cannot be continued", job.name)
        self._restore_totals(job)
        events = "id IN (SELECT id FROM events WHERE job = ?1 ORDER BY id DESC LIMIT ?2) ORDER BY id"
        job.events.extend(self._rows("events", f"AND {events}", RECENT_EVENTS))
        _restore_regimes(job, job.attempt)
        decisions = "number IN (SELECT number FROM decisions WHERE job = ?1 ORDER BY number DESC LIMIT ?2)"
        made = list(self._rows("decisions", f"AND {decisions} ORDER BY number", MAX_DECISIONS))
        job.rollback.restore(made, last.number, bad_spans.unsolved(job))
        job.rollback.ledger.restore(self._rows("ledger", "ORDER BY time"))
        return job

    def _first(self, query: str, *values: Any) -> tuple[Any, ...]:
        row = self._connection.execute(query, (self._number, *values)).fetchone()
        return tuple(row)

    def _rows(self, table: str, rest: str = "", *values: Any) -> Iterator[Any]:
        """The job's readable rows of a table; ?1 in `rest` is the job."""
        columns = tuple(dict.fromkeys((*KEYS[table], *ROWS[table].__struct_fields__)))
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return  # a journal of an earlier version that is only read
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE job = ?1 {rest}"  # noqa: S608 - constants
        for row in self._connection.execute(query, (self._number, *values)).fetchall():
            found = dict(zip(columns, row, strict=True))
            try:
                yield read_row(table, found)
            except RowError as error:
                self._bad.append(BadRow(table, found, str(error)))

    def _last_attempt(self) -> AttemptRow | None:
        """The last attempt; where its row cannot be read, one made from the job's other rows."""
        rows: list[AttemptRow] = list(self._rows("attempts", "ORDER BY number"))
        (of_steps,) = self._first("SELECT max(attempt) FROM steps WHERE job = ?")
        (of_members,) = self._first("SELECT max(attempt) FROM members WHERE job = ?")
        (top,) = self._first("SELECT max(rank) FROM members WHERE job = ? AND attempt = ?", of_members)
        numbers = [n for n in (of_steps, of_members, *(row.number for row in rows)) if isinstance(n, int) and n > 0]
        if not numbers:
            return None
        number = max(numbers)
        known = rows[-1] if rows else None
        if known is not None and known.number == number:
            return known
        world = top + 1 if isinstance(top, int) and top >= 0 else known.world if known is not None else 1
        return AttemptRow(number=number, began=0.0, world=world, launch="", agent_attempt=0, reason="", start_step=0)

    def _restore_members(self, job: Job, attempt: Attempt, described: Hello, *, is_over: bool) -> None:
        """The ranks, with what one of them said for all; those without a Bye had vanished, if the attempt was over."""
        rows: Iterator[MemberRow] = self._rows("members", "AND attempt = ?2", attempt.number)
        for row in rows:
            hello = msgspec.structs.replace(
                described,
                job=job.name,
                rank=row.rank,
                world=attempt.world,
                host=row.host,
                pid=row.pid,
                incarnation=row.incarnation,
                launch=attempt.launch,
                attempt=attempt.agent_attempt,
                proof="",
            )
            was_live = row.state in ("live", "expected")  # it is live again once it reports
            member = Member(
                hello=hello,
                last_seen=row.last_seen,
                state="expected" if was_live else row.state,
                step=row.step,
                error=row.error,
                is_gone=was_live and is_over,
            )
            attempt.put(member)

    def _restore_steps(self, job: Job, attempt: Attempt) -> None:
        steps = list(self._rows("steps", "ORDER BY attempt DESC, step DESC LIMIT ?2", RECENT_STEPS))
        steps = self._with_named(job, self._with_parts(job, steps))
        job.recent.extend(reversed(steps))
        if steps and steps[0].attempt == attempt.number:
            attempt.aligner.last_closed = steps[0].step

    def _restore_samples(self, job: Job, attempt: Attempt) -> None:
        """What sampled steps showed; the last of them stands for the newest step until a rank reports again."""
        facts = list(self._rows("sample_facts", "ORDER BY attempt DESC, step DESC LIMIT ?2", RECENT_SAMPLES))
        job.samples.extend(reversed(facts))
        for number, reports in self._rows("last_reports"):
            if number == attempt.number and reports:
                step = min(report.step for report in reports.values())
                job.last = job.last_sampled = combine(
                    reports,
                    attempt=number,
                    step=step,
                    world=attempt.world,
                    layers=job.layers,
                    main_group=job.main_group,
                )

    def _with_parts(self, job: Job, steps: list[StepSummary]) -> list[StepSummary]:
        """The steps with the numbers of the job's parts."""
        if not job.parts or not steps:
            return steps
        first = (steps[-1].attempt, steps[-1].step)
        found: defaultdict[tuple[int, int], dict[str, PartNumbers]] = defaultdict(dict)
        for attempt, step, numbers in self._rows("part_steps", "AND (attempt, step) >= (?2, ?3)", *first):
            found[attempt, step][numbers.name] = numbers
        names = [part.name for part in job.parts]
        return [
            replace(step, parts=tuple(of_step[name] for name in names if name in of_step))
            if (of_step := found.get((step.attempt, step.step)))
            else step
            for step in steps
        ]

    def _with_named(self, job: Job, steps: list[StepSummary]) -> list[StepSummary]:
        """The steps with their named numbers, whose names get their places."""
        if not steps:
            return steps
        first = (steps[-1].attempt, steps[-1].step)
        found: defaultdict[tuple[int, int], list[NamedNumber]] = defaultdict(list)
        rows = list(self._rows("named_steps", "AND (attempt, step) >= (?2, ?3)", *first))
        job.named.restore(number for _, _, number in rows)
        for attempt, step, number in rows:
            if number.source != "validation":  # a validation is an event beside the step
                found[attempt, step].append(number)
        return [
            replace(step, named=in_order(of_step)) if (of_step := found.get((step.attempt, step.step))) else step
            for step in steps
        ]

    def _restore_totals(self, job: Job) -> None:
        """The job's totals; if the journal has none, they are counted from its rows."""
        totals: JobTotals | None = next(self._rows("totals"), None)
        if totals is None:
            num_steps, num_non_finite = self._first(
                f"SELECT count(*), coalesce(sum({IS_BAD}), 0) FROM steps WHERE job = ?"  # noqa: S608 - constants
            )
            found = Counter((episode.rule, str(episode.first.severity)) for episode in job.episodes)
            opened = self._connection.execute(
                "SELECT rule, count(*) FROM incidents WHERE job = ? AND typeof(rule) = 'text' GROUP BY rule",
                (self._number,),
            )
            totals = JobTotals(
                num_steps=num_steps,
                num_non_finite=int(num_non_finite),
                findings=tuple((*key, count) for key, count in found.items()),
                incidents=dict(opened.fetchall()),
            )
        totals.restore(job)

    def _episodes(self, members: set[int]) -> Iterator[Episode]:
        """The latest ones, all open ones, and those of kept incidents; oldest first."""
        return self._rows(
            "episodes",
            "AND (is_open OR id IN (SELECT value FROM json_each(?2)) "
            "OR id IN (SELECT id FROM episodes WHERE job = ?1 ORDER BY id DESC LIMIT ?3)) ORDER BY id",
            json.dumps(sorted(members)),
            MAX_EPISODES,
        )

    def _incidents(self) -> Iterator[tuple[list[int], Incident]]:
        """The latest ones and all open ones, with the ids of their episodes; oldest first."""
        return self._rows(
            "incidents",
            "AND (closed_time IS NULL OR number IN "
            "(SELECT number FROM incidents WHERE job = ?1 ORDER BY number DESC LIMIT ?2)) ORDER BY number",
            MAX_KEPT,
        )


def _with_episodes(kept: list[tuple[list[int], Incident]], episodes: list[Episode]) -> Iterator[Incident]:
    known = {episode.id: episode for episode in episodes}
    for ids, incident in kept:
        found = tuple(known[i] for i in ids if i in known)
        if found:  # else the retention has deleted its episodes
            yield msgspec.structs.replace(incident, episodes=found)


def _restore_regimes(job: Job, attempt: Attempt) -> None:
    """Replays the attempt's steps in memory, with the events declared before each."""
    attempt.regimes = RegimeTracker(is_resumed=attempt.number > 1 or attempt.start_step > 0)
    events = deque(sorted((e for e in job.events if e.attempt == attempt.number), key=lambda event: event.step))
    for step in (summary for summary in job.recent if summary.attempt == attempt.number):
        before = []
        while events and events[0].step < step.step:
            before.append(events.popleft())
        attempt.regimes.observe(lr=step.lr, num_samples=step.num_samples, step_seconds=step.step_seconds, events=before)
