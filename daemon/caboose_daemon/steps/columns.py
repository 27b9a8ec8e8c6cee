"""The table of a step's numbers: the one place where a per-step number is defined.

Design
------
A number is one field of `StepSummary` (one value per step, over all ranks), of `PartNumbers` (the same of one model,
where a job trains several) or of `RankNumbers` (the latest value of one rank). Its `_column` gives the unit, how it is
read, how a curve condenses neighbouring steps, and the names under which metrics and mirrors show it. The journal's
table, the JSON of the API and of the live stream, the curves, the metrics and the mirrors are derived from the table,
so none of them lists the numbers again. CONTRIBUTING.md adds one as an example.

None means that a number was not reported. NaN means that NaN was reported. SQLite stores NaN as NULL, so a number that
can be NaN has a bit of its own in the column `bad` of the journal (`nan_bit`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints

import numpy as np

from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.named import NamedNumber
from caboose_daemon.steps.parts import PartStep
from caboose_wire import Heartbeat, StepReport

Scope = Literal["job", "part", "group", "rank", "layer"]
"""What a number belongs to: the whole job, a named part of it, a parameter group, a rank, a layer."""
Worst = Literal["high", "low", "apart"]
"""Which ranks are the worst by a number: the highest, the lowest, or those far from the others."""
Aggregate = Literal["avg", "min", "max"]


@dataclass(frozen=True, kw_only=True)
class CurveSpec:
    """How a curve condenses the steps of one bucket. The first aggregate has the number's name, others add a suffix."""

    aggregates: tuple[Aggregate, ...] = ("avg",)
    is_finite_only: bool = False
    """Whether infinities are left out, so that one bad step does not hide its bucket."""
    fallback: str = ""
    """The number that is used at steps where this one is unknown."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One number."""

    name: str
    scope: Scope
    kind: type[int] | type[float]
    is_required: bool
    """Whether it is known at every step."""
    label: str
    unit: str = ""
    """seconds, bytes, ratio, or empty for a plain number."""
    of: Callable[[Any], float | int | None]
    """Reads it from an AlignedStep; of a rank, from a StepReport or a Heartbeat."""
    curve: CurveSpec | None = None
    nan_bit: int = 0
    metric: str = ""
    stat: str = ""
    """The metric's label `stat`, where several numbers share one metric."""
    is_held: bool = False
    """Whether the last known value counts while a message has none."""
    mirror: str = ""
    """Its name in TensorBoard and W&B; empty where it is not mirrored."""
    worst: Worst = "high"
    help: str = ""
    """The metric's HELP line."""
    tells: str = ""
    """What the metric is for, in docs/metrics.md."""
    is_from_heartbeat: bool = False

    @property
    def sql_type(self) -> str:
        return f"{'INTEGER' if self.kind is int else 'REAL'}{' NOT NULL' if self.is_required else ''}"


def _column(label: str, of: Callable[[Any], Any], *, default: Any = MISSING, **options: Any) -> Any:
    metadata = {"column": {"label": label, "of": of, **options}}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _phase(name: str) -> Callable[[AlignedStep], float | None]:
    return lambda step: step.phase_seconds(name)


def _own_seconds(report: StepReport) -> float | None:
    """The step's time without waiting for other ranks; None where the waiting is not known."""
    phases = report.phases
    if phases is None:
        return None
    return _finite(phases.total - phases.forward_wait - phases.backward_wait)


def _finite_losses(step: AlignedStep) -> Any:
    losses = step.loss[step.has_loss]
    return losses[np.isfinite(losses)]


def _lowest_loss(step: AlignedStep) -> float | None:
    finite = _finite_losses(step)
    return float(finite.min()) if len(finite) else None


def _highest_loss(step: AlignedStep) -> float | None:
    finite = _finite_losses(step)
    return float(finite.max()) if len(finite) else None


def _agent_seconds(step: AlignedStep) -> float | None:
    seconds = step.agent_seconds[step.present]
    finite = seconds[np.isfinite(seconds)]
    return float(finite.mean()) if len(finite) else None


def _device_bytes(step: AlignedStep) -> int | None:
    used = [report.device_bytes for report in step.reports.values() if report.device_bytes is not None]
    return max(used, default=None)


