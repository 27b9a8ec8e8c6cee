"""saturation: most tanh or sigmoid units of a layer are saturated, and hardly any gradient passes below it.

Design
------
A unit is saturated where its derivative is under 5 % of its maximum; the agent sends each module's share. A large share
alone is no fault. It is one when it lasts over several samples *and* hardly any gradient passes, which shows in the
weight matrices' gradients per element in one of two ways. Every matrix below has a small one against those above: that
excludes gates, which may be open or shut while gradients pass beside them. Or, in a net without norm layers, the matrix
right below has a small one against what the matrix right above passes down: weights that are far too large saturate the
units and compensate for it by their size.

Gates that are computed side by side, with no weights between them, are left out, and so is an output that no weights
follow: a confident classifier saturates there by design.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.depth import Matrices
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule, and_more
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView
from caboose_wire import Module


@dataclass(frozen=True)
class SaturationConfig(RuleConfig):
    """Thresholds of saturation."""

    share: float = 0.5
    """Share of saturated units above which a module is saturated."""
    gradient_ratio: float = 0.3
    """Gradient per element below the module over that above it, under which hardly any gradient passes."""
    persist_samples: int = 3
    """Sampled steps in a row before it is reported, and without the condition before it is resolved."""


class Saturation(LastingRule[SaturationConfig]):
    """Saturated modules that pass hardly any gradient."""

    name = "saturation"
    config_class = SaturationConfig
    needs = frozenset({"activations", "gradients"})

    def __init__(self, config: SaturationConfig) -> None:
        super().__init__(config)
        self._matrices = Matrices()
        self._modules: Sequence[Module] = ()
        self._owners: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._has_norms = False
        self._num_bad: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._num_good = 0
        self._began = 0

    def observe(self, view: JobView) -> Finding | None:
        """A warning at every sampled step at which a module has been saturated for a while."""
        step = view.step
        if step is None or not step.is_sampled or not step.has_layers:
            return None
        found, orders = step.module_values("activation_saturated"), step.module_values("activation_order")
        if found is None or orders is None or found.shape != orders.shape:
            return None
        called = orders.has
        shares = np.where(called, found.values, 0.0).sum(axis=0) / np.maximum(1, called.sum(axis=0))
        order, is_called = orders.values.max(axis=0), np.asarray(called.any(axis=0))
        self._read_tables(view, len(shares))
        rows = self._blocked(step, shares, order, is_called)
        is_bad = np.zeros(len(shares), dtype=np.bool_)
        is_bad[rows] = True
        self._num_bad = np.where(is_bad, self._num_bad + 1, 0)
        if not is_bad.any():
            self._num_good += 1
        else:
            self._num_good = 0
            if self._num_bad.max() == 1 and not self.is_open:
                self._began = step.step
        if self.is_open and self._num_good >= self.config.persist_samples:
            return self._resolved(step.step, "gradients pass again below the saturated modules")
        lasting = np.flatnonzero(self._num_bad >= (1 if self.is_open else self.config.persist_samples))
        if not len(lasting):
            return None
        worst = lasting[int(np.argmax(shares[lasting]))]
        names = [view.modules[row].name for row in (worst, *(row for row in lasting if row != worst))]
        return self._found(
            Severity.WARNING,
            step.step,
            f"saturated: {100 * shares[worst]:.0f} % of {names[0]} ({view.modules[worst].kind})"
            f"{and_more(len(names), 'module')}, hardly any gradient below, {self._since(step.step, self._began)}",
            onset=self._began,
            layers=tuple(names),
            phase="forward",
            values={"share": float(shares[worst]), "num_modules": float(len(names))},
        )

    def _read_tables(self, view: JobView, num: int) -> None:
        """Maps each weight matrix to its module; rebuilt when either table changes."""
        if len(self._num_bad) != num:
            self._num_bad = np.zeros(num, dtype=np.int64)
        if self._matrices.look(view.layers) or view.modules != self._modules:
            self._modules = view.modules
            row_of = {module.name: row for row, module in enumerate(view.modules)}
            names = (view.layers[row].name.rpartition(".")[0] for row in self._matrices.rows)
            self._owners = np.array([row_of.get(name, -1) for name in names], dtype=np.intp)
            self._has_norms = any("norm" in module.kind.lower() for module in view.modules)

    def _blocked(
        self, step: AlignedStep, shares: NDArray[np.float64], order: NDArray[np.float64], is_called: NDArray[np.bool_]
    ) -> list[int]:
        rms = self._matrices.rms(step.layer_grad_norm)
        known = (self._owners >= 0) & (self._owners < len(order)) & np.isfinite(rms)
        known[known] = is_called[self._owners[known]]
        gain = self._gain(step)[known]
        rms, place = rms[known], order[self._owners[known]]
        candidates = np.flatnonzero((shares > self.config.share) & is_called)
        blocked = []
        for row in candidates.tolist():
            if row >= len(self._modules):
                continue
            below = np.flatnonzero(place < order[row])
            above = np.flatnonzero(place > order[row])
            if not len(below) or not len(above) or self._is_gate(row, order, is_called, place):
                continue
            is_blocked = rms[below].max() < self.config.gradient_ratio * float(np.median(rms[above]))
            if not is_blocked and not self._has_norms:
                last, following = below[np.argmax(place[below])], above[np.argmin(place[above])]
                share = self.config.gradient_ratio * gain[following]
                is_blocked = bool(share > 1 and rms[last] < share * rms[following])
            if is_blocked:
                blocked.append(row)
        return blocked

    def _gain(self, step: AlignedStep) -> NDArray[np.float64]:
        """Factor by which each matrix enlarges what passes, at least 1; assumes square, as the shape is unknown."""
        norms = step.layer_values("weight_norm")
        if norms is None:
            return np.ones(len(self._matrices.rows))
        return np.maximum(1.0, np.nan_to_num(norms.values[self._matrices.rows]) / np.sqrt(self._matrices.root_sizes))

    def _is_gate(
        self, row: int, order: NDArray[np.float64], is_called: NDArray[np.bool_], place: NDArray[np.float64]
    ) -> bool:
        """Whether the same parent computes another tanh or sigmoid with no weights in between."""
        parent = _parent(self._modules[row])
        for other in np.flatnonzero(is_called).tolist():
            if other == row or other >= len(self._modules) or _parent(self._modules[other]) != parent:
                continue
            if self._modules[other].kind.lower() not in ("tanh", "sigmoid"):
                continue
            low, high = sorted((order[row], order[other]))
            if not ((place > low) & (place < high)).any():
                return True
        return False


def _parent(module: Module) -> str:
    return module.name.rpartition(".")[0]
