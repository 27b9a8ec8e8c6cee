"""lr_too_low: steps are so small that nothing is learned.

Design
------
Judged by the real updates: the typical weight matrix changes by less than `min_update` of its norm per step, on several
sampled steps, while the learning rate is near its own peak. At the end of a schedule, and in a warm-up, small steps are
planned; a rate that decayed too early is `lr_schedule`'s and `plateau`'s. Where the weights moved before, or gradients
were many times larger, the gradients have vanished since, and a run without gradients never had them: the rate is not
the cause.

Updates up to ten times as large (`slow_update`) are enough for a model that is nearly right, as in fine-tuning. They
are reported where the loss shows that they are not: it hardly falls (`slow_fall` per thousand steps), and that is known
with enough precision.

Zero-initialised tensors, biases and norms are left out. Without sampled weights the rule abstains: a flat loss alone
has too many causes.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

MIN_BUCKETS = 16
KNOWN = 0.01
"""Standard error of the loss's fall, as a share of its level, up to which the fall counts as known."""
CALM = 1.5
"""Factor on the fall that is needed before it is resolved."""
NORM_MEMORY = 8
FADED = 10.0
"""Highest gradient norm over the present one, above which gradients have vanished."""


@dataclass(frozen=True)
class LrTooLowConfig(RuleConfig):
    """Thresholds of lr_too_low."""

    min_update: float = 1e-6
    """Median update-to-weight ratio of the weight matrices that is too small."""
    slow_update: float = 1e-5
    """Ratio that is too small where the loss hardly falls."""
    slow_fall: float = 0.02
    """Fall of the loss per thousand steps, as a share of its level, below which it hardly falls."""
    slow_steps: int = 300
    """Steps before the fall of the loss is judged."""
    samples: int = 3
    """Sampled steps in a row before it is reported."""
    has_moved: float = 1e-4
    """Update-to-weight ratio that rules this out if it was ever reached."""
    near_peak: float = 0.1
    """Share of its peak above which the learning rate counts as near it."""


class Streak:
    """Sampled steps in a row on which a condition held."""

    def __init__(self) -> None:
        self.num = 0
        self.first = 0

    def count(self, step: int, holds: bool) -> None:
        if holds and not self.num:
            self.first = step
        self.num = self.num + 1 if holds else 0


class LrTooLow(Rule[LrTooLowConfig]):
    """Steps that are too small."""

    name = "lr_too_low"
    config_class = LrTooLowConfig
    judges_parts = True
    needs = frozenset({"weights", "lr"})
    muted_in = frozenset({"warmup"})

    def __init__(self, config: LrTooLowConfig) -> None:
        super().__init__(config)
        self._updates = Updates()
        self._peak = 0.0
        self._small, self._slow = Streak(), Streak()
        self._update = math.nan
        self._largest = 0.0
        self._curve = Curve()
        self._norm = math.nan
        self._highest_norm = 0.0
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """Judged on sampled steps; a finding at every step until a sampled one resolves it."""
        step = view.step
        if step is None or not step.lr:
            return None
        lr = max(step.lr)
        self._peak = max(self._peak, lr)
        self._follow(step)
        update = self._updates.typical(view)
        if update is not None:
            self._update = update
            is_at_fault = lr >= self.config.near_peak * self._peak > 0 and not self._has_faded()
            is_at_fault = (
                is_at_fault and self._largest < self.config.has_moved and (update > 0 or (step.grad_norm or 0.0) > 0)
            )
            self._largest = max(self._largest, update)
            self._small.count(step.step, is_at_fault and update < self.config.min_update)
            self._slow.count(step.step, is_at_fault and update < self.config.slow_update)
            is_slow = self._slow.num > 0 and self._is_slow()
            if self._onset is None:
                if self._small.num >= self.config.samples:
                    self._onset = self._small.first
                elif is_slow and self._slow.num >= self.config.samples:
                    self._onset = self._slow.first
            elif not (self._small.num or is_slow):
                falls = ", and the loss falls" if self._slow.num else ""
                finding = self._finding(step.step, "resolved", f"weights change by {update:.2g} per step{falls}")
                self._onset = None
                return finding
        if self._onset is None:
            return None
        is_tiny = self._update < self.config.min_update
        limit = self.config.min_update if is_tiny else self.config.slow_update
        so = "too small to learn" if is_tiny else "the loss hardly falls"
        change = f"weights change by {self._update:.2g} of their norm per step (limit {limit:.2g})"
        return self._finding(step.step, "open", f"{change} at learning rate {lr:.3g}: {so}")

    def resume(self, finding: Finding) -> None:
        """Restores the onset; the next sampled step decides."""
        self._onset, self._update = finding.onset_step, finding.values["update_ratio"]

    def _follow(self, step: AlignedStep) -> None:
        if (loss := step.finite_loss) is not None:
            self._curve.add(loss)
        if (norm := step.finite_grad_norm) is not None:
            self._norm = norm if math.isnan(self._norm) else self._norm + (norm - self._norm) / NORM_MEMORY
            self._highest_norm = max(self._highest_norm, self._norm)

    def _has_faded(self) -> bool:
        """Whether the gradient norm has fallen far below its highest value."""
        return self._highest_norm > FADED * self._norm

    def _is_slow(self) -> bool:
        """Whether the loss hardly falls, known with enough precision."""
        num, means = self._curve.num_points, self._curve.means
        if num < self.config.slow_steps or len(means) < MIN_BUCKETS:
            return False
        line = trend(means[len(means) // 16 :])
        least = self.config.slow_fall * (1.0 if self._onset is None else CALM)
        return line.relative * 1000 / num > -least and line.relative_error < KNOWN

    def _finding(self, step: int, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if state == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._onset if self._onset is not None else step,
            summary=summary,
            state=state,
            phase="update",
            values={"update_ratio": self._update, "peak_lr": self._peak},
        )
