"""underfitting: training and validation loss are both high, close together, and flat.

Design
------
What is high can only be said against something: here, against where the run began, or, where the number of classes is
known, against chance. A run that has kept more than half of that, no longer moves (a straight line through the later
three quarters of its curve is flat, and known well enough to say so) and does as badly on data it was trained on as on
other data, has nothing left to overfit with: it lacks capacity, or is regularised, or fed, too hard. The finding comes
late by design: early in training, everything looks like this.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.curve import Curve, trend
from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.rules.validation import of_events
from caboose_daemon.view import JobView

START_POINTS = 3


@dataclass(frozen=True)
class UnderfittingConfig(RuleConfig):
    """Thresholds of underfitting."""

    min_steps: int = 100
    """Steps (or logged points) before anything is said."""
    min_evaluations: int = 5
    """Evaluations before anything is said."""
    kept: float = 0.5
    """Share of its first loss (or of chance level) that a run must have kept to be called high."""
    gap: float = 0.1
    """How close validation and training loss lie, as a share."""
    min_improvement: float = 0.005
    """Share of its level that either must fall by over the later three quarters of the run."""


class Underfitting(Rule[UnderfittingConfig]):
    """Both losses high and still."""

    name = "underfitting"
    config_class = UnderfittingConfig
    needs = frozenset({"loss"})
    forgets_after = frozenset({"data_switch"})

    def __init__(self, config: UnderfittingConfig) -> None:
        super().__init__(config)
        self._train = Curve()
        self._validation = Curve()
        self._start: list[float] = []
        self._onset: int | None = None
        self._level = math.nan

    def observe(self, view: JobView) -> Finding | None:
        """Judged at each evaluation; a finding at every step until one says otherwise."""
        step = view.step
        if step is None:
            return None
        if math.isfinite(step.mean_loss):
            self._train.add(step.mean_loss)
            if len(self._start) < START_POINTS:
                self._start.append(step.mean_loss)
        if not view.events:
            return self._finding(step.step, "open") if self._onset is not None else None
        is_new = False
        for validation in of_events(view.events):
            if math.isfinite(validation.loss):
                is_new |= self._validation.add(validation.loss)
        if is_new and "warmup" not in view.regime.active:
            is_low = self._is_low(view.setting("num_classes"))
            if is_low and self._onset is None:
                self._onset = step.step
            elif not is_low and self._onset is not None:
                finding = self._finding(step.step, "resolved")
                self._onset = None
                return finding
        return self._finding(step.step, "open") if self._onset is not None else None

    def resume(self, finding: Finding) -> None:
        """Since when; the curves were lost, so it stands until they show otherwise."""
        self._onset, self._level = finding.onset_step, finding.values["level"]

    def _is_low(self, num_classes: float | None) -> bool:
        config = self.config
        if self._train.num_points < config.min_steps or self._validation.num_points < config.min_evaluations:
            return self._onset is not None
        lines = [trend(means[len(means) // 4 :]) for means in (self._train.means, self._validation.means)]
        train, validation = lines
        start = math.log(num_classes) if num_classes is not None else sorted(self._start)[len(self._start) // 2]
        self._level = train.level
        return (
            start > 0
            and train.level > config.kept * start
            and abs(validation.level - train.level) < config.gap * train.level
            and all(line.relative > -config.min_improvement for line in lines)
            and all(line.relative_error < config.min_improvement for line in lines)
        )

    def _finding(self, step: int, state: str) -> Finding:
        summary = (
            "training or validation loss moves again"
            if state == "resolved"
            else f"training and validation loss both stand at about {self._level:.4g}, close together and flat"
        )
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if state == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._onset if self._onset is not None else step,
            summary=summary,
            state=state,
            values={"level": self._level},
        )
