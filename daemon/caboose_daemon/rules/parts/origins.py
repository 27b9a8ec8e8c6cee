"""Where a NaN or infinity started: rank, layer and phase, read from numbers that the all-reduce has not mixed yet.

Design
------
A step runs through input, forward, loss, backward and update, and a NaN spreads in the same order: the earliest phase
that shows it is where it started. In the forward it spreads towards the output, so the first module in execution order
names the layer. In the backward it spreads towards the input, so the layer nearest the output does. Numbers that were
not sampled are left out, and an unknown rank is reported as unknown, not guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView
from caboose_wire import Batch


@dataclass
class Origin:
    """Where and when it started, and what followed."""

    step: int
    ranks: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    phase: str = ""
    note: str = ""
    """More about the location, for the summary."""
    num_bad: int = 0
    num_calm: int = 0
    loss_step: int | None = None
    """The first step with a loss that is not finite."""
    is_only_inside: bool = False
    """Seen in activations only: loss, gradients and weights are finite."""
    circumstances: dict[str, float] = field(default_factory=dict)
    """What else was known at its first step, for the diagnosis; see `circumstances`."""


@dataclass(frozen=True)
class BadModule:
    """The first module in execution order whose output is not finite."""

    row: int
    ranks: tuple[int, ...]


class WatchedModules:
    """Learns which modules have non-finite outputs by design, and finds the first bad one of the others."""

    def __init__(self) -> None:
        self._is_usual = np.zeros(0, dtype=np.bool_)
        self._is_known = np.zeros(0, dtype=np.bool_)
        self._is_suspect = np.zeros(0, dtype=np.bool_)
        self.largest: float | None = None
        """The largest activation of the last sampled step at which all were finite."""

    def look(self, step: AlignedStep, *, is_harmful: bool) -> BadModule | None:
        """The first bad module over all ranks; bad at its first sample without harm is by design."""
        found = step.module_values("activation_max") if step.is_sampled else None
        if found is None:
            return None
        ranks, largest = found.ranks, found.values
        is_bad = ~np.isfinite(largest)
        if largest.size and not is_bad.any():
            self.largest = float(largest.max())
        bad: NDArray[np.bool_] = np.asarray(is_bad.any(axis=0))
        num = len(bad)
        self._make_room(num)
        if not is_harmful:
            self._is_usual[:num] |= bad & ~self._is_known[:num]
            self._is_known[:num] = True
        is_bad &= ~self._is_usual[:num]
        if not is_bad.any():
            return None
        if not is_harmful:
            self._is_suspect[:num] |= is_bad.any(axis=0)
        return _first(step, ranks, is_bad)

    def accept(self) -> None:
        """Takes the suspects as non-finite by design: they did no harm."""
        self._is_usual |= self._is_suspect

    def _make_room(self, num: int) -> None:
        more = np.zeros(max(0, num - len(self._is_usual)), dtype=np.bool_)
        if len(more):
            self._is_usual = np.append(self._is_usual, more)
            self._is_known = np.append(self._is_known, more)
            self._is_suspect = np.append(self._is_suspect, more)


def _first(step: AlignedStep, ranks: list[int], is_bad: NDArray[np.bool_]) -> BadModule:
    found = step.module_values("activation_order")
    known = found is not None and found.shape == is_bad.shape
    order = found.values if found is not None and known else np.broadcast_to(np.arange(is_bad.shape[1]), is_bad.shape)
    when = np.where(is_bad, order, np.inf)
    first = when.min(axis=1)
    rows = np.flatnonzero(first == first.min())
    return BadModule(int(np.argmin(when[rows[0]])), tuple(sorted(ranks[i] for i in rows)))


def bad_local_ranks(step: AlignedStep) -> tuple[int, ...]:
    """Ranks whose own gradient was not finite before the all-reduce, on a sampled step."""
    seen = step.local_layer_grad_norm
    if not seen:
        return ()
    lengths = set(map(len, seen.values()))
    if len(lengths) > 1:  # for a moment a rank has another layer table
        return tuple(sorted(rank for rank, norms in seen.items() if not np.isfinite(norms).all()))
    is_bad = ~np.isfinite(np.concatenate(list(seen.values())).reshape(len(seen), -1)).all(axis=1)
    return tuple(sorted(np.array(list(seen))[is_bad].tolist()))


def bad_weights(step: AlignedStep) -> NDArray[np.intp]:
    """Layers whose weights are not finite after the update, on a sampled step."""
    norms = step.layer_values("weight_norm") if step.is_sampled else None
    return np.flatnonzero(norms.is_bad) if norms is not None else np.zeros(0, dtype=np.intp)


def locate(view: JobView, step: AlignedStep, *, module: BadModule | None, has_bad_gradient: bool) -> Origin:
    """The origin at the earliest phase of this step that shows it."""
    if step.bad_inputs:
        ranks = tuple(sorted(step.bad_inputs))
        batch = step.bad_inputs[ranks[0]]
        name = "the model's input" if batch.index is None else f"batch {batch.index}"
        note = f", {name} with {bad_elements(batch)}"
        return Origin(step.step, ranks, (), "input", note)
    if module is not None:
        return Origin(step.step, module.ranks, module_name(view, module.row), "forward")
    if step.bad_loss_ranks:
        return Origin(step.step, step.bad_loss_ranks, (), "forward")
    names = [layer.name for layer in view.layers]
    if has_bad_gradient:
        local = bad_local_ranks(step)
        norms = step.local_layer_grad_norm[local[0]] if local else step.layer_grad_norm.values
        return Origin(step.step, local, _last(np.flatnonzero(~np.isfinite(norms)), names), "backward")
    return Origin(step.step, (), _last(bad_weights(step), names), "update")


def circumstances(step: AlignedStep, largest: float | None) -> dict[str, float]:
    """What is known of its first step; what was not sampled is left out.

    `bad_inputs`: non-finite elements of the batches, where all batches were sampled or some elements were found.
    `was_looked_into`: 1 where activations of this step were sampled. `loss_is_infinite`: 1 for infinity, 0 for NaN.
    `largest_activation`: at the last sampled step before.
    """
    known: dict[str, float] = {"was_looked_into": float(step.module_values("activation_max") is not None)}
    batches = [report.batch for report in step.reports.values() if report.batch is not None]
    seen = [batch.num_bad for batch in batches if batch.num_bad is not None]
    if step.bad_inputs or (seen and _are_batches_sampled(step)):
        known["bad_inputs"] = float(sum(seen) + sum(batch.num_bad_targets or 0 for batch in batches))
    if step.bad_loss_ranks:
        known["loss_is_infinite"] = float(np.isinf(step.loss[list(step.bad_loss_ranks)]).any())
    if largest is not None:
        known["largest_activation"] = largest
    return known


def bad_elements(batch: Batch) -> str:
    """How many numbers of a batch are not finite, as text."""
    parts = [f"{batch.num_bad:,} NaN or infinite elements"] if batch.num_bad else []
    parts += [f"{batch.num_bad_targets:,} NaN or infinite targets"] if batch.num_bad_targets else []
    return " and ".join(parts)


def _are_batches_sampled(step: AlignedStep) -> bool:
    """Whether the batches of all bad ranks were sampled."""
    ranks = step.bad_loss_ranks or tuple(step.reports)
    batches = [step.reports[rank].batch for rank in ranks if rank in step.reports]
    return all(batch is not None and batch.num_bad is not None for batch in batches)


def module_name(view: JobView, row: int) -> tuple[str, ...]:
    """The module's name, where it is known."""
    return (view.modules[row].name,) if row < len(view.modules) else ()


def where(origin: Origin) -> str:
    """Ranks and layer as text."""
    return list_ranks(origin.ranks) + (f", layer {origin.layers[0]}" if origin.layers else "") + origin.note


def list_ranks(ranks: tuple[int, ...]) -> str:
    """Ranks as text, at most eight by number."""
    if not ranks:
        return "unknown rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _last(rows: NDArray[np.intp], names: Sequence[str]) -> tuple[str, ...]:
    return (names[int(rows[-1])],) if len(rows) and rows[-1] < len(names) else ()
