"""lr_too_high: steps so large that they undo what they learn.

Design
------
Two witnesses, either of which is enough for a warning. Where the agent looks at the weights: the typical weight matrix
moves by more than `max_update` of itself in one step, on several sampled steps. A hundredth is large, a tenth means
that ten steps write the weights anew; zero-initialised tensors, biases and norms do that in healthy runs and are left
out. And in the curve: soon after the start, and not in a warm-up, the loss lies well above where the run *began*, for
many steps: an untrained model is at chance already, and only steps that are too large make it worse than that. With
both it is critical. A later divergence has many possible causes, and is `divergence`'s.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.rules.lasting import Lasting
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.rules.updates import Updates
from caboose_daemon.view import JobView

START_POINTS = 3
LEVEL_MEMORY = 8.0


@dataclass(frozen=True)
class LrTooHighConfig(RuleConfig):
    """Thresholds of lr_too_high."""

    max_update: float = 0.1
    """Median update-to-weight ratio of the weight matrices that is too much."""
    samples: int = 2
    """Sampled steps in a row on which it must be."""
    worse_than_start: float = 1.5
    """How many times the run's first loss its level must reach."""
    start_steps: int = 300
    """Steps that count as soon after the start."""
    persist_steps: int = 30
    """Steps in a row that the loss must lie there."""


class LrTooHigh(Rule[LrTooHighConfig]):
    """Steps that are too large."""

    name = "lr_too_high"
    config_class = LrTooHighConfig
    needs = frozenset({"loss"})
    forgets_after = frozenset({"resume", "restart"})

    def __init__(self, config: LrTooHighConfig) -> None:
        super().__init__(config)
        self._updates = Updates()
        self._start: list[float] = []
        self._level = math.nan
        self._num = 0
        self._update = math.nan
        self._num_large = 0
        self._above = Lasting(config.persist_steps, 2 * config.persist_steps)
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding while updates are too large, or the loss lies above its beginning."""
        step = view.step
        if step is None:
            return None
        update = self._updates.typical(view)
        if update is not None:
            self._update = update
            self._num_large = self._num_large + 1 if update > self.config.max_update else 0
        is_above = self._is_above(view, step.step, step.mean_loss)
        is_large = self._num_large >= self.config.samples
        if not (is_above or is_large):
            return self._end(step.step)
        if self._onset is None:
            self._onset = self._above.onset if is_above and self._above.onset is not None else step.step
        lr = f" at a learning rate of {max(step.lr):.3g}" if step.lr else ""
        says = []
        if is_large:
            says.append(f"the typical weight matrix moves by {100 * self._update:.2g} % of itself in a step")
        if is_above:
            says.append(f"the loss lies at {self._level:.4g}, above the {self._first:.4g} it began with")
        severity = Severity.CRITICAL if is_above and is_large else Severity.WARNING
        return self._finding(step.step, severity, "open", " and ".join(says) + lr)

    def resume(self, finding: Finding) -> None:
        """Each witness stands as it was until it is seen otherwise; where the run began is in the finding."""
        values = finding.values
        self._onset, self._update = finding.onset_step, values["update_ratio"]
        self._num_large = self.config.samples if self._update > self.config.max_update else 0
        if values["is_above"]:
            self._start, self._level, self._num = [values["first"]] * START_POINTS, values["level"], 1
            self._above.take_up(finding.onset_step)

    @property
    def _first(self) -> float:
        return sorted(self._start)[len(self._start) // 2] if self._start else math.nan

    def _is_above(self, view: JobView, step: int, loss: float) -> bool:
        if not math.isfinite(loss):
            return self._above.is_open
        self._num += 1
        self._level = loss if self._num == 1 else self._level + (loss - self._level) / LEVEL_MEMORY
        if len(self._start) < START_POINTS:
            if "resume" in view.regime.active:
                self._num = self.config.start_steps  # where it began is not in sight, and this is not soon after it
                return False
            self._start.append(loss)
            return False
        if not self._above.is_open and (self._num > self.config.start_steps or "warmup" in view.regime.active):
            return False
        is_worse = self._first > 0 and self._level > self.config.worse_than_start * self._first
        return self._above.judge(step, is_worse) == "open"

    def _end(self, step: int) -> Finding | None:
        if self._onset is None:
            return None
        finding = self._finding(step, Severity.INFO, "resolved", "updates and loss are in range again")
        self._onset = None
        return finding

    def _finding(self, step: int, severity: Severity, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=self._onset if self._onset is not None else step,
            summary=summary,
            state=state,
            phase="update",
            values={
                "update_ratio": self._update,
                "level": self._level,
                "first": self._first,
                "is_above": float(self._above.is_open),
            },
        )
