"""gradient_vanishing: the gradient shrinks towards the input, so that the first layers hardly learn.

Design
------
Norms are divided by the root of the layer's size, and only trained weight matrices are compared, in order of depth (see
`depth`): the gradient of a bias or an embedding may be thousands of times smaller than a matrix's in a healthy net.
Three conditions must hold and last: the gradient falls geometrically (from each quarter of the layers to the next, not
at one place); from the output's quarter to the input's it falls below `ratio`; and at the input it is negligible: below
`rms` per element, or the weights there change by less than `update_ratio` per step.

Residual nets have small early gradients, but they neither fall over three orders of magnitude nor become negligible. In
a converging run the gradients of all layers shrink together, so "negligible" is judged as if the output's gradient
still had its highest level. Layers without a gradient are left out; they are `frozen_parameters`'.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.depth import Matrices
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.masked import LayerValues
from caboose_daemon.steps.view import JobView

MIN_LAYERS = 4
"""Fewer layers than this show no geometric fall."""
MIN_PART, MAX_PART = 0.1, 0.75
"""Bounds on the share of the whole fall, in logarithms, between one quarter of the layers and the next."""
RATE = 0.1
"""Weight of one step in the smoothed logarithms."""


@dataclass(frozen=True)
class GradientVanishingConfig(RuleConfig):
    """Thresholds of gradient_vanishing."""

    ratio: float = 1e-3
    """Gradient per element at the input over that at the output, below which it has vanished."""
    rms: float = 1e-7
    """Gradient per element that is negligible; raise it for a loss that is a sum and not a mean."""
    update_ratio: float = 1e-6
    """Update-to-weight ratio of the input layers that is negligible as well."""
    persist_steps: int = 50
    """Steps with gradients in a row before it is reported, and without the condition before it is resolved."""


class GradientVanishing(LastingRule[GradientVanishingConfig]):
    """A gradient that shrinks geometrically towards the input."""

    name = "gradient_vanishing"
    config_class = GradientVanishingConfig
    judges_parts = True
    needs = frozenset({"gradients"})

    def __init__(self, config: GradientVanishingConfig) -> None:
        super().__init__(config)
        self._matrices = Matrices()
        self._levels: NDArray[np.float64] = np.zeros(0)
        self._top = -np.inf
        self._updates: LayerValues | None = None
        self._num_bad = 0
        self._num_good = 0
        self._began = 0

    def observe(self, view: JobView) -> Finding | None:
        """A warning while the first layers get hardly any gradient."""
        step = view.step
        if step is None or not view.layers or not step.has_layers:
            return None
        if self._matrices.look(view.layers):
            self._levels = np.full(len(self._matrices.rows), np.nan)
            self._updates = None
        self._learn(step)
        rows = np.flatnonzero(np.isfinite(self._levels))
        if len(rows) < MIN_LAYERS:
            return None
        quarters = [float(part.mean()) for part in np.array_split(self._levels[rows], 4)]
        first, last = quarters[0], quarters[-1]
        self._top = max(self._top, last)
        is_bad = (
            first - last < np.log(self.config.ratio)
            and self._is_negligible(rows[: max(1, len(rows) // 4)], first + (self._top - last))
            and _is_geometric(quarters)
        )
        return self._judge(view, step.step, rows, first, last, is_bad=is_bad)

    def _learn(self, step: AlignedStep) -> None:
        rms = self._matrices.rms(step.layer_grad_norm)
        with np.errstate(divide="ignore", invalid="ignore"):
            now = np.log(rms)
        seen = np.isfinite(now)  # neither absent nor exactly zero
        new = seen & np.isnan(self._levels)
        self._levels[new] = now[new]
        self._levels[seen] += RATE * (now[seen] - self._levels[seen])
        found = step.layer_values("update_ratio") if step.is_sampled else None
        if found is not None:
            self._updates = found

    def _is_negligible(self, rows: NDArray[np.intp], level: float) -> bool:
        if level < np.log(self.config.rms):
            return True
        if self._updates is None:
            return False
        layers = self._matrices.rows[rows]
        known = self._updates.values[layers[self._updates.is_known[layers]]]
        return bool(len(known) and known.max() < self.config.update_ratio)

    def _judge(
        self, view: JobView, step: int, rows: NDArray[np.intp], first: float, last: float, *, is_bad: bool
    ) -> Finding | None:
        if is_bad:
            if not self._num_bad:
                self._began = step
            self._num_bad, self._num_good = self._num_bad + 1, 0
        else:
            self._num_good += 1
            self._num_bad = 0
        if self.is_open and self._num_good >= self.config.persist_steps:
            return self._resolved(step, f"gradient at the input back at {np.exp(first):.1e} per element")
        if not self.is_open and self._num_bad < self.config.persist_steps:
            return None
        names = [view.layers[self._matrices.rows[row]].name for row in (rows[0], rows[-1])]
        return self._found(
            Severity.WARNING,
            step,
            f"vanishing gradient: {np.exp(first):.1e} per element at {names[0]} against "
            f"{np.exp(last):.1e} at {names[1]}, {self._since(step, self._began)}",
            onset=self._began,
            layers=(names[0],),
            phase="backward",
            values={"first_rms": float(np.exp(first)), "last_rms": float(np.exp(last))},
        )


def _is_geometric(quarters: list[float]) -> bool:
    """Whether it falls over the whole depth, and not at one place only."""
    falls = np.diff(quarters) / (quarters[-1] - quarters[0])
    return bool(falls.min() >= MIN_PART and falls.max() <= MAX_PART)
