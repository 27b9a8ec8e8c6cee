"""Plays a log through the pipeline that watches a live run, row by row.

Design
------
A logged row becomes an aligned step of one rank, which the daemon's own `Pipeline` judges. What the log does not hold
is not visible, so rules that need it abstain. Rules see a validation with the row it is logged in. A step number that
decreases means that the run was started again: a new attempt. The clock advances by a second per row, since few logs
have times. The number of losses is known from the first row on (see `hindsight`).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.engine import RuleStats
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.offline.replay.logs import Log
from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.hindsight import LOSSES
from caboose_daemon.rules.parts.metric_names import is_of_evaluation
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import PHASES, AlignedStep
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.steps.masked import NO_LAYERS
from caboose_daemon.steps.regimes import RegimeTracker
from caboose_wire import Event, Group, Hello
from caboose_wire.fields import Scalar

PROGRESS_ROWS = 5000
MAX_CARRIED = 8
"""Rows in a row that may repeat a validation loss before they count as evaluations."""
_ONE = np.ones(1)
_NONE = np.zeros(1)
_YES, _NO = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.bool_)
_NO_PHASES = np.zeros((1, len(PHASES))), np.zeros((1, len(PHASES)), dtype=np.bool_)
KNOWN = ("loss", "grad_norm", "lr", "val_loss", "step_seconds", "data_seconds")


@dataclass
class Judged:
    """What the rules found in one log."""

    file: str
    num_points: int
    episodes: list[Episode] = field(default_factory=list)
    """In the order of their detection; those of severity info are among them."""
    findings: list[Finding] = field(default_factory=list)
    """Every finding above info, step by step."""
    stats: dict[str, RuleStats] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    """In the order in which they opened, each with its diagnosis."""


@dataclass(slots=True)
class LogRow:
    """One logged row; None where a column has a gap."""

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float | None
    val_loss: float | None
    step_seconds: float | None
    data_seconds: float | None
    metrics: Mapping[str, float]


class Collector(Sink):
    """A sink that keeps all findings above info, and every episode and incident as it was last."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.episodes: dict[int, Episode] = {}
        self.incidents: dict[int, Incident] = {}

    def episode_changed(self, job: Job, episode: Episode) -> None:
        """Where the number of its findings has grown, the last one is new."""
        before = self.episodes.get(episode.id)
        if before is None or before.num_findings < episode.num_findings:
            self._keep(episode.last)
        self.episodes[episode.id] = episode

    def _keep(self, finding: Finding) -> None:
        if finding.severity is not Severity.INFO:
            self.findings.append(finding)

    def incident_changed(self, job: Job, incident: Incident) -> None:
        self.incidents[incident.number] = incident


def play(
    log: Log,
    configs: Mapping[str, RuleConfig],
    on_progress: Callable[[int], None] | None = None,
    *,
    rules: Sequence[type[AnyRule]] = RULES,
) -> Judged:
    """Everything the rules find in a log; `on_progress` gets the number of rows so far, every `PROGRESS_ROWS`."""
    state, found = State(rule_configs=configs, started=0.0, rules=rules), Collector()
    pipeline = Pipeline(state, found)
    gap = _typical_gap(log)
    job = Job(log.file, created=0.0, gap=gap, is_live=False, visible=_visible(log))
    hello = Hello(job=log.file, rank=0, world=1, host="", pid=0, incarnation="log")
    lengths = _attempts(log)
    carried = Carried()
    for number, row in enumerate(rows(log)):
        now = float(number)
        if number in lengths:
            pipeline.begin_attempt(job, hello, now - 1.0)  # what was open ended with the row before
            job.facts = {**job.facts, LOSSES: lengths[number]}
            _configure(job, log)
            assert job.attempt is not None, "it has just begun"
            job.attempt.regimes = RegimeTracker(is_resumed=job.num_attempts > 1 or row.step > max(1, 2 * gap))
        events = _events(row, now, log.events.get(number, ()), is_carried=carried.judge(row.val_loss))
        job.events.extend(events)
        attempt = job.num_attempts
        pipeline.judge(
            job, _aligned(row, attempt, now, is_from_journal=log.is_stepwise), _summary(row, attempt, now), events, now
        )
        if on_progress is not None and not number % PROGRESS_ROWS:
            on_progress(number)
    pipeline.review(job)
    return Judged(
        file=log.file,
        num_points=len(log.steps),
        episodes=[found.episodes[number] for number in sorted(found.episodes)],
        findings=found.findings,
        stats=state.rule_stats,
        incidents=[found.incidents[number] for number in sorted(found.incidents)],
    )


def _configure(job: Job, log: Log) -> None:
    """What files beside the log say of the run."""
    if log.settings:
        job.config = dict(log.settings)
        optimizer = log.settings.get("optimizer")
        job.groups = (Group("all", optimizer if isinstance(optimizer, str) else "", job.config),)


