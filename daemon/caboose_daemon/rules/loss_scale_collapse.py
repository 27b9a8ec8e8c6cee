"""loss_scale_collapse: the gradient scaler's scale keeps falling, or has reached 1.

Design
------
A scaler overflows now and then by design: it doubles its scale after thousands of good steps, and halves it at an
overflow. Single halvings are normal, and so is a series of them at the very start, while it searches for its first
scale. After that search, `halvings` of them within a few hundred steps are not normal. They decay with time, so no
window has to be kept. Whenever the scale reaches 1, also during the search, nothing is left to search: what still
overflows does so without any scaling. It is critical while steps are still skipped there, because then nothing is
learned at all.
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
"""Decay time of a halving, in steps."""
FLOOR = 1.0


@dataclass(frozen=True)
class LossScaleCollapseConfig(RuleConfig):
    """Thresholds of loss_scale_collapse."""

    halvings: float = 5.0
    """Halvings within about 200 steps, after the first search, that are reported."""
    settled_steps: int = 20
    """Steps in a row without a skip after which the first search is over."""
    persist_steps: int = 3
    """Steps skipped at a scale of 1 or below before it is critical."""
    calm_steps: int = 50
    """Steps in a row without a skip, at a scale above 1, after which it is resolved."""


class LossScaleCollapse(LastingRule[LossScaleCollapseConfig]):
    """A loss scale that keeps falling."""

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
        """The largest finite activation of the last sampled step."""

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the scale keeps falling, or is at 1 or below."""
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
            return self._resolved(step.step, f"loss scale stable at {scale:,g} for {self._num_taken:,} steps")
        is_critical = scale <= FLOOR and self._num_at_floor >= self.config.persist_steps
        return self._found(
            Severity.CRITICAL if is_critical else Severity.WARNING,
            step.step,
            f"{self._what(scale)}, {self._since(step.step, self._began or step.step)}",
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
        """The first search was over, or it would not have been reported."""
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

    def _what(self, scale: float) -> str:
        if scale <= FLOOR:
            skipped = f", {self._num_at_floor:,} steps skipped there" if self._num_at_floor else ""
            return f"loss scale fell to {scale:g}{skipped}: gradients are not finite even without scaling"
        return f"loss scale keeps falling: {self._halvings:.0f} halvings in about {MEMORY:.0f} steps, now {scale:,g}"
