"""activation_collapse: what a layer puts out has lost its spread, or blown up, against its own history.

Design
------
Each module's standard deviation is compared, in its logarithm, with its own level over the closer looks so far and
with how much it usually scatters; there is no absolute bound that fits all models. Both a factor and the scatter must
be exceeded, at several looks in a row. What is out of bounds is not learned; where it has stayed for long it is taken
as the new level, so that a change somebody made on purpose does not stand for ever.

Growth alone is no fault: layers that begin at zero by design grow a thousandfold. An explosion is one only where the
module now stands above everything that was usual anywhere in the net. Norms, whose spread is fixed by design, and
losses and probabilities, whose spread falls as a model learns, are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.depth import Matrices
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule, named
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView
from caboose_wire import Module

LEFT_OUT = ("norm", "softmax", "sigmoid", "loss", "entropy")
RATE = 1.0 / 16.0
MIN_SCATTER = 0.05
ABOVE_ALL = 2.0
"""How many times the largest usual spread of the net an explosion must reach."""


@dataclass(frozen=True)
class ActivationCollapseConfig(RuleConfig):
    """Thresholds of activation_collapse."""

    collapse_factor: float = 100.0
    """How many times below its level a module's standard deviation must fall."""
    explode_factor: float = 10.0
    """How many times above its level it must rise."""
    scales: float = 8.0
    """And by how many scales of its usual scatter."""
    warmup_looks: int = 5
    """Closer looks to learn a module's level from."""
    persist_looks: int = 2
    """Closer looks in a row that show it before it is told."""
    relearn_looks: int = 20
    """Closer looks after which what has stayed is the new level."""


