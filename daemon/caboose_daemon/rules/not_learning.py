"""not_learning: the loss has been flat from the beginning.

Design
------
A rule that compares two points calls every noisy run stuck and every stuck run noisy. Here the whole run so far is a
curve of averages, without its first sixteenth (in which even a broken model finds the mean of its targets), and a
straight line through it has to say three things at once: it does not surely fall; what it fell is less than
`min_improvement` of the level; and the line is *known well enough* that a real improvement of twice that would have
shown. The last one is what keeps it silent on noise: a loss that scatters by a fifth takes thousands of steps before
anybody can tell.

A run that learns slowly looks flat when seen for a short while, hence the patience with live runs, of which every step
is seen. A slow start at chance level falls a little at every step, and surely so; it is not flat. A warm-up from a rate
of zero is waited for. Where the number of classes is known, a loss at ln(classes) is named as chance.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.curve import Curve, Trend, trend
from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.view import JobView

MIN_BUCKETS = 24


@dataclass(frozen=True)
class NotLearningConfig(RuleConfig):
    """Thresholds of not_learning."""

    min_steps: int = 500
    """Steps of a live run before anything is said."""
    min_points: int = 80
    """Points of a log before anything is said: most logs write one in many steps, or one an epoch."""
    min_improvement: float = 0.01
    """Share of its level that the loss must have fallen by, along its trend, to be learning."""
    chance_tolerance: float = 0.02
    """How near ln(num_classes) counts as chance level."""


class NotLearning(Rule[NotLearningConfig]):
    """A run that never began to learn."""

    name = "not_learning"
    config_class = NotLearningConfig
    needs = frozenset({"loss"})
    forgets_after = frozenset({"data_switch", "resume"})

    def __init__(self, config: NotLearningConfig) -> None:
        super().__init__(config)
        self._curve = Curve()
        self._first_step: int | None = None
        self._trend: Trend | None = None
        self._has_learned = False

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the run is flat since its beginning; once it has learned, never again."""
        step = view.step
        if step is None or self._has_learned or not math.isfinite(step.mean_loss):
            return None
        if self._first_step is None:
            self._first_step = step.step
        has_new = self._curve.add(step.mean_loss) and "warmup" not in view.regime.active
        enough = self.config.min_steps if step.reports else self.config.min_points
        if has_new and self._curve.num_points >= enough and len(self._curve.means) >= MIN_BUCKETS:
            was_flat, self._trend = self._trend is not None, self._judge()
            if was_flat and self._trend is None:
                return self._finding(view, step.step, "resolved")
        return self._finding(view, step.step, "open") if self._trend is not None else None

    def resume(self, finding: Finding) -> None:
        """The curve was lost with the daemon: the verdict stands until a new one can be had."""
        self._first_step = finding.onset_step
        self._trend = Trend(change=finding.values["change"], error=0.0, level=finding.values["level"])

    def _judge(self) -> Trend | None:
        """The flat line, if it is one; also decides when the question is settled for good."""
        means = self._curve.means
        line = trend(means[max(1, len(means) // 16) :])
        limit = self.config.min_improvement
        if line.falls(4.0) and line.relative < -5 * limit:
            self._has_learned = True  # a later standstill is a plateau, not a failure to begin
        if self._trend is not None:  # said once, it stands until the loss surely falls, and by enough
            return None if line.falls(2.5) and line.relative <= -limit else line
        is_flat = not line.falls(2.5) and line.relative > -limit
        return line if is_flat and line.relative_error < 1.5 * limit else None

    def _finding(self, view: JobView, step: int, state: str) -> Finding:
        line = self._trend or Trend(0.0, 0.0, self._curve.means[-1])
        classes = view.setting("num_classes")
        is_chance = classes is not None and abs(line.level / math.log(classes) - 1.0) < self.config.chance_tolerance
        if state == "resolved":
            summary = "the loss has begun to fall"
        else:
            chance = f", which is chance for {classes:.0f} classes" if is_chance else ""
            summary = f"loss has been flat at {line.level:.4g} since the beginning{chance}"
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if state == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._first_step if self._first_step is not None else step,
            summary=summary,
            state=state,
            values={"level": line.level, "change": line.change, "points": float(self._curve.num_points)},
        )