def _attempts(log: Log) -> dict[int, int]:
    """The first row of each attempt, and its number of rows with a loss."""
    again = np.flatnonzero(np.diff(log.steps) < 0) + 1
    starts = sorted({0, *again.tolist(), *log.restarts} & set(range(len(log.steps))))
    loss = log.columns.get("loss")
    has_loss = np.zeros(len(log.steps), dtype=np.bool_) if loss is None else loss.is_logged
    pairs = itertools.pairwise([*starts, len(log.steps)])
    return {start: int(np.count_nonzero(has_loss[start:end])) for start, end in pairs}


def _visible(log: Log) -> frozenset[str]:
    names = {"loss": "loss", "grad_norm": "gradients", "lr": "lr", "step_seconds": "phases"}
    return frozenset(visible for name, visible in names.items() if name in log.columns)


def _typical_gap(log: Log) -> int:
    gaps = np.diff(log.steps[:1000])
    return int(np.median(gaps)) if len(gaps) else 1


def rows(log: Log) -> Iterator[LogRow]:
    """The log row by row, as plain numbers."""
    columns = [_plain(log, name) for name in KNOWN]
    others = {name: _plain(log, name) for name in log.columns if name not in KNOWN}
    nothing: dict[str, float] = {}
    for i, (step, loss, norm, lr, val, total, data) in enumerate(zip(log.steps.tolist(), *columns, strict=True)):
        metrics = {name: v for name, c in others.items() if (v := c[i]) is not None} if others else nothing
        yield LogRow(step, loss, norm, lr, val, total, data, metrics)


def _plain(log: Log, name: str) -> list[float | None]:
    column = log.columns.get(name)
    if column is None:
        return [None] * len(log.steps)
    values: list[float | None] = column.values.tolist()
    if column.is_logged.all():
        return values
    return [v if has else None for v, has in zip(values, column.is_logged.tolist(), strict=True)]


def _aligned(row: LogRow, attempt: int, now: float, *, is_from_journal: bool) -> AlignedStep:
    has_loss = row.loss is not None
    phases, has_phases = _NO_PHASES if row.step_seconds is None else _phases(row.step_seconds, row.data_seconds)
    return AlignedStep(
        attempt=attempt,
        step=row.step,
        model_step=row.step,
        time=now,
        world=1,
        present=_YES,
        has_loss=_YES if has_loss else _NO,
        loss=np.array([row.loss]) if has_loss else _NONE,
        mean_loss=row.loss,
        weight=_ONE,
        lr=() if row.lr is None else (row.lr,),
        phases=phases,
        has_phases=has_phases,
        has_local_grad_norm=_NO,
        local_grad_norm=_NONE,
        agent_seconds=_NONE,
        num_dropped=0,
        grad_norm=row.grad_norm,
        layer_grad_norm=NO_LAYERS,
        metrics=row.metrics,
        is_from_journal=is_from_journal,
    )


def _summary(row: LogRow, attempt: int, now: float) -> StepSummary:
    """The same numbers as `summarize` gives, at a tenth of its cost: half a million rows are common."""
    loss = row.loss
    return StepSummary(
        attempt=attempt,
        step=row.step,
        time=now,
        loss=loss,
        loss_min=loss,
        loss_max=loss,
        grad_norm=row.grad_norm,
        lr=row.lr,
        step_seconds=row.step_seconds,
        data_seconds=row.data_seconds,
        agent_seconds=None,
        num_ranks=1,
    )


def _phases(total: float, data: float | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    phases, seen = _NO_PHASES[0].copy(), _NO_PHASES[1].copy()
    for name, seconds in (("total", total), ("data", data)):
        if seconds is not None and math.isfinite(seconds):
            phases[0, PHASES.index(name)] = seconds
            seen[0, PHASES.index(name)] = True
    return phases, seen


class Carried:
    """Whether a row's validation loss is the one before, carried forward.

    Some loggers write the last validation loss into every row. Such a row is no evaluation. A value that is repeated
    far longer than any before is one: it does not move although the weights do. With gaps between them, all are
    evaluations.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._num = 0
        self._longest = 0
        """The most repetitions that ended with another value."""

    def judge(self, value: float | None) -> bool:
        """Takes the next row's value."""
        is_same = value is not None and value == self._last
        if not is_same:
            self._longest = max(self._longest, self._num)
        self._num = self._num + 1 if is_same else 0
        self._last = value
        return is_same and self._num <= max(MAX_CARRIED, 2 * self._longest)


def _events(row: LogRow, now: float, declared: tuple[Event, ...], *, is_carried: bool) -> tuple[Event, ...]:
    if row.val_loss is None or is_carried:
        return declared
    scores = {name: value for name, value in row.metrics.items() if is_of_evaluation(name)}
    fields: dict[str, Scalar] = {**scores, "loss": row.val_loss}
    return (*declared, Event(attempt=0, step=max(row.step, 0), time=now, kind="validation", fields=fields))
