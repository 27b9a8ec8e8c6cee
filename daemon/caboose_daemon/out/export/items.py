"""Items for the mirrors: steps and validations, selected on the loop's thread, converted to names and numbers later.

Design
------
A step is a handful of numbers, and thousands may wait in a queue. All ranks' histograms of a sampled step may take
hundreds of megabytes, so a queued item only references them: of the items still waiting, the newest eight keep theirs,
and older ones lose them. They are merged on the mirror's thread.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.jobs.job import Job
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.columns import RATES, STEP_COLUMNS, StepSummary
from caboose_daemon.steps.masked import LayerValues, Masked
from caboose_daemon.steps.samples.latest import LatestSample
from caboose_daemon.steps.settings import as_numbers
from caboose_wire import Event, Layer, Module
from caboose_wire.messages import HISTOGRAM_BINS, HISTOGRAM_LOWEST

MAX_GROUPS = 8
MAX_METRICS = 32
MAX_PENDING = 8
MAX_TIMES = 1000
"""Maximum jobs whose last histogram time is kept."""
MAX_LAYERS = 32
"""Layers (and modules) with a histogram, evenly spread over the depth."""
SAMPLED_ELEMENTS = 512.0
"""Elements of an activation that an agent samples."""
NUM_BINS = HISTOGRAM_BINS - 1
"""Bins of a mirrored histogram: zeros, then the powers of two."""
EDGES = np.arange(HISTOGRAM_LOWEST - 1, HISTOGRAM_LOWEST + NUM_BINS, dtype=np.float64)
"""Edges of the bins, in powers of two; exact zeros are below the lowest."""
Floats = NDArray[np.float64]
LAYER_STATISTICS = {
    "weight_norm": "weight_norm",
    "update_ratio": "update_ratio",
    "activation_std": "activation_std",
    "activation_dead": "dead_units_ratio",
    "activation_saturated": "saturated_units_ratio",
    "router_entropy": "router_entropy_ratio",
    "router_dead": "router_dead_experts_ratio",
    "attention_logit": "attention_logit",
}
"""Sample statistics and their names in the metrics."""


class PendingHistograms:
    """The histograms of a sampled step; `step` is None once they are dropped."""

    def __init__(self, step: AlignedStep, layers: tuple[Layer, ...], modules: tuple[Module, ...]) -> None:
        self.step: AlignedStep | None = step
        self.layers = layers
        self.modules = modules


@dataclass(frozen=True)
class MirroredSample:
    """A sample of the layers."""

    layer_grad_norm: Masked
    latest: LatestSample | None
    histograms: PendingHistograms | None
    """None if not mirrored for this step."""
    names: tuple[str, ...] = ()
    """Of the layers."""


@dataclass(frozen=True)
class MirroredStep:
    """One step of a job."""

    job: str
    summary: StepSummary
    lr: Mapping[str, float]
    clip_ratio: float | None
    loss_scale: float | None
    metrics: Mapping[str, float]
    num_open: int
    noise_ratio: float | None = None
    replicas: tuple[int, int] | None = None
    """Number compared last, and number that differ; None if not compared."""
    sample: MirroredSample | None = None
    rewound_at: int | None = None
    """The boundary of the rollback that started this attempt, if any."""

    @property
    def values(self) -> dict[str, float]:
        """All known numbers, by their name in a mirror."""
        summary = self.summary
        known: dict[str, float | None] = {
            **{column.mirror: getattr(summary, column.name) for column in STEP_COLUMNS if column.mirror},
            "gradient/clip_ratio": self.clip_ratio,
            "gradient/loss_scale": self.loss_scale,
            "gradient/noise_ratio": self.noise_ratio,
            **{f"speed/{name}": getattr(summary, name) for name in RATES},
            "ranks/replicas_compared": None if self.replicas is None else float(self.replicas[0]),
            "ranks/replicas_differing": None if self.replicas is None else float(self.replicas[1]),
            "incidents/open": float(self.num_open),
            **{f"learning_rate/{name}": value for name, value in self.lr.items()},
            **{f"metrics/{name}": value for name, value in self.metrics.items()},
        }
        return {name: float(value) for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class Declared:
    """A validation's results."""

    job: str
    step: int
    time: float
    values: Mapping[str, float]


