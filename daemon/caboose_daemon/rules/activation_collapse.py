"""activation_collapse: a layer's activations have collapsed or exploded against their own history.

Design
------
The logarithm of each module's standard deviation is compared with the module's own level over the sampled steps so far,
and with its usual scatter; no absolute bound fits all models. It must exceed both a factor and the scatter, at several
samples in a row. Values out of bounds are not learned. After `relearn_samples` samples they become the new level, so
that an intended change is not reported for ever.

Growth alone is no fault: layers that start at zero by design grow a thousandfold. An explosion counts only where the
module exceeds the usual level of every module in the net. Norms have a fixed spread by design, the spread of losses and
probabilities falls as a model learns, and that of attention's averages grows, so these kinds are left out.
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

LEFT_OUT = ("norm", "softmax", "sigmoid", "loss", "entropy", "attention")
RATE = 1.0 / 16.0
MIN_SCATTER = 0.05
ABOVE_ALL = 2.0
"""Factor over the largest usual spread in the net that an explosion must reach."""


@dataclass(frozen=True)
class ActivationCollapseConfig(RuleConfig):
    """Thresholds of activation_collapse."""

    collapse_factor: float = 100.0
    """Factor below its level to which a module's standard deviation must fall."""
    explode_factor: float = 10.0
    """Factor above its level to which a module's standard deviation must rise."""
    scales: float = 8.0
    """Distance from the level, in scales of the usual scatter, that is needed as well."""
    warmup_samples: int = 5
    """Sampled steps from which a module's level is learned."""
    persist_samples: int = 2
    """Sampled steps in a row before it is reported."""
    relearn_samples: int = 20
    """Sampled steps after which a changed value becomes the new level."""


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
        """Norms of the weight matrices when all modules were last at their level."""
        self._make_room(0)

    def _make_room(self, num: int) -> None:
        self._level: NDArray[np.float64] = np.full(num, np.nan)
        self._scatter: NDArray[np.float64] = np.zeros(num)
        self._num_sampled: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._num_bad: NDArray[np.int64] = np.zeros(num, dtype=np.int64)

    def observe(self, view: JobView) -> Finding | None:
        """A warning at every sampled step at which a module is far from its level."""
        step = view.step
        spread = _spread(step) if step is not None and step.is_sampled else None
        if step is None or spread is None:
            return None
        num = min(len(spread), len(view.modules))
        spread = spread[:num]
        if view.modules != self._modules or len(self._level) != num:
            self._read_modules(view.modules, num)
        seen = np.isfinite(spread) & self._is_judged
        with np.errstate(divide="ignore", invalid="ignore"):
            now = np.log(spread)
            away = now - self._level
        far = self.config.scales * np.maximum(self._scatter, MIN_SCATTER)
        is_known = seen & (self._num_sampled >= self.config.warmup_samples)
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

    def _read_modules(self, modules: Sequence[Module], num: int) -> None:
        if len(self._level) != num or [m.name for m in modules[:num]] != [m.name for m in self._modules[:num]]:
            self._make_room(num)
        self._modules = modules
        kinds = [module.kind.lower() for module in modules[:num]]
        self._is_judged = np.array([not any(word in kind for word in LEFT_OUT) for kind in kinds], dtype=np.bool_)

    def _learn(self, now: NDArray[np.float64], good: NDArray[np.bool_]) -> None:
        good = good & np.isfinite(now)  # a spread of exactly zero from the start is by design
        rate = np.maximum(RATE, 1.0 / (self._num_sampled + 1.0))
        with np.errstate(invalid="ignore"):
            off = np.where(np.isnan(self._level), 0.0, now - self._level)
        self._level = np.where(good, np.where(np.isnan(self._level), now, self._level + rate * off), self._level)
        self._scatter = np.where(good, self._scatter + rate * (np.abs(off) - self._scatter), self._scatter)
        self._num_sampled += good

    def _follow_weights(self, view: JobView, step: AlignedStep, *, is_usual: bool) -> dict[str, float]:
        """`weight_ratio`: median norm ratio of the weight matrices to the last usual sample, for the diagnosis."""
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
        stayed = self._num_bad >= self.config.relearn_samples
        if stayed.any():
            self._level = np.where(stayed, np.where(np.isfinite(now), now, np.nan), self._level)
            self._num_sampled[stayed] = 0
            self._num_bad[stayed] = 0

    def _judge(
        self,
        view: JobView,
        step: int,
        spread: NDArray[np.float64],
        exploded: NDArray[np.bool_],
        weights: dict[str, float],
    ) -> Finding | None:
        rows = np.flatnonzero(self._num_bad >= (1 if self.is_open else self.config.persist_samples))
        if not len(rows) and (self._num_sampled < self.config.warmup_samples)[self._is_judged].all():
            return None  # a restarted daemon has no level to judge by yet
        if not len(rows):
            return self._resolved(step, "activations of every layer are back at their usual spread")
        names = [view.modules[row].name for row in rows.tolist()]
        first = rows[0]
        what = "exploded" if exploded[first] else "collapsed"
        usual = float(np.exp(self._level[first]))
        return self._found(
            Severity.WARNING,
            step,
            f"activations {what} in {names[0]}{and_more(len(names), 'module')}: "
            f"standard deviation {spread[first]:.2g}, usually {usual:.2g}, {self._since(step)}",
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
    """Each module's standard deviation, averaged over the ranks that called it; NaN where none did."""
    found, orders = step.module_values("activation_std"), step.module_values("activation_order")
    if found is None or orders is None or found.shape != orders.shape:
        return None
    called = orders.has
    num = called.sum(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(num > 0, np.where(called, found.values, 0.0).sum(axis=0) / np.maximum(1, num), np.nan)
