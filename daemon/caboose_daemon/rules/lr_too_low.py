"""lr_too_low: steps so small that nothing is learned.

Design
------
Judged by what the optimizer really did: the typical weight matrix moves by less than `min_update` of itself in a step,
on several sampled steps, while the learning rate stands near its own peak. At the end of a schedule, and in a warm-up,
small steps are the plan; a rate that decayed too early is `lr_schedule`'s and `plateau`'s. Zero-initialised tensors,
biases and norms are left out. Without a look at the weights the rule abstains: a flat loss alone has too many causes.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.rules.updates import Updates
from caboose_daemon.view import JobView


@dataclass(frozen=True)
class LrTooLowConfig(RuleConfig):
    """Thresholds of lr_too_low."""

    min_update: float = 1e-6
    """Median update-to-weight ratio of the weight matrices that is too little."""
    samples: int = 3
    """Sampled steps in a row on which it must be."""
    near_peak: float = 0.1
    """Share of its peak above which the learning rate counts as near it."""


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
        self._num_small = 0
        self._first_small = 0
        self._update = math.nan
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """Judged on sampled steps; a finding at every step until one says otherwise."""
        step = view.step
        if step is None or not step.lr:
            return None
        lr = max(step.lr)
        self._peak = max(self._peak, lr)
        update = self._updates.typical(view)
        if update is not None:
            self._update = update
            is_small = update < self.config.min_update and lr >= self.config.near_peak * self._peak > 0
            if is_small and not self._num_small:
                self._first_small = step.step
            self._num_small = self._num_small + 1 if is_small else 0
            if self._num_small >= self.config.samples and self._onset is None:
                self._onset = self._first_small
            elif not is_small and self._onset is not None:
                finding = self._finding(step.step, "resolved", f"updates are {update:.2g} of the weights again")
                self._onset = None
                return finding
        if self._onset is None:
            return None
        summary = f"the typical weight matrix moves by {self._update:.2g} of itself in a step, at a learning rate of"
        return self._finding(step.step, "open", f"{summary} {lr:.3g}: nothing can be learned at this pace")

    def resume(self, finding: Finding) -> None:
        """Since when; the next sampled step decides."""
        self._onset, self._update = finding.onset_step, finding.values["update_ratio"]

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
