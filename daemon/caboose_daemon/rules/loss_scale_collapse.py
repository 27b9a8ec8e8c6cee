"""loss_scale_collapse: the gradient scaler's scale falls again and again, or has sunk to 1.

Design
------
A scaler lives by overflowing now and then: it doubles its scale after thousands of good steps, and halves it at an
overflow. So single halvings are normal, and a row of them is at the very start, while it searches for its first
scale. What is not normal, after that search, is `halvings` of them within a few hundred steps: they leak away with
time, so no window has to be kept. And whenever the scale reaches 1, also in the search, nothing is left to search:
what still overflows does so without any scaling, and it is critical while steps go on being skipped, because then
nothing is learned at all.
"""

import math
from dataclasses import dataclass

import numpy as np

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.scaling import SkippedSteps
from caboose_daemon.steps.view import JobView

MEMORY = 200.0
"""Steps over which a halving is forgotten."""
FLOOR = 1.0


@dataclass(frozen=True)
class LossScaleCollapseConfig(RuleConfig):
    """Thresholds of loss_scale_collapse."""

    halvings: float = 5.0
    """Halvings within about 200 steps, after the first search, that are too many."""
    settled_steps: int = 20
    """Steps in a row that were not skipped, after which the first search is over."""
    persist_steps: int = 3
    """Steps skipped at a scale of 1 or below before it is critical."""
    calm_steps: int = 50
    """Steps in a row that were not skipped, at a scale above 1, after which it is over."""


class LossScaleCollapse(LastingRule[LossScaleCollapseConfig]):
    """A scale that does not hold."""

    name = "loss_scale_collapse"
    config_class = LossScaleCollapseConfig

    def __init__(self, config: LossScaleCollapseConfig) -> None:
        super().__init__(config)
        self._skipped = SkippedSteps()
        self._scale: float | None = None
        self._was_above = False
        self._is_settled = False
        self._halvings = 0.0
        self._num_taken = 0
        self._num_at_floor = 0
        self._began = 0
        self._largest: float | None = None
        """The largest finite activation of the last closer look."""

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the scale falls, or lies at the floor."""
        step = view.step
        if step is None or step.scaler is None or not math.isfinite(step.scaler.scale) or step.scaler.scale <= 0:
            return None
        scale = step.scaler.scale
        largest = step.module_values("activation_max") if step.is_sampled else None
        if largest is not None:
            finite = largest.values[largest.has & np.isfinite(largest.values)]
            self._largest = float(finite.max()) if len(finite) else self._largest
        is_skipped = self._skipped.observe(step)
        self._follow(step.step, scale, is_skipped=is_skipped)
        is_falling = self._is_settled and round(self._halvings) >= self.config.halvings
        is_down = scale <= FLOOR and (self._was_above or self._num_at_floor > 0)
        if not self.is_open and not (is_falling or is_down):
            return None
        if self.is_open and self._num_taken >= self.config.calm_steps and not is_down:
            self._halvings = 0.0
            return self._resolved(step.step, f"the loss scale holds again, at {scale:g}")
        is_critical = scale <= FLOOR and self._num_at_floor >= self.config.persist_steps
        return self._found(
            Severity.CRITICAL if is_critical else Severity.WARNING,
            step.step,
            self._summary(scale),
            onset=self._began or step.step,
            phase="backward",
            values={
                "scale": scale,
                "skipped_steps": float(step.scaler.num_skipped),
                "skipped_at_floor": float(self._num_at_floor),
                **({} if self._largest is None else {"largest_activation": self._largest}),
            },
        )

    def resume(self, finding: Finding) -> None:
        """The search was over, or it would not have been told."""
        super().resume(finding)
        self._is_settled = self._was_above = True
        self._num_at_floor = int(finding.values["skipped_at_floor"])

    def _follow(self, step: int, scale: float, *, is_skipped: bool) -> None:
        before, self._scale = self._scale, scale
        self._was_above |= scale > FLOOR
        self._halvings *= math.exp(-1.0 / MEMORY)
        if before is not None and scale < before:
            if self._halvings < 0.5:
                self._began = step
            self._halvings += math.log2(before / scale)
        self._num_taken = 0 if is_skipped else self._num_taken + 1
        if scale > FLOOR:
            self._num_at_floor = 0
        elif is_skipped:
            self._num_at_floor += 1
        if not self._is_settled and self._num_taken >= self.config.settled_steps:
            self._is_settled, self._halvings = True, 0.0

    def _summary(self, scale: float) -> str:
        if scale <= FLOOR:
            still = f"; {self._num_at_floor} steps were skipped there" if self._num_at_floor else ""
            return f"the loss scale has sunk to {scale:g}: gradients overflow, or underflow, without any scaling{still}"
        return f"the loss scale keeps falling: {self._halvings:.0f} halvings in a short time, now {scale:g}"
