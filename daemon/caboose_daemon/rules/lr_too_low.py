"""lr_too_low: steps so small that nothing is learned.

Design
------
Judged by what the optimizer really did: the typical weight matrix moves by less than `min_update` of itself in a step,
on several sampled steps, while the learning rate stands near its own peak. At the end of a schedule, and in a warm-up,
small steps are the plan; a rate that decayed too early is `lr_schedule`'s and `plateau`'s. A run that has moved its
weights before, or had gradients many times larger, has lost them since, and one without any never had them: not for
want of a rate.

Updates up to ten times as large (`slow_update`) are enough for a model that is nearly right, as in fine-tuning: they
are told where the loss shows that they are not, because it hardly falls (`slow_fall` in a thousand steps), and that is
known well enough to say so.

Zero-initialised tensors, biases and norms are left out. Without a look at the weights the rule abstains: a flat loss
alone has too many causes.
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
"""Standard error of the loss's fall, as a share of its level, up to which it is known."""
MORE = 1.5
"""How many times as much the loss must fall by before it is over."""
NORM_MEMORY = 8
FADED = 10.0
"""How many times the gradient norm of now an earlier one must have been for gradients to be gone."""


@dataclass(frozen=True)
class LrTooLowConfig(RuleConfig):
    """Thresholds of lr_too_low."""

    min_update: float = 1e-6
    """Median update-to-weight ratio of the weight matrices that is too little."""
    slow_update: float = 1e-5
    """The same, that is too little where the loss hardly falls."""
    slow_fall: float = 0.02
    """Share of its level that the loss must fall by in a thousand steps, or it hardly falls."""
    slow_steps: int = 300
    """Steps over which that is judged at least."""
    samples: int = 3
    """Sampled steps in a row on which it must be."""
    has_moved: float = 1e-4
    """Update-to-weight ratio that shows, if it was ever reached, that the rate is not what is too low."""
    near_peak: float = 0.1
    """Share of its peak above which the learning rate counts as near it."""


class Streak:
    """Sampled steps in a row on which something held."""

    def __init__(self) -> None:
        self.num = 0
        self.first = 0

    def count(self, step: int, holds: bool) -> None:
        """One more of them, or the end of the row."""
        if holds and not self.num:
            self.first = step
        self.num = self.num + 1 if holds else 0


class LrTooLow(Rule[LrTooLowConfig]):
    """Steps that are too small."""

    name = "lr_too_low"
    config_class = LrTooLowConfig
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
        """Judged on sampled steps; a finding at every step until one says otherwise."""
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
                again = f"updates are {update:.2g} of the weights again"
                falls = f"the loss falls, by updates of {update:.2g} of the weights"
                finding = self._finding(step.step, "resolved", falls if self._slow.num else again)
                self._onset = None
                return finding
        if self._onset is None:
            return None
        summary = f"the typical weight matrix moves by {self._update:.2g} of itself in a step, at a learning rate of"
        so = "nothing can be learned at this pace" if self._update < self.config.min_update else "the loss hardly falls"
        return self._finding(step.step, "open", f"{summary} {lr:.3g}: {so}")

    def resume(self, finding: Finding) -> None:
        """Since when; the next sampled step decides."""
        self._onset, self._update = finding.onset_step, finding.values["update_ratio"]

    def _follow(self, step: AlignedStep) -> None:
        if (loss := step.finite_loss) is not None:
            self._curve.add(loss)
        if (norm := step.finite_grad_norm) is not None:
            self._norm = norm if math.isnan(self._norm) else self._norm + (norm - self._norm) / NORM_MEMORY
            self._highest_norm = max(self._highest_norm, self._norm)

    def _has_faded(self) -> bool:
        """Whether the gradient was there once, and is gone."""
        return self._highest_norm > FADED * self._norm

    def _is_slow(self) -> bool:
        """Whether the loss surely falls by next to nothing."""
        num, means = self._curve.num_points, self._curve.means
        if num < self.config.slow_steps or len(means) < MIN_BUCKETS:
            return False
        line = trend(means[len(means) // 16 :])
        least = self.config.slow_fall * (1.0 if self._onset is None else MORE)
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
