"""underfitting: training and validation loss are both high, close together, and flat.

Design
------
"High" needs a reference: the start of the run, or chance where the number of classes is known. Against its own start
the loss must have fallen a little, as a small model's does: a pre-trained model starts near its end, and one that never
learns is `not_learning`'s. A run that has kept more than half of its start, no longer moves (a straight line through
the later three quarters of its curve is flat, and known precisely enough) and is as bad on training data as on other
data cannot overfit: it lacks capacity, or regularisation or data is too strong for it. The finding comes late by
design: early in training every run looks like this.

The flatness must be known to half a percent, and both curves contribute: where they are close together they move
together. An evaluation on fixed samples scatters far less than random batches, so it counts for more; the training loss
alone must only not fall visibly.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.chance import known
from caboose_daemon.rules.parts.curve import Curve, Trend, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.standstill import joint
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

START_POINTS = 3
FELL = 0.97
"""Share of its first loss below which a run has learned something."""
VAGUE = 4.0
"""Limit on the training loss's relative error, as a multiple of that for both curves together."""


@dataclass(frozen=True)
class UnderfittingConfig(RuleConfig):
    """Thresholds of underfitting."""

    min_steps: int = 100
    """Steps (or logged points) before the first judgement."""
    min_evaluations: int = 5
    """Evaluations before the first judgement."""
    kept: float = 0.5
    """Share of its first loss (or of chance) above which the loss is high."""
    gap: float = 0.1
    """Relative difference of validation and training loss below which they are close together."""
    min_improvement: float = 0.005
    """Fall of a loss over the later three quarters of the run, as a share of its level, below which it is flat."""


class Underfitting(Rule[UnderfittingConfig]):
    """Training and validation loss both high and flat."""

    name = "underfitting"
    config_class = UnderfittingConfig
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch"})

    def __init__(self, config: UnderfittingConfig) -> None:
        super().__init__(config)
        self._train = Curve()
        self._validation = Curve()
        self._start: list[float] = []
        self._onset: int | None = None
        self._level = self._validation_level = self._reference = math.nan
        self._reference_name = "reference"

    def observe(self, view: JobView) -> Finding | None:
        """Judged at each evaluation; a finding at every step until one resolves it."""
        step = view.step
        if step is None:
            return None
        if (loss := step.finite_loss) is not None:
            self._train.add(loss)
            if len(self._start) < START_POINTS:
                self._start.append(loss)
        if not view.events:
            return self._finding(step.step, "open") if self._onset is not None else None
        is_new = False
        for validation in of_events(view.events):
            if math.isfinite(validation.loss):
                is_new |= self._validation.add(validation.loss)
        if is_new and "warmup" not in view.regime.active:
            is_underfitting = self._is_underfitting(known(view))
            if is_underfitting and self._onset is None:
                self._onset = step.step
            elif not is_underfitting and self._onset is not None:
                finding = self._finding(step.step, "resolved")
                self._onset = None
                return finding
        return self._finding(step.step, "open") if self._onset is not None else None

    def resume(self, finding: Finding) -> None:
        """Restores onset and levels; the curves were lost, so it lasts until new ones resolve it."""
        self._onset, self._level = finding.onset_step, finding.values["level"]
        self._validation_level = finding.values.get("validation", math.nan)
        self._reference = finding.values.get("reference", math.nan)

    def _is_underfitting(self, chance: float | None) -> bool:
        config = self.config
        if self._train.num_points < config.min_steps or self._validation.num_points < config.min_evaluations:
            return self._onset is not None
        train, validation = (
            trend(c.means[len(c.means) // 4 :], remembers=True) for c in (self._train, self._validation)
        )
        start = chance if chance is not None else sorted(self._start)[len(self._start) // 2]
        self._level, self._validation_level, self._reference = train.level, validation.level, start
        self._reference_name = "start" if chance is None else "chance"
        return (
            start > 0
            and train.level > config.kept * start
            and (chance is not None or train.level < FELL * start)
            and abs(validation.level - train.level) < config.gap * train.level
            and _is_flat(train, validation, config.min_improvement, is_open=self._onset is not None)
        )

    def _finding(self, step: int, state: str) -> Finding:
        losses = f"training loss {self._level:.4g} and validation loss {self._validation_level:.4g}"
        if state == "resolved":
            summary = f"{losses} are no longer both high, close together and flat"
        else:
            against = f"{self._reference_name} {self._reference:.4g}"
            summary = f"{losses} both high ({against}), close together and flat since step {self._onset or 0:,}"
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if state == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._onset if self._onset is not None else step,
            summary=summary,
            state=state,
            values={"level": self._level, "validation": self._validation_level, "reference": self._reference},
        )


def _is_flat(train: Trend, validation: Trend, limit: float, *, is_open: bool) -> bool:
    """Whether both together move by less than this share, and neither falls significantly by more.

    Once reported, it lasts until one does.
    """
    lines = (train, validation)
    if any(line.relative < -limit and line.falls(3.0 if is_open else 2.0) for line in lines):
        return False
    if is_open:
        return True
    if train.relative_error > VAGUE * limit:
        return False
    change, error = joint(lines)
    return change > -limit and error < limit