class Curves:
    """Selects the steps to mirror, and the samples to mirror as histograms."""

    def __init__(self, every_steps: int = 1, histogram_seconds: float | None = None) -> None:
        self._every = every_steps
        self._seconds = histogram_seconds
        self._histogram_times: dict[str, float] = {}
        self._pending: deque[PendingHistograms] = deque()

    def pick(self, job: Job, summary: StepSummary) -> MirroredStep | None:
        """The step for the mirrors; None if it is not mirrored."""
        step = job.last
        if step is None or step.step != summary.step:
            return None
        is_non_finite = summary.loss is not None and not math.isfinite(summary.loss)
        if summary.step % self._every and not step.is_sampled and not is_non_finite:
            return None
        names = [group.name for group in job.groups] or ["0"]
        attempt = job.attempt
        return MirroredStep(
            job=job.name,
            summary=summary,
            lr=dict(zip(names[:MAX_GROUPS], step.lr[:MAX_GROUPS], strict=False)),
            clip_ratio=step.clip_ratio,
            loss_scale=None if step.scaler is None else step.scaler.scale,
            metrics=dict(list(step.metrics.items())[:MAX_METRICS]),
            num_open=len(job.incidents.open),
            noise_ratio=job.meters.noise.ratio,
            replicas=job.meters.replicas,
            sample=self._sample(job, step) if step.is_sampled else None,
            rewound_at=attempt.start_step if attempt is not None and attempt.reason == "rollback" else None,
        )

    def _sample(self, job: Job, step: AlignedStep) -> MirroredSample:
        is_due = (
            self._seconds is not None and step.time - self._histogram_times.get(job.name, -math.inf) >= self._seconds
        )
        pending = None
        if is_due:
            self._histogram_times.pop(job.name, None)
            self._histogram_times[job.name] = step.time
            if len(self._histogram_times) > MAX_TIMES:
                del self._histogram_times[next(iter(self._histogram_times))]
            pending = PendingHistograms(step, job.layers, job.modules)
            self._pending.append(pending)
            if len(self._pending) > MAX_PENDING:
                self._pending.popleft().step = None
        names = tuple(layer.name for layer in job.layers)
        return MirroredSample(step.whole_layer_grad_norm, job.meters.latest, pending, names)


def pick(job: Job, event: Event) -> Declared | None:
    """The numbers of a validation; None for any other event."""
    if event.kind != "validation":
        return None
    numbers = as_numbers(event.fields)
    values = {f"validation/{name}": value for name, value in list(numbers.items())[:MAX_METRICS]}
    return Declared(job.name, event.step, event.time, values) if values else None


def layer_values(sample: MirroredSample) -> dict[str, float]:
    """Minimum, median and maximum over all layers of each per-layer statistic."""
    values: dict[str, float] = {}
    known: dict[str, Masked] = {"gradient_norm": sample.layer_grad_norm}
    if sample.latest is not None:
        of_both = {**sample.latest.layers, **sample.latest.modules}
        known |= {ours: of_both[theirs] for theirs, ours in LAYER_STATISTICS.items() if theirs in of_both}
    for name, found in known.items():
        seen = found.values[found.is_finite]
        if len(seen):
            values[f"layers/{name}_min"] = float(seen.min())
            values[f"layers/{name}_median"] = float(np.median(seen))
            values[f"layers/{name}_max"] = float(seen.max())
    return {**values, **_of_each_layer(sample)}


def _of_each_layer(sample: MirroredSample) -> dict[str, float]:
    """The gradient norm of each layer; of `MAX_LAYERS`, evenly spread over the depth, in a deep model."""
    norms, num = sample.layer_grad_norm, len(sample.names)
    if len(norms) < num:
        return {}
    places = {round(i * (num - 1) / (MAX_LAYERS - 1)) for i in range(MAX_LAYERS)} if num > MAX_LAYERS else range(num)
    return {f"grad_norm/{sample.names[i]}": float(norms.values[i]) for i in sorted(places) if norms.is_finite[i]}


def histograms(pending: PendingHistograms) -> dict[str, Floats] | None:
    """Elements in each bin of EDGES, by name; None if they were dropped."""
    step = pending.step
    if step is None:
        return None
    return {**dict(_of_layers(step, pending.layers)), **dict(_of_modules(step, pending.modules))}


def _of_layers(step: AlignedStep, layers: tuple[Layer, ...]) -> Iterator[tuple[str, Floats]]:
    names = [layer.name for layer in layers]
    sizes = np.array([layer.numel for layer in layers], dtype=np.float64)
    for array, kind in (("grad_histogram", "gradient_log2"), ("weight_histogram", "weight_log2")):
        merged = step.layer_values(array)
        if merged is not None and merged.values.ndim == 2 and len(merged) == len(names):
            yield from _rows(kind, names, merged, sizes)


def _of_modules(step: AlignedStep, modules: tuple[Module, ...]) -> Iterator[tuple[str, Floats]]:
    shares = _first(step, "activation_histogram")
    if shares is not None:
        names = [module.name for module in modules[: len(shares)]]
        yield from _rows("activation_log2", names, shares, np.full(len(names), SAMPLED_ELEMENTS))


def _rows(kind: str, names: list[str], found: Masked, sizes: Floats) -> Iterator[tuple[str, Floats]]:
    shares = found.values
    seen = [row for row in range(len(names)) if shares.shape[1] == HISTOGRAM_BINS and found.is_known[row]]
    chosen = np.unique(np.linspace(0, len(seen) - 1, min(len(seen), MAX_LAYERS)).round().astype(int))
    for row in (seen[place] for place in chosen):
        bins = np.concatenate([shares[row, NUM_BINS - 1 : NUM_BINS], shares[row, : NUM_BINS - 1]])
        counts = np.nan_to_num(np.clip(bins, 0.0, 1.0)) * sizes[row]
        if counts.any():
            yield f"{kind}/{names[row]}", counts


def _first(step: AlignedStep, name: str) -> Masked | None:
    """The values of the lowest rank that sampled: activations differ between ranks only by their data."""
    for rank in sorted(step.reports):
        values = step.reports[rank].arrays.get(name)
        if values is not None and values.ndim == 2 and len(values):
            return LayerValues.from_wire(np.asarray(values, dtype=np.float64))
    return None
