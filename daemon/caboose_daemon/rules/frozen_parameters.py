"""frozen_parameters: parameters that are meant to be trained and are not.

Design
------
Three ways, each told by itself. *No optimizer holds it*: known from the layer table. *No gradient*, or one of exactly
zero, at every look over a window in which other layers had one. *It never moves*: its update is exactly zero at
several closer looks though it has a gradient and the learning rate is there (an update too small for the parameter's
precision does that).

What was frozen on purpose needs no gradient and is not looked at. Layers that are used by turns need a longer window:
those that have had a gradient before, and all of them under several optimizers. Experts and adapters, which a batch
may pass by for good reason, and teachers and averages, which follow others, are left out by their names. A bias may
have an exact gradient of zero by the structure of the net (before a norm, under a softmax), so only its absence
counts. Where the larger part of the model is left out of the optimizer, and all of it comes before what is not,
somebody trains a head on what is there: that is an information, as it is where the job's own settings declare it
(`trained_in_part`). A layer left out from the middle, or from the end, was forgotten.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
"""In names of layers that only some batches use, or that follow others by another way than a gradient."""
BY_TURNS = 10
"""How many times longer the window is for what may be trained by turns."""
LR_SHARE = 0.1
"""Share of the highest learning rate so far, below which an update may well be too small to be seen."""


@dataclass(frozen=True)
class FrozenParametersConfig(RuleConfig):
    """Thresholds of frozen_parameters."""

    window_steps: int = 100
    """Looks at the gradients without one for this layer, and with one for others; ten times as many for a layer that
    has had one before, or where several optimizers take turns."""
    persist_looks: int = 5
    """Closer looks at which a layer's update is exactly zero."""


class _Table:
    """What the layer table says of each layer, as arrays."""

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
        self.is_matrix = flags([is_matrix(layer) for layer in layers])
        self.unheld = np.flatnonzero(trainable & ~held & ~aside)
        trained = np.flatnonzero(trainable & held)
        is_most = len(trained) > 0 and sizes[self.unheld].sum() > sizes[trained].sum()
        self.is_head_alone = bool(is_most) and self.unheld.max() < trained.min()
        optimizers = {group.name.partition(".")[0] for group in groups if "." in group.name}
        self.patience = BY_TURNS if len(optimizers) > 1 else 1


class FrozenParameters(LastingRule[FrozenParametersConfig]):
    """Layers that should learn and do not."""

    name = "frozen_parameters"
    config_class = FrozenParametersConfig
    needs = frozenset({"gradients"})

    def __init__(self, config: FrozenParametersConfig) -> None:
        super().__init__(config)
        self._layers: Sequence[Layer] | None = None
        self._skipped = SkippedSteps()
        self._highest_lr = 0.0
        self._num_looks = 0
        self._num_updates = 0
        self._is_resumed = False
        self._first_step = 0
        self._told: tuple[bytes, str, tuple[str, ...]] = (b"", "", ())

    def observe(self, view: JobView) -> Finding | None:
        """A finding while any layer is found frozen."""
        step = view.step
        if step is None or not view.layers:
            return None
        if view.layers is not self._layers and view.layers != self._layers:
            self._take_up(view, step.step)
        is_skipped = self._skipped.observe(step)
        self._highest_lr = max(self._highest_lr, *step.lr) if step.lr else self._highest_lr
        if step.has_layers:
            self._watch_gradients(step)
        if step.is_sampled and not is_skipped and "warmup" not in view.regime.active:
            self._watch_updates(step)
        return self._judge(view, step.step)

    def resume(self, finding: Finding) -> None:
        """What was frozen is taken to be so until it has been looked at for as long again."""
        super().resume(finding)
        self._is_resumed = True

    def _take_up(self, view: JobView, step: int) -> None:
        num = len(view.layers)
        self._layers = view.layers
        self._table = _Table(view.layers, view.groups)
        self._had: NDArray[np.bool_] = np.zeros(num, dtype=np.bool_)
        self._num_without: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._since: NDArray[np.int64] = np.full(num, step)
        self._num_still: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._num_looks = 0
        self._first_step = step

    def _watch_gradients(self, step: AlignedStep) -> None:
        norms = step.layer_grad_norm
        if len(norms) != len(self._had):
            return
        is_zero = norms.has & (norms.values == 0)
        has = norms.has & ~is_zero  # a gradient that is not finite is one
        if not has.any():
            return
        self._num_looks += 1
        without = norms.is_absent | (is_zero & ~self._table.is_bias)
        self._since[has] = step.step
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
        limits = np.where(self._had, self.config.window_steps * BY_TURNS, window)
        idle = table.is_watched & (self._num_without >= limits)
        still = table.is_watched & (self._num_still >= self.config.persist_looks) & ~idle
        is_unheld = len(table.unheld) > 0 and self._num_looks >= self.config.window_steps
        is_anything = is_unheld or bool(idle.any() or still.any())
        if self._is_resumed and not is_anything and self._last is not None:
            moved = self._last.values["never_moves"] == 0 or self._num_updates >= self.config.persist_looks
            self._is_resumed = self._num_looks < window or not moved
            if self._is_resumed:
                return None
        if not is_anything:
            return self._resolved(step, "every layer that should learn does")
        is_on_purpose = table.is_head_alone or bool(view.config.get("trained_in_part"))
        is_warning = bool(idle.any() or still.any()) or not is_on_purpose
        summary, names = self._told_of(view, idle, still, is_unheld=is_unheld)
        rows = np.flatnonzero(idle)
        onset = int(self._since[rows].min()) if len(rows) else self._first_step
        return self._found(
            Severity.WARNING if is_warning else Severity.INFO,
            step,
            summary,
            onset=onset,
            layers=names,
            values={
                "not_held": float(len(table.unheld) if is_unheld else 0),
                "without_gradient": float(idle.sum()),
                "never_moves": float(still.sum()),
            },
        )

    def _told_of(
        self, view: JobView, idle: NDArray[np.bool_], still: NDArray[np.bool_], *, is_unheld: bool
    ) -> tuple[str, tuple[str, ...]]:
        """Summary and names; made anew only when other layers are concerned."""
        key = idle.tobytes() + still.tobytes() + bytes([is_unheld])
        if key != self._told[0]:
            parts, names = [], []
            for what, rows in (
                ("{} no optimizer holds", self._table.unheld if is_unheld else self._table.unheld[:0]),
                ("{} without a gradient while others have one", np.flatnonzero(idle)),
                ("{} whose update is exactly zero", np.flatnonzero(still)),
            ):
                if len(rows):
                    found = [view.layers[row].name for row in rows]
                    count = f"{len(rows)} trainable layer{'s' if len(rows) > 1 else ''}"
                    parts.append(f"{what.format(count)}: {named(found)}")
                    names += found
            self._told = (key, "; ".join(parts), tuple(names))
        return self._told[1], self._told[2]