FINITE = CurveSpec(aggregates=("avg", "min", "max"), is_finite_only=True)


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One aligned step in a few numbers: kept in memory, written to the journal, and drawn."""

    attempt: int = _column("Attempt", lambda s: s.attempt)
    step: int = _column("Step", lambda s: s.step, metric="caboose_job_step")
    time: float = _column("Time", lambda s: s.time, unit="seconds")
    loss: float | None = _column(
        "Loss",
        lambda s: s.mean_loss,
        curve=CurveSpec(is_finite_only=True),
        nan_bit=1,
        metric="caboose_loss",
        stat="mean",
        mirror="loss/mean",
    )
    loss_min: float | None = _column(
        "Lowest loss of a rank",
        _lowest_loss,
        curve=CurveSpec(aggregates=("min",), fallback="loss"),
        metric="caboose_loss",
        stat="min",
        mirror="loss/min",
    )
    loss_max: float | None = _column(
        "Highest loss of a rank",
        _highest_loss,
        curve=CurveSpec(aggregates=("max",), fallback="loss"),
        metric="caboose_loss",
        stat="max",
        mirror="loss/max",
    )
    grad_norm: float | None = _column(
        "Gradient norm",
        lambda s: s.grad_norm,
        curve=FINITE,
        nan_bit=2,
        metric="caboose_gradient_norm",
        is_held=True,
        mirror="gradient/norm",
    )
    lr: float | None = _column(
        "Learning rate of the largest group",
        lambda s: _finite(s.main_lr),
        curve=CurveSpec(aggregates=("max",)),
    )
    step_seconds: float | None = _column(
        "Step time",
        _phase("total"),
        unit="seconds",
        curve=CurveSpec(aggregates=("avg", "max")),
        mirror="speed/step_seconds",
    )
    data_seconds: float | None = _column(
        "Wait for data", _phase("data"), unit="seconds", curve=CurveSpec(), mirror="speed/data_seconds"
    )
    agent_seconds: float | None = _column(
        "Agent's time",
        _agent_seconds,
        unit="seconds",
        curve=CurveSpec(),
        metric="caboose_agent_step_seconds",
        mirror="speed/agent_seconds",
    )
    num_ranks: int = _column("Ranks that reported", lambda s: s.num_present, mirror="ranks/reporting")
    forward_seconds: float | None = _column(
        "Forward", _phase("forward"), unit="seconds", curve=CurveSpec(), mirror="speed/forward_seconds", default=None
    )
    backward_seconds: float | None = _column(
        "Backward", _phase("backward"), unit="seconds", curve=CurveSpec(), mirror="speed/backward_seconds", default=None
    )
    optimizer_seconds: float | None = _column(
        "Optimizer",
        _phase("optimizer"),
        unit="seconds",
        curve=CurveSpec(),
        mirror="speed/optimizer_seconds",
        default=None,
    )
    loss_seconds: float | None = _column(
        "Between forward and backward",
        _phase("loss"),
        unit="seconds",
        curve=CurveSpec(),
        mirror="speed/loss_seconds",
        default=None,
    )
    num_samples: int | None = _column("Samples of all ranks", lambda s: s.num_samples, default=None)
    num_tokens: int | None = _column("Tokens of all ranks", lambda s: s.num_tokens, default=None)
    device_bytes: int | None = _column(
        "Device memory, highest rank",
        _device_bytes,
        unit="bytes",
        curve=CurveSpec(aggregates=("max",)),
        mirror="memory/device_bytes_max",
        default=None,
    )

    parts: "tuple[PartNumbers, ...]" = ()
    """Of a job with several models, in their order."""
    named: tuple[NamedNumber, ...] = ()
    """The user's metrics, and the rates and norms of several parameter groups."""

    def part(self, name: str) -> "PartNumbers | None":
        """The numbers of one part; None where the step has none."""
        return next((each for each in self.parts if each.name == name), None)

    def of_part(self, name: str) -> "StepSummary | None":
        """The step with the loss, norm and learning rate of one part in place of the job's."""
        part = self.part(name)
        if part is None:
            return None
        return replace(
            self, loss=part.loss, loss_min=part.loss, loss_max=part.loss, grad_norm=part.grad_norm, lr=part.lr
        )

    @property
    def samples_per_second(self) -> float | None:
        return self._rate(self.num_samples)

    @property
    def tokens_per_second(self) -> float | None:
        return self._rate(self.num_tokens)

    def _rate(self, count: int | None) -> float | None:
        return count / self.step_seconds if count is not None and self.step_seconds else None


RATES = {"samples_per_second": "num_samples", "tokens_per_second": "num_tokens"}
"""Properties of StepSummary that divide a count by the step time."""


