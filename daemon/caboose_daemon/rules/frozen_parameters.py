"""frozen_parameters: parameters that should be trained are not.

Design
------
Three conditions, each reported separately. *In no optimizer*: known from the layer table. *No gradient*, or one of
exactly zero, at every step of a window in which other layers had one. *Never updated*: the update is exactly zero at
several sampled steps although there is a gradient and a learning rate (an update too small for the parameter's
precision does that).

Layers frozen on purpose need no gradient and are not judged. Layers that are trained in turns need a longer window:
those that had a gradient before, and all layers of an optimizer among several (Muon and AdamW, which step together,
have layers with and without a gradient: that is no turn). Experts and adapters, which a batch
may bypass, and teachers and averages, which are copied from others, are left out by name. A bias may have a gradient of
exactly zero because of the net's structure (before a norm, under a softmax), so for a bias only a missing gradient
counts. Where the larger part of the model is in no optimizer, and all of it comes before the rest, only a head is
trained on purpose: an info, as it is where the job's own settings declare it (`trained_in_part`). But weights that are
still as torch draws them were never trained: a head above them is no fine-tuning. A layer missing from the middle or
the end was forgotten.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.depth import is_matrix
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule, named
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.scaling import SkippedSteps
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView
from caboose_wire import Group, Layer

ASIDE = frozenset({"expert", "experts", "moe", "adapter", "adapters", "ema", "teacher", "target", "momentum"})
"""Words in names of layers that only some batches use, or that are copied from others instead of trained."""
BY_TURNS = 10
"""Factor on the window for layers that may be trained in turns."""
FEW_OPTIMIZERS = 6
MIN_SEEN = 10
"""Steps with norms that a window must have, where norms are taken more rarely than at every step."""
LR_SHARE = 0.1
"""Share of the highest learning rate so far, below which an update may be too small to show."""


@dataclass(frozen=True)
class FrozenParametersConfig(RuleConfig):
    """Thresholds of frozen_parameters."""

    window_steps: int = 100
    """Steps with gradients of other layers and none of this one; ten times as many for a layer that had a gradient
    before, or where several optimizers take turns."""
    persist_samples: int = 5
    """Sampled steps at which a layer's update is exactly zero."""


class _Table:
    """The layer table as arrays."""

    def __init__(self, layers: Sequence[Layer], groups: Sequence[Group]) -> None:
        def flags(values: list[bool]) -> NDArray[np.bool_]:
            return np.array(values, dtype=np.bool_)

        held = flags([layer.held for layer in layers])
        trainable = flags([layer.trainable for layer in layers])
        known = flags([layer.placement != "unknown" for layer in layers])
        aside = flags([not ASIDE.isdisjoint(re.split(r"[._]", layer.name.lower())) for layer in layers])
        sizes = np.array([layer.numel for layer in layers], dtype=np.float64)
        self.is_watched = held & trainable & known & ~aside
        self.is_bias = flags(["bias" in layer.name.rsplit(".", 1)[-1] for layer in layers])
        rows = {layer.name: row for row, layer in enumerate(layers)}
        self.bias_of = np.array([rows.get(f"{layer.name.rpartition('.')[0]}.bias", -1) for layer in layers])
        """The row of the bias that is added to the product with each weight; -1 where there is none."""
        self.is_matrix = flags([is_matrix(layer) for layer in layers])
        self.unheld = np.flatnonzero(trainable & ~held & ~aside)
        trained = np.flatnonzero(trainable & held)
        is_most = len(trained) > 0 and sizes[self.unheld].sum() > sizes[trained].sum()
        self.is_head_alone = bool(is_most) and self.unheld.max() < trained.min()
        optimizers = {group.name.partition(".")[0] for group in groups if "." in group.name}
        self.patience = BY_TURNS if len(optimizers) > 1 else 1
        self._sizes, self._held = sizes, held
        totals = [
            sum(group.num_parameters for group in groups if group.name.partition(".")[0] == optimizer)
            for optimizer in sorted(optimizers)
        ]
        is_known = len(totals) <= FEW_OPTIMIZERS and sum(totals) == sizes[held].sum()
        self._turns = (
            {sum(some) for n in range(1, len(totals)) for some in combinations(totals, n)} if is_known else None
        )

    def can_be_turns(self, without: NDArray[np.bool_]) -> bool:
        """Whether the layers without gradient are all those of some optimizers, by their size, as in turns they are."""
        return self._turns is None or int(self._sizes[without & self._held].sum()) in self._turns


