"""underfitting: training and validation loss are both high, close together, and flat.

Design
------
What is high can only be said against something: here, against where the run began, or, where the number of classes is
known, against chance. Against its own beginning it must have fallen by a little, as a small model does: one that was
trained before begins near its end, and one that never learns is `not_learning`'s. A run that has kept more than half of
that, no longer moves (a straight line through the later three quarters of its curve is flat, and known well enough to
say so) and does as badly on data it was trained on as on other data, has nothing left to overfit with: it lacks
capacity, or is regularised, or fed, too hard. The finding comes late by design: early in training, everything looks
like this.

How flat it is has to be known to half a hundredth, and both curves tell of it: where they lie together they move
together. An evaluation of always the same samples scatters far less than batches that are drawn anew, so it counts for
more; the training loss alone must merely not be seen to fall.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.chance import known
from caboose_daemon.rules.parts.curve import Curve, Trend, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

START_POINTS = 3
FELL = 0.97
"""Share of its first loss below which a run has learned something."""
VAGUE = 4.0
"""How many times as vaguely as both together the training loss may be known."""


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
        self._level = self._validation_level = self._reference = math.nan

    def observe(self, view: JobView) -> Finding | None:
        """Judged at each evaluation; a finding at every step until one says otherwise."""
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
            is_low = self._is_low(known(view))
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
        self._validation_level = finding.values.get("validation", math.nan)
        self._reference = finding.values.get("reference", math.nan)

    def _is_low(self, chance: float | None) -> bool:
        config = self.config
        if self._train.num_points < config.min_steps or self._validation.num_points < config.min_evaluations:
            return self._onset is not None
        train, validation = (trend(c.means[len(c.means) // 4 :]) for c in (self._train, self._validation))
        start = chance if chance is not None else sorted(self._start)[len(self._start) // 2]
        self._level, self._validation_level, self._reference = train.level, validation.level, start
        return (
            start > 0
            and train.level > config.kept * start
            and (chance is not None or train.level < FELL * start)
            and abs(validation.level - train.level) < config.gap * train.level
            and _is_flat(train, validation, config.min_improvement, is_open=self._onset is not None)
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
            values={"level": self._level, "validation": self._validation_level, "reference": self._reference},
        )


def _is_flat(train: Trend, validation: Trend, limit: float, *, is_open: bool) -> bool:
    """Whether both together surely move by less than this share, and neither is seen to fall by more.

    Said once, it stands until one surely does.
    """
    lines = (train, validation)
    if any(line.relative < -limit and line.falls(3.0 if is_open else 2.0) for line in lines):
        return False
    if is_open:
        return True
    if train.relative_error > VAGUE * limit:
        return False
    weights = [1.0 / max(line.relative_error, 1e-9) ** 2 for line in lines]
    change = sum(w * line.relative for w, line in zip(weights, lines, strict=True)) / sum(weights)
    return change > -limit and 1.0 / math.sqrt(sum(weights)) < limit