@dataclass(frozen=True, slots=True)
class PartNumbers:
    """One part of one aligned step: a model, where a job trains several."""

    name: str
    loss: float | None = _column(
        "Loss",
        lambda s: s.mean_loss,
        curve=CurveSpec(is_finite_only=True),
        nan_bit=1,
        metric="caboose_part_loss",
        is_held=True,
        help="Loss of one part of a job with several models, mean over ranks, at the last step that had one",
        tells="A GAN's losses balance each other and need not fall. NaN in one part names where a break began.",
        default=None,
    )
    grad_norm: float | None = _column(
        "Gradient norm",
        lambda s: s.grad_norm,
        curve=FINITE,
        nan_bit=2,
        metric="caboose_part_gradient_norm",
        is_held=True,
        help="L2 norm of the gradient of one part of a job with several models, before clipping",
        tells="Stable is normal. One part far above the others for long: that one drives the training.",
        default=None,
    )
    lr: float | None = _column(
        "Learning rate of the largest group",
        lambda s: _finite(s.main_lr),
        curve=CurveSpec(aggregates=("max",)),
        metric="caboose_part_learning_rate",
        help="Learning rate of the largest parameter group of one part",
        tells="Follows the schedule of that part.",
        default=None,
    )


@dataclass(slots=True)
class RankNumbers:
    """The latest numbers of one rank."""

    loss: float | None = _column(
        "Loss",
        lambda report: report.loss,
        metric="caboose_rank_loss",
        worst="apart",
        help="Loss of one rank in its last report",
        tells="Close to the other ranks is normal. One rank apart: check its data.",
        default=None,
    )
    step_seconds: float | None = _column(
        "Step time",
        lambda report: report.phases.total if report.phases else None,
        unit="seconds",
        metric="caboose_rank_step_seconds",
        is_held=True,
        help="Duration of the last step of one rank that was timed",
        tells="Similar on all ranks, because all wait for the slowest; the rule straggler names that rank.",
        default=None,
    )
    own_seconds: float | None = _column(
        "Own time",
        _own_seconds,
        unit="seconds",
        metric="caboose_rank_own_seconds",
        worst="high",
        is_held=True,
        help="Time of the last timed step in which one rank did not wait for others",
        tells="Similar on all ranks in a healthy job. All wait for the rank with the highest. None for one process.",
        default=None,
    )
    device_utilization: float | None = _column(
        "Device busy",
        lambda heartbeat: heartbeat.utilization,
        unit="ratio",
        metric="caboose_rank_device_utilization_ratio",
        worst="low",
        help="Share of the last sampling period in which one rank's device was busy",
        tells="Near 1 on a healthy GPU job. Low on all ranks: data or network limit the job. No series on a CPU.",
        is_from_heartbeat=True,
        default=None,
    )
    device_bytes: int | None = _column(
        "Device memory",
        lambda report: report.device_bytes,
        unit="bytes",
        metric="caboose_rank_device_memory_bytes",
        is_held=True,
        help="Device memory that one rank had allocated at its last sampled step",
        tells="Flat in a healthy run. Growing: tensors are kept from step to step. No series on a CPU.",
        default=None,
    )

    def take_report(self, report: StepReport) -> None:
        for column in _OF_REPORTS:
            value = column.of(report)
            if value is not None or not column.is_held:
                setattr(self, column.name, value)

    def take_heartbeat(self, heartbeat: Heartbeat) -> None:
        for column in _OF_HEARTBEATS:
            value = column.of(heartbeat)
            if value is not None or not column.is_held:
                setattr(self, column.name, value)


def _columns(table: type, scope: Scope) -> tuple[Column, ...]:
    hints = get_type_hints(table)
    found = []
    for each in fields(table):
        if "column" not in each.metadata:
            continue
        kinds = get_args(hints[each.name]) or (hints[each.name],)
        found.append(
            Column(
                name=each.name,
                scope=scope,
                kind=kinds[0],
                is_required=type(None) not in kinds,
                **each.metadata["column"],
            )
        )
    return tuple(found)


STEP_COLUMNS = _columns(StepSummary, "job")
PART_COLUMNS = _columns(PartNumbers, "part")
RANK_COLUMNS = _columns(RankNumbers, "rank")
_OF_REPORTS = tuple(column for column in RANK_COLUMNS if not column.is_from_heartbeat)
_OF_HEARTBEATS = tuple(column for column in RANK_COLUMNS if column.is_from_heartbeat)


def summarize(step: AlignedStep, parts: Sequence[PartStep] = (), named: tuple[NamedNumber, ...] = ()) -> StepSummary:
    """An aligned step, reduced over its ranks; with `parts` also as each of them sees it."""
    values: dict[str, Any] = {column.name: column.of(step) for column in STEP_COLUMNS}
    numbers = tuple(PartNumbers(each.part.name, **{c.name: c.of(each) for c in PART_COLUMNS}) for each in parts)
    return StepSummary(**values, parts=numbers, named=named)
