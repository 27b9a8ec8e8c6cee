"""One step with all its ranks side by side, reduced once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from caboose_wire import Layer, StepReport

Float64 = NDArray[np.float64]
PHASES = ("total", "data", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class AlignedStep:
    """What all ranks reported about one step. Arrays have one row per rank; NaN where `present` is False."""

    attempt: int
    step: int
    model_step: int
    time: float
    """Unix time at which the last rank passed the boundary."""
    world: int
    present: NDArray[np.bool_]
    has_loss: NDArray[np.bool_]
    loss: Float64
    weight: Float64
    """How much each rank's loss counts in the mean: its samples, or 1."""
    lr: tuple[float, ...]
    phases: Float64
    """ranks x phases, in seconds, in the order of PHASES."""
    rank_grad_norm: Float64
    local_grad_norm: Float64
    agent_seconds: Float64
    num_dropped: int
    grad_norm: float
    """Of the whole model, over all ranks; NaN also when no rank reported one (see `has_grad_norm`)."""
    has_grad_norm: bool
    layer_grad_norm: Float64
    """One value per layer over all ranks; -1 where the layer had no gradient, or nobody reported it."""
    local_layer_grad_norm: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    """By rank, on sampled steps: each layer's gradient before the all-reduce."""

    @property
    def num_present(self) -> int:
        """Ranks that reported this step."""
        return int(self.present.sum())

    @cached_property
    def mean_loss(self) -> float:
        """Mean over ranks, weighted by samples; NaN if any rank's loss is, None has no place here."""
        seen = self.has_loss
        if not seen.any():
            return float("nan")
        weight = self.weight[seen] if self.weight[seen].any() else np.ones(int(seen.sum()))
        with np.errstate(invalid="ignore", over="ignore"):
            return float(np.sum(self.loss[seen] * weight) / np.sum(weight))

    @cached_property
    def bad_loss_ranks(self) -> tuple[int, ...]:
        """Ranks whose loss is NaN or infinite."""
        return tuple(int(r) for r in np.flatnonzero(self.has_loss & ~np.isfinite(self.loss)))

    def phase_seconds(self, phase: str) -> float:
        """Mean over ranks of one phase; NaN if no rank saw it."""
        column = self.phases[:, PHASES.index(phase)]
        seen = column[np.isfinite(column)]
        return float(seen.mean()) if len(seen) else float("nan")


def combine(
    reports: Mapping[int, StepReport], *, attempt: int, step: int, world: int, layers: Sequence[Layer]
) -> AlignedStep:
    """The ranks' reports of one step, side by side."""
    rows = max(world, max(reports, default=0) + 1)
    nan = np.full(rows, np.nan)
    loss, rank_norm, local_norm, agent = nan.copy(), nan.copy(), nan.copy(), nan.copy()
    weight = np.ones(rows)
    phases = np.full((rows, len(PHASES)), np.nan)
    present = np.zeros(rows, dtype=np.bool_)
    has_loss = np.zeros(rows, dtype=np.bool_)
    local_layers: dict[int, NDArray[np.float32]] = {}
    for rank, report in reports.items():
        present[rank] = True
        agent[rank] = report.agent_seconds
        if report.loss is not None:
            has_loss[rank] = True
            loss[rank] = report.loss
        if report.num_samples is not None:
            weight[rank] = report.num_samples
        if report.grad_norm is not None:
            rank_norm[rank] = report.grad_norm
        if report.local_grad_norm is not None:
            local_norm[rank] = report.local_grad_norm
        if report.phases is not None:
            p = report.phases
            phases[rank] = (p.total, p.data, p.forward, p.backward, p.optimizer)
        if "local_grad_norm" in report.arrays:
            local_layers[rank] = report.arrays["local_grad_norm"]
    first = reports[min(reports)]
    layer_norm = layer_gradient_norms(reports, layers)
    seen = layer_norm[layer_norm != -1.0]
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.sqrt(np.sum(np.square(seen)))) if len(seen) else float("nan")
    return AlignedStep(
        attempt=attempt,
        step=step,
        model_step=max(r.model_step for r in reports.values()),
        time=max(r.time for r in reports.values()),
        world=world,
        present=present,
        has_loss=has_loss,
        loss=loss,
        weight=weight,
        lr=first.lr,
        phases=phases,
        rank_grad_norm=rank_norm,
        local_grad_norm=local_norm,
        agent_seconds=agent,
        num_dropped=sum(r.num_dropped for r in reports.values()),
        grad_norm=total,
        has_grad_norm=bool(len(seen)),
        layer_grad_norm=layer_norm,
        local_layer_grad_norm=local_layers,
    )


def layer_gradient_norms(reports: Mapping[int, StepReport], layers: Sequence[Layer]) -> Float64:
    """Each layer's gradient norm over all ranks, from the ranks' own norms and how the layer lies across them.

    A replicated layer is equal on every rank, so whichever rank reported it serves (the largest is taken: if they
    disagree, the disagreement must not be hidden). A sharded layer's squares add up.
    """
    num = len(layers)
    largest = np.full(num, -1.0)
    squares = np.zeros(num)
    is_sharded = np.fromiter((layer.placement == "sharded" for layer in layers), dtype=np.bool_, count=num)
    for report in reports.values():
        values = report.arrays.get("grad_norm")
        start, stride = report.slices.get("grad_norm", (0, 1))
        where = slice(start, None, stride or 1)
        if values is None or len(values) != len(squares[where]):
            continue  # of another layer table than the job's, which changed after the report was taken
        norms = values.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            squares[where] += np.where(norms == -1.0, 0.0, np.square(norms))
        largest[where] = np.maximum(largest[where], norms)  # maximum passes NaN on, as it should
    with np.errstate(invalid="ignore"):
        return np.where(is_sharded & (largest != -1.0), np.sqrt(squares), largest)
