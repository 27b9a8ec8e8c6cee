"""Plays a log through the same rules that watch a live run, row by row.

Design
------
A logged row becomes an aligned step of one rank: what the log does not hold is not visible, so rules that need it
abstain. A validation in a row is known to the rules with that row. A step that goes back means that the run was
started again: a new attempt, with fresh rules, as live. The clock goes on by a second a row, since few logs tell the
time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.incidents.episodes import Episode, EpisodeLog
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.engine import Engine, RuleStats
from caboose_daemon.offline.replay.book import Book
from caboose_daemon.offline.replay.logs import Log
from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import PHASES, AlignedStep
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.steps.regimes import RegimeTracker
from caboose_daemon.steps.view import JobView
from caboose_wire import Event

NAN = float("nan")
PROGRESS_ROWS = 5000
_ONE = np.ones(1)
_NONE = np.full(1, np.nan)
_YES, _NO = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.bool_)
_NO_PHASES = np.full((1, len(PHASES)), np.nan)
_NO_LAYERS = np.zeros(0)
KNOWN = ("loss", "grad_norm", "lr", "val_loss", "step_seconds", "data_seconds")


@dataclass
class Judged:
    """What the rules made of one log."""

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
class Row:
    """One logged row; None where a column has a gap."""

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float | None
    val_loss: float | None
    step_seconds: float | None
    data_seconds: float | None
    metrics: Mapping[str, float]


def play(
    log: Log,
    configs: Mapping[str, RuleConfig],
    on_progress: Callable[[int], None] | None = None,
    *,
    rules: Sequence[type[AnyRule]] = RULES,
) -> Judged:
    """Everything the rules would have said; `on_progress` is told the number of rows so far, now and then."""
    judged = Judged(file=log.file, num_points=len(log.steps))
    visible = _visible(log)
    episodes = EpisodeLog()
    book = Book(log.file, gap=_typical_gap(log))
    attempt, last_step = 0, -1
    engine, regimes = Engine(rules, configs, judged.stats), RegimeTracker()
    for number, row in enumerate(rows(log)):
        if row.step < last_step or number in log.restarts or not attempt:
            attempt += 1
            ended = episodes.close_all()
            _keep(judged, ended)
            is_resumed = attempt > 1 or row.step > max(1, 2 * _typical_gap(log))
            engine, regimes = Engine(rules, configs, judged.stats), RegimeTracker(is_resumed=is_resumed)
            book.begin(ended, attempt, engine)
        last_step = row.step
        now = float(number)
        step = _aligned(row, attempt, now)
        events = _events(row, now, log.events.get(number, ()))
        view = JobView(
            job=log.file,
            attempt=attempt,
            world=1,
            now=now,
            attempt_began=0.0,
            look_at_ranks=dict,
            layers=(),
            groups=(),
            visible=visible,
            step=step,
            events=events,
            regime=regimes.observe(lr=row.lr, num_samples=None, step_seconds=row.step_seconds, events=events),
        )
        book.add(_summary(row, attempt, now), view)
        changed: dict[int, Episode] = {}
        for finding in engine.run(view, "step"):
            if finding.severity is not Severity.INFO:
                judged.findings.append(finding)
            for episode in episodes.add(finding, attempt, now):
                changed[episode.id] = episode
        if changed:
            _keep(judged, [e for e in changed.values() if not e.is_open])
            book.take(changed.values())
        if on_progress is not None and not number % PROGRESS_ROWS:
            on_progress(number)
    _keep(judged, episodes.open)
    judged.episodes.sort(key=lambda episode: episode.id)
    judged.incidents = book.finish()
    return judged


def _keep(judged: Judged, episodes: "Iterator[Episode] | list[Episode]") -> None:
    judged.episodes.extend(episodes)


def _visible(log: Log) -> frozenset[str]:
    names = {"loss": "loss", "grad_norm": "gradients", "lr": "lr", "step_seconds": "phases"}
    return frozenset(visible for name, visible in names.items() if name in log.columns)


def _typical_gap(log: Log) -> int:
    gaps = np.diff(log.steps[:1000])
    return int(np.median(gaps)) if len(gaps) else 1


def rows(log: Log) -> Iterator[Row]:
    """The log row by row, as plain numbers."""
    columns = [_plain(log, name) for name in KNOWN]
    others = {name: _plain(log, name) for name in log.columns if name not in KNOWN}
    nothing: dict[str, float] = {}
    for i, (step, loss, norm, lr, val, total, data) in enumerate(zip(log.steps.tolist(), *columns, strict=True)):
        metrics = {name: v for name, c in others.items() if (v := c[i]) is not None} if others else nothing
        yield Row(step, loss, norm, lr, val, total, data, metrics)


def _plain(log: Log, name: str) -> list[float | None]:
    column = log.columns.get(name)
    if column is None:
        return [None] * len(log.steps)
    values: list[float | None] = column.values.tolist()
    if column.is_logged.all():
        return values
    return [v if has else None for v, has in zip(values, column.is_logged.tolist(), strict=True)]


def _aligned(row: Row, attempt: int, now: float) -> AlignedStep:
    has_loss = row.loss is not None
    return AlignedStep(
        attempt=attempt,
        step=row.step,
        model_step=row.step,
        time=now,
        world=1,
        present=_YES,
        has_loss=_YES if has_loss else _NO,
        loss=np.array([row.loss]) if has_loss else _NONE,
        mean_loss=row.loss if row.loss is not None else NAN,
        is_loss_known=has_loss,
        weight=_ONE,
        lr=() if row.lr is None else (row.lr,),
        phases=_NO_PHASES if row.step_seconds is None else _phases(row.step_seconds, row.data_seconds),
        rank_grad_norm=_NONE,
        local_grad_norm=_NONE,
        agent_seconds=_NONE,
        num_dropped=0,
        grad_norm=NAN if row.grad_norm is None else row.grad_norm,
        has_grad_norm=row.grad_norm is not None,
        layer_grad_norm=_NO_LAYERS,
        metrics=row.metrics,
    )


def _summary(row: Row, attempt: int, now: float) -> StepSummary:
    loss = row.loss
    return StepSummary(
        attempt, row.step, now, loss, loss, loss, row.grad_norm, row.lr, row.step_seconds, row.data_seconds, None, 1
    )


def _phases(total: float, data: float | None) -> NDArray[np.float64]:
    phases = _NO_PHASES.copy()
    phases[0, PHASES.index("total")] = total
    phases[0, PHASES.index("data")] = np.nan if data is None else data
    return phases


def _events(row: Row, now: float, declared: tuple[Event, ...]) -> tuple[Event, ...]:
    if row.val_loss is None:
        return declared
    validation = Event(attempt=0, step=max(row.step, 0), time=now, kind="validation", fields={"loss": row.val_loss})
    return (*declared, validation)
