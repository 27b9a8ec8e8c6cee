"""One step with all its ranks side by side, reduced once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.masked import MISSING, NO_LAYERS, LayerValues, ModuleValues
from caboose_daemon.steps.reduce_ranks import Place, global_norm, merge
from caboose_wire import Batch, Layer, Mode, Scaler, StepReport
from caboose_wire.messages import LAYER_ARRAYS, MODULE_ARRAYS

Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
F = TypeVar("F", bound=np.floating[Any])
SAMPLED_LAYER_ARRAYS = LAYER_ARRAYS - {"grad_norm", "local_grad_norm", "layer_fingerprint"}
"""Layer arrays that are reduced over the ranks; the others are read rank by rank, or at every step."""
PHASES = ("total", "data", "forward", "backward", "optimizer", "loss")
TRAINING = Mode()
"""The mode of plain training."""


class AlignedStep(msgspec.Struct, frozen=True, kw_only=True, dict=True, eq=False):
    """What all ranks reported about one step.

    Arrays have one row per rank, and a mask of what was reported: a value whose mask is False is 0 and means nothing.
    """

    attempt: int
    step: int
    model_step: int
    time: float
    """Unix time at which the last rank ended the step."""
    world: int
    present: Bools
    """Ranks that reported this step."""
    has_loss: Bools
    loss: Float64
    mean_loss: float | None
    """Mean over ranks, weighted by samples; NaN if any rank's loss is; None where no rank reported one."""
    weight: Float64
    """How much each rank's loss counts in the mean: its samples, or 1."""
    lr: tuple[float, ...]
    phases: Float64
    """ranks x phases, in seconds, in the order of PHASES."""
    has_phases: Bools
    """The same shape: the phases that a rank saw."""
    has_local_grad_norm: Bools
    local_grad_norm: Float64
    """Of each rank's own gradient, before the all-reduce."""
    agent_seconds: Float64
    """Of the ranks that are present."""
    num_dropped: int
    grad_norm: float | None
    """Of the whole model, over all ranks, before clipping; None where it is not known."""
    layer_grad_norm: LayerValues
    """One value per layer over all ranks; absent where the layer had no gradient."""
    local_layer_grad_norm: Mapping[int, NDArray[np.float32]] = {}
    """By rank, on sampled steps: each layer's gradient before the all-reduce, as the wire has it."""
    num_samples: int | None = None
    """Samples of all ranks together; None where a rank did not report them."""
    num_tokens: int | None = None
    """Tokens of all ranks together; None where a rank did not report them."""
    metrics: Mapping[str, float] = {}
    """The user's own metrics, as means over the ranks that reported them."""
    is_sampled: bool = False
    """Whether any rank sampled this step."""
    reports: Mapping[int, StepReport] = {}
    """The ranks' reports, by rank, for what is read more rarely than at every step."""
    is_from_journal: bool = False
    """Whether it is replayed from a journal: it has no reports, and is one step all the same."""
    scaler: Scaler | None = None
    """Of the rank with the lowest scale; None where no rank uses a scaler."""
    has_mode: bool = False
    """Whether any rank reported its mode."""
    odd_modes: Mapping[int, Mode] = {}
    """By rank: the modes other than plain training."""
    bad_inputs: Mapping[int, Batch] = {}
    """By rank: batches with elements, or targets, that are not finite."""
    waits: Float64 | None = None
    """ranks x (forward, backward): the part of each in which a rank waited for others; NaN where unknown."""
    has_local_gradients: bool = False
    """Whether the gradients are each rank's own, not reduced over the ranks: the norm of the whole is not known."""
    main_group: int = 0
    """Which of `lr` is the headline."""
    layers: Sequence[Layer] = ()

    def reduce(self) -> None:
        """Reduces the sampled arrays over the ranks once, for all readers; histograms only when they are asked for."""
        names = {name for _, arrays in self._sampled_arrays[:8] for name in arrays if not name.endswith("_histogram")}
        for name in names & SAMPLED_LAYER_ARRAYS:
            self.layer_values(name)
        for name in names & MODULE_ARRAYS:
            self.module_values(name)

    def without_arrays(self) -> "AlignedStep":
        """A copy to keep: the reports and what was reduced over the layers, without the ranks' arrays.

        Those are tens of megabytes where there are thousands of ranks.
        """
        bare = {rank: msgspec.structs.replace(report, arrays={}) for rank, report in self.reports.items()}
        kept = msgspec.structs.replace(self, reports=bare, local_layer_grad_norm={})
        kept._of_layers.update(self._of_layers)  # noqa: SLF001 - the same class
        return kept

    def layer_values(self, name: str) -> LayerValues | None:
        """One of the sampled arrays over all layers; None if no rank sent it in this step."""
        if name not in self._of_layers:
            filled = (v for r in self.reports.values() if (v := _filled(r, name)) is not None)
            width = next((int(v.size // len(v)) for v in filled), 0)
            merged = merge(name, self.reports, self.layers, self.world, width=width) if width else None
            self._of_layers[name] = merged
        return self._of_layers[name]

    def module_values(self, name: str) -> ModuleValues | None:
        """One of the activation arrays, ranks x modules; None if no rank sent it."""
        if name not in self._of_modules:
            self._of_modules[name] = self._module_values(name)
        return self._of_modules[name]

    def _module_values(self, name: str) -> ModuleValues | None:
        ranks = [rank for rank, arrays in self._sampled_arrays if name in arrays and len(arrays[name])]
        columns = [arrays[name] for _, arrays in self._sampled_arrays if name in arrays and len(arrays[name])]
        if not ranks:
            return None
        if columns[0].ndim > 1:
            columns = [column[:, 0] for column in columns]
        if name == "activation_order":  # a position: one that is no number is unknown
            columns = [np.where(np.isfinite(column), column, MISSING) for column in columns]
        lengths = set(map(len, columns))
        if len(lengths) == 1:
            return ModuleValues(ranks, np.concatenate(columns).reshape(len(columns), -1))
        values = np.full((len(ranks), max(lengths)), MISSING)  # a rank has not reported a new functional call yet
        for row, column in zip(values, columns, strict=True):
            row[: len(column)] = column
        return ModuleValues(ranks, values)

    @cached_property
    def _sampled_arrays(self) -> list[tuple[int, Mapping[str, NDArray[np.float32]]]]:
        """The arrays of the ranks that sampled this step."""
        return [(rank, report.arrays) for rank, report in self.reports.items() if report.is_sampled]

    @cached_property
    def _of_layers(self) -> dict[str, LayerValues | None]:
        """Results of `layer_values`: several rules ask for the same array."""
        return {}

    @cached_property
    def _of_modules(self) -> dict[str, ModuleValues | None]:
        return {}

    @property
    def stands_for_many(self) -> bool:
        """Whether it is a row of somebody's log, which is usually a mean over many steps, or over an epoch."""
        return not self.reports and not self.is_from_journal

    @property
    def num_unseen_layers(self) -> int:
        """Layers whose gradient no rank looked at in this step, for example because a rank is silent."""
        return self.layer_grad_norm.num_unseen if self.has_layers else 0

    @property
    def whole_layer_grad_norm(self) -> LayerValues:
        """To show: without layers where each rank has its own gradients, of which none is that of the model."""
        return NO_LAYERS if self.has_local_gradients else self.layer_grad_norm

    @cached_property
    def has_layers(self) -> bool:
        """Whether any rank sent gradient norms in this step."""
        return any("grad_norm" in report.arrays for report in self.reports.values())

    @cached_property
    def clip_ratio(self) -> float | None:
        """The factor that clipping applied to the gradient: 1 where it did nothing, None without clipping by norm."""
        clipping = next((r.clipping for r in self.reports.values() if r.clipping is not None), None)
        if clipping is None or clipping.max_norm is None or self.grad_norm is None:
            return None
        return min(1.0, clipping.max_norm / (self.grad_norm * (self.clipped_scale or 1.0) + 1e-6))

    @cached_property
    def clipped_scale(self) -> float | None:
        """The scale in the gradients that were clipped; None where it had been removed, as it should be."""
        if self.scaler is None or not any(
            r.clipping is not None and r.clipping.is_scaled for r in self.reports.values()
        ):
            return None
        return self.scaler.scale

    @property
    def finite_loss(self) -> float | None:
        """The mean loss; None where it is not known or not finite."""
        loss = self.mean_loss
        return loss if loss is not None and math.isfinite(loss) else None

    @property
    def finite_grad_norm(self) -> float | None:
        """The gradient norm; None where it is not known or not finite."""
        norm = self.grad_norm
        return norm if norm is not None and math.isfinite(norm) else None

    @property
    def has_bad_grad_norm(self) -> bool:
        """Whether the gradient norm is known, and NaN or infinite."""
        return self.grad_norm is not None and not math.isfinite(self.grad_norm)

    @property
    def num_present(self) -> int:
        return int(self.present.sum())

    @property
    def bad_loss_ranks(self) -> tuple[int, ...]:
        """Ranks whose loss is NaN or infinite."""
        if self.mean_loss is None or math.isfinite(self.mean_loss):
            return ()  # a mean is finite only if everything in it is
        return tuple(np.flatnonzero(self.has_loss & ~np.isfinite(self.loss)).tolist())

    @cached_property
    def typical_phases(self) -> tuple[float | None, ...]:
        """Each phase's median over the ranks that saw it, in the order of PHASES; None if none did."""
        if self.has_phases.all():
            return tuple(middle(self.phases).tolist())
        return tuple(float(middle(seen)) if len(seen) else None for seen in self._seen_phases())

    @cached_property
    def epoch(self) -> int | None:
        """The epoch of the watched loader on the first rank; None if no loader is watched."""
        batch = self.reports[min(self.reports)].batch if self.reports else None
        return None if batch is None or batch.index is None else batch.epoch

    @cached_property
    def mean_phases(self) -> tuple[float | None, ...]:
        """Each phase's mean over the ranks that saw it, in the order of PHASES; None if none did."""
        if self.has_phases.all():
            return tuple(self.phases.mean(axis=0).tolist())
        return tuple(float(seen.mean()) if len(seen) else None for seen in self._seen_phases())

    def _seen_phases(self) -> Iterator[Float64]:
        return (column[has] for column, has in zip(self.phases.T, self.has_phases.T, strict=True))

    @property
    def main_lr(self) -> float | None:
        """The learning rate of the group with most parameters."""
        if not self.lr:
            return None
        return self.lr[self.main_group] if self.main_group < len(self.lr) else self.lr[0]

    def phase_seconds(self, phase: str) -> float | None:
        """Mean over ranks of one phase; None if no rank saw it."""
        return self.mean_phases[PHASES.index(phase)]


def middle(values: NDArray[F]) -> NDArray[F]:
    """The lower median along the first axis: one of the values, found without sorting."""
    at = (len(values) - 1) // 2
    return np.asarray(np.partition(values, at, axis=0)[at])


def combine(
    reports: Mapping[int, StepReport],
    *,
    attempt: int,
    step: int,
    world: int,
    layers: Sequence[Layer],
    main_group: int = 0,
    is_local: bool = False,
    is_total_whole: bool = False,
    gradient_places: Sequence[Place] | None = None,
) -> AlignedStep:
    """The ranks' reports of one step, side by side; `is_local` if each rank has its own gradients.

    `is_total_whole`: the clipper's norm is that of all gradients over all ranks, wherever they are. `gradient_places`:
    the ranks' gradient norms by layers, where they are known.
    """
    rows = max(world, max(reports, default=0) + 1)
    loss, local_norm, agent = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    weight = np.ones(rows)
    phases = np.full((rows, len(PHASES)), np.nan)
    waits = np.full((rows, 2), np.nan)
    present, has_loss, has_local = (np.zeros(rows, dtype=np.bool_) for _ in range(3))
    local_layers: dict[int, NDArray[np.float32]] = {}
    scaler: Scaler | None = None
    has_mode = False
    odd_modes: dict[int, Mode] = {}
    bad_inputs: dict[int, Batch] = {}
    for rank, report in reports.items():
        present[rank] = True
        agent[rank] = report.agent_seconds
        if report.loss is not None:
            has_loss[rank] = True
            loss[rank] = report.loss
        if report.num_samples is not None:
            weight[rank] = report.num_samples
        if report.local_grad_norm is not None:
            has_local[rank] = True
            local_norm[rank] = report.local_grad_norm
        if report.phases is not None:
            p = report.phases
            phases[rank] = (p.total, p.data, p.forward, p.backward, p.optimizer, p.loss)
            waits[rank] = (p.forward_wait, p.backward_wait)
        if "local_grad_norm" in report.arrays:
            local_layers[rank] = report.arrays["local_grad_norm"]
        if report.scaler is not None and (scaler is None or report.scaler.scale < scaler.scale):
            scaler = report.scaler
        if report.mode is not None:
            has_mode = True
            if report.mode != TRAINING:
                odd_modes[rank] = report.mode
        if report.batch is not None and (report.batch.num_bad or report.batch.num_bad_targets):
            bad_inputs[rank] = report.batch
    has_phases = np.isfinite(phases)  # on the wire, a phase that was not seen is NaN
    first = reports[min(reports)]
    layer_norm = merge("grad_norm", reports, layers, world, places=gradient_places)
    total = None if is_local else global_norm(layer_norm, layers)
    is_understood = all(layer.placement != "unknown" for layer in layers if layer.held)
    if total is None and (is_understood or is_total_whole) and not is_local:
        # A rank is missing, or an engine shows no gradients; the clipper may have the whole norm.
        total = next((c.total_norm for r in reports.values() if (c := r.clipping) and c.total_norm is not None), None)
    aligned = AlignedStep(
        attempt=attempt,
        step=step,
        model_step=max(r.model_step for r in reports.values()),
        time=max(r.time for r in reports.values()),
        world=world,
        present=present,
        has_loss=has_loss,
        loss=loss,
        mean_loss=mean_loss(loss, has_loss, weight),
        weight=weight,
        lr=first.lr,
        main_group=main_group,
        has_local_gradients=is_local,
        phases=np.where(has_phases, phases, 0.0),
        has_phases=has_phases,
        waits=waits,
        has_local_grad_norm=has_local,
        local_grad_norm=local_norm,
        agent_seconds=agent,
        num_dropped=sum(r.num_dropped for r in reports.values()),
        grad_norm=total,
        layer_grad_norm=layer_norm,
        local_layer_grad_norm=local_layers,
        num_samples=_total([report.num_samples for report in reports.values()]),
        num_tokens=_total([report.num_tokens for report in reports.values()]),
        metrics=_metrics(reports),
        is_sampled=any(report.is_sampled for report in reports.values()),
        reports=reports,
        scaler=scaler,
        has_mode=has_mode,
        odd_modes=odd_modes,
        bad_inputs=bad_inputs,
        layers=layers,
    )
    if aligned.is_sampled:
        aligned.reduce()
    return aligned


def mean_loss(loss: Float64, seen: NDArray[np.bool_], weight: Float64) -> float | None:
    """Mean over the ranks that reported a loss; NaN if one of them is. None if none did."""
    if not seen.any():
        return None
    weights = weight[seen] if weight[seen].any() else np.ones(int(seen.sum()))
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.sum(loss[seen] * weights) / np.sum(weights))


def _total(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)


def _metrics(reports: Mapping[int, StepReport]) -> dict[str, float]:
    names = {name for report in reports.values() for name in report.metrics}
    return {name: float(np.mean([r.metrics[name] for r in reports.values() if name in r.metrics])) for name in names}


def _filled(report: StepReport, name: str) -> NDArray[np.float32] | None:
    values = report.arrays.get(name)
    return values if values is not None and len(values) else None