class ActivationCollapse(LastingRule[ActivationCollapseConfig]):
    """Modules whose output collapsed or exploded."""

    name = "activation_collapse"
    config_class = ActivationCollapseConfig
    needs = frozenset({"activations"})
    muted_in = frozenset({"startup", "warmup"})
    forgets_after = frozenset({"data_switch", "resume", "restart"})

    def __init__(self, config: ActivationCollapseConfig) -> None:
        super().__init__(config)
        self._modules: Sequence[Module] = ()
        self._is_judged: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._matrices = Matrices()
        self._weights: NDArray[np.float64] = np.zeros(0)
        """Norms of the weight matrices when all modules were last as usual."""
        self._make_room(0)

    def _make_room(self, num: int) -> None:
        self._level: NDArray[np.float64] = np.full(num, np.nan)
        self._scatter: NDArray[np.float64] = np.zeros(num)
        self._num_looks: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._num_bad: NDArray[np.int64] = np.zeros(num, dtype=np.int64)

    def observe(self, view: JobView) -> Finding | None:
        """A warning at every closer look at which a module is far from its level."""
        step = view.step
        spread = _spread(step) if step is not None and step.is_sampled else None
        if step is None or spread is None:
            return None
        num = min(len(spread), len(view.modules))
        spread = spread[:num]
        if view.modules != self._modules or len(self._level) != num:
            self._take_up(view.modules, num)
        seen = np.isfinite(spread) & self._is_judged
        with np.errstate(divide="ignore", invalid="ignore"):
            now = np.log(spread)
            away = now - self._level
        far = self.config.scales * np.maximum(self._scatter, MIN_SCATTER)
        is_known = seen & (self._num_looks >= self.config.warmup_looks)
        usual = np.max(self._level[is_known], initial=-np.inf)
        with np.errstate(invalid="ignore"):
            collapsed = is_known & (away < -np.maximum(np.log(self.config.collapse_factor), far))
            exploded = is_known & (away > np.maximum(np.log(self.config.explode_factor), far))
            exploded &= now > usual + np.log(ABOVE_ALL)
        is_bad = collapsed | exploded
        self._num_bad = np.where(is_bad, self._num_bad + 1, np.where(seen, 0, self._num_bad))
        self._learn(now, seen & ~is_bad)
        self._relearn(now)
        weights = self._follow_weights(view, step, is_usual=not self._num_bad.any())
        return self._judge(view, step.step, spread, exploded, weights)

    def _take_up(self, modules: Sequence[Module], num: int) -> None:
        if len(self._level) != num or [m.name for m in modules[:num]] != [m.name for m in self._modules[:num]]:
            self._make_room(num)
        self._modules = modules
        kinds = [module.kind.lower() for module in modules[:num]]
        self._is_judged = np.array([not any(word in kind for word in LEFT_OUT) for kind in kinds], dtype=np.bool_)

    def _learn(self, now: NDArray[np.float64], good: NDArray[np.bool_]) -> None:
        good = good & np.isfinite(now)  # a spread of exactly zero from the start is how a module is built
        rate = np.maximum(RATE, 1.0 / (self._num_looks + 1.0))
        with np.errstate(invalid="ignore"):
            off = np.where(np.isnan(self._level), 0.0, now - self._level)
        self._level = np.where(good, np.where(np.isnan(self._level), now, self._level + rate * off), self._level)
        self._scatter = np.where(good, self._scatter + rate * (np.abs(off) - self._scatter), self._scatter)
        self._num_looks += good

    def _follow_weights(self, view: JobView, step: AlignedStep, *, is_usual: bool) -> dict[str, float]:
        """`weight_ratio`: the typical weight matrix over what it was when all was as usual, for the diagnosis."""
        norms = step.layer_values("weight_norm")
        if self._matrices.look(view.layers):
            self._weights = np.zeros(0)
        if norms is None or len(norms) != len(view.layers) or not len(self._matrices.rows):
            return {}
        rows = self._matrices.rows
        found = np.where(norms.has[rows], norms.values[rows], np.nan)
        if is_usual:
            self._weights = found
            return {}
        if not len(self._weights):
            return {}
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = found / self._weights
        ratios = ratios[np.isfinite(ratios)]
        return {"weight_ratio": float(np.median(ratios))} if len(ratios) else {}

    def _relearn(self, now: NDArray[np.float64]) -> None:
        stayed = self._num_bad >= self.config.relearn_looks
        if stayed.any():
            self._level = np.where(stayed, np.where(np.isfinite(now), now, np.nan), self._level)
            self._num_looks[stayed] = 0
            self._num_bad[stayed] = 0

    def _judge(
        self,
        view: JobView,
        step: int,
        spread: NDArray[np.float64],
        exploded: NDArray[np.bool_],
        weights: dict[str, float],
    ) -> Finding | None:
        rows = np.flatnonzero(self._num_bad >= (1 if self.is_open else self.config.persist_looks))
        if not len(rows) and (self._num_looks < self.config.warmup_looks)[self._is_judged].all():
            return None  # a restarted daemon has no level to judge by yet
        if not len(rows):
            return self._resolved(step, "every layer's output has its usual spread again")
        names = [view.modules[row].name for row in rows.tolist()]
        first = rows[0]
        what = "has blown up" if exploded[first] else "has collapsed"
        usual = float(np.exp(self._level[first]))
        return self._found(
            Severity.WARNING,
            step,
            f"the output of {names[0]} {what}: its standard deviation is {spread[first]:.2g}, "
            f"usually {usual:.2g}; {len(rows)} module{'s' if len(rows) > 1 else ''}: {named(names)}",
            layers=tuple(names),
            phase="forward",
            values={
                "std": float(spread[first]),
                "usual": usual,
                "num_modules": float(len(rows)),
                **weights,
            },
        )


def _spread(step: AlignedStep) -> NDArray[np.float64] | None:
    """Each module's standard deviation, as a mean over the ranks that called it; NaN where none did."""
    found, orders = step.module_values("activation_std"), step.module_values("activation_order")
    if found is None or orders is None or found.shape != orders.shape:
        return None
    called = orders.has
    num = called.sum(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(num > 0, np.where(called, found.values, 0.0).sum(axis=0) / np.maximum(1, num), np.nan)