class FrozenParameters(LastingRule[FrozenParametersConfig]):
    """Trainable layers that are not trained."""

    name = "frozen_parameters"
    config_class = FrozenParametersConfig
    judges_parts = True
    needs = frozenset({"gradients"})

    def __init__(self, config: FrozenParametersConfig) -> None:
        super().__init__(config)
        self._layers: Sequence[Layer] | None = None
        self._skipped = SkippedSteps()
        self._highest_lr = 0.0
        self._num_sampled = 0
        self._num_updates = 0
        self._is_resumed = False
        self._first_step = 0
        self._described: tuple[bytes, str, tuple[str, ...]] = (b"", "", ())

    def observe(self, view: JobView) -> Finding | None:
        """A finding while any layer is frozen."""
        step = view.step
        if step is None or not view.layers:
            return None
        if view.layers is not self._layers and view.layers != self._layers:
            self._read_layers(view, step.step)
        is_skipped = self._skipped.observe(step)
        self._highest_lr = max(self._highest_lr, *step.lr) if step.lr else self._highest_lr
        if step.has_layers:
            self._watch_gradients(step)
        if step.is_sampled and not is_skipped and "warmup" not in view.regime.active:
            self._watch_updates(step)
        return self._judge(view, step.step)

    def resume(self, finding: Finding) -> None:
        """Takes the layers as still frozen until a whole window was seen again."""
        super().resume(finding)
        self._is_resumed = True

    def _read_layers(self, view: JobView, step: int) -> None:
        num = len(view.layers)
        self._layers = view.layers
        self._table = _Table(view.layers, view.groups)
        self._had: NDArray[np.bool_] = np.zeros(num, dtype=np.bool_)
        self._num_without: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._last_with_gradient: NDArray[np.int64] = np.full(num, step)
        self._num_still: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._is_zero: NDArray[np.bool_] = np.zeros(num, dtype=np.bool_)
        self._num_sampled = 0
        self._first_step = step

    def _watch_gradients(self, step: AlignedStep) -> None:
        norms = step.layer_grad_norm
        if len(norms) != len(self._had):
            return
        is_zero = norms.has & (norms.values == 0)
        has = norms.has & ~is_zero  # a gradient that is not finite counts as one
        if not has.any():
            return
        self._num_sampled += 1
        without = norms.is_absent | (is_zero & ~self._table.is_bias)
        self._is_zero = is_zero
        self._last_with_gradient[has] = step.step
        self._num_without[has] = 0
        self._num_without[without] += 1
        self._had |= has

    def _watch_updates(self, step: AlignedStep) -> None:
        ratios = step.layer_values("update_ratio")
        if ratios is None or len(ratios) != len(self._num_still) or not step.lr:
            return
        if min(step.lr) <= 0 or max(step.lr) < LR_SHARE * self._highest_lr:
            return
        self._num_updates += 1
        norms = step.layer_grad_norm
        has_none = norms.is_absent | (norms.has & (norms.values == 0))
        is_still = ratios.has & (ratios.values == 0) & self._table.is_matrix & ~has_none
        self._num_still[is_still] += 1
        self._num_still[ratios.values > 0] = 0

    def _judge(self, view: JobView, step: int) -> Finding | None:
        table, window = self._table, self.config.window_steps * self._table.patience
        if table.patience > 1 and not table.can_be_turns(self._num_without >= self.config.window_steps):
            window = self.config.window_steps
        limits = np.where(self._had, self.config.window_steps * BY_TURNS, window)
        idle = table.is_watched & (self._num_without >= limits)
        if self._num_sampled <= step - self._first_step:
            # Where norms are too dear for every step, a few of them over as many steps show the same.
            spans = (step - self._last_with_gradient >= limits) & (self._num_without >= MIN_SEEN)
            idle |= table.is_watched & spans
        still = table.is_watched & (self._num_still >= self.config.persist_samples) & ~idle
        is_seen = self._num_sampled >= self.config.window_steps or (
            self._num_sampled >= MIN_SEEN and step - self._first_step >= self.config.window_steps
        )
        is_unheld = len(table.unheld) > 0 and is_seen
        is_anything = is_unheld or bool(idle.any() or still.any())
        if self._is_resumed and not is_anything and self._last is not None:
            moved = self._last.values["never_moves"] == 0 or self._num_updates >= self.config.persist_samples
            self._is_resumed = self._num_sampled < window or not moved
            if self._is_resumed:
                return None
        if not is_anything:
            return self._resolved(step, "every trainable layer gets gradients and updates")
        is_head_alone = table.is_head_alone and not view.setting("unheld_at_random")
        is_on_purpose = is_head_alone or bool(view.config.get("trained_in_part"))
        is_warning = bool(idle.any() or still.any()) or not is_on_purpose
        summary, names = self._describe(view, idle, still, is_unheld=is_unheld)
        rows = np.flatnonzero(idle)
        onset = int(self._last_with_gradient[rows].min()) if len(rows) else self._first_step
        return self._found(
            Severity.WARNING if is_warning else Severity.INFO,
            step,
            summary,
            onset=onset,
            layers=names,
            values={
                "not_held": float(len(table.unheld) if is_unheld else 0),
                "without_gradient": float(idle.sum()),
                "zero_gradient": float((idle & self._is_zero).sum()),
                "never_moves": float(still.sum()),
            },
        )

    def _describe(
        self, view: JobView, idle: NDArray[np.bool_], still: NDArray[np.bool_], *, is_unheld: bool
    ) -> tuple[str, tuple[str, ...]]:
        """Summary and names; built again only when the set of layers changed."""
        key = idle.tobytes() + still.tobytes() + bytes([is_unheld]) + self._is_fed_zeros(idle).tobytes()
        if key != self._described[0]:
            parts, names = [], []
            for what, rows in (
                ("in no optimizer", self._table.unheld if is_unheld else self._table.unheld[:0]),
                ("without gradient while others have one", self._from_the_cut(idle)),
                ("never updated", np.flatnonzero(still)),
            ):
                if len(rows):
                    found = [view.layers[row].name for row in rows]
                    count = f"{len(rows)} of {len(view.layers)} layers"
                    parts.append(f"{count} {what}: {named(found)}")
                    names += found
            self._described = (key, "; ".join(parts), tuple(names))
        return self._described[1], self._described[2]

    def _from_the_cut(self, idle: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The layers without gradient, the one at the cut first: the last one, unless what it is fed is zero."""
        fed_zeros = self._is_fed_zeros(idle)
        return np.concatenate((np.flatnonzero(idle & ~fed_zeros)[::-1], np.flatnonzero(fed_zeros)[::-1]))

    def _is_fed_zeros(self, idle: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Layers whose weights have a gradient of zero while their bias has one: a gradient comes, but no input."""
        bias = self._table.bias_of
        has_bias_gradient = self._last_with_gradient[bias] > self._last_with_gradient
        fed_zeros: NDArray[np.bool_] = idle & self._is_zero & (bias >= 0) & has_bias_gradient
        return fed_zeros if (idle & ~fed_zeros).any() else np.zeros_like(idle)
