"""not_learning: the loss has been flat from the beginning.

Design
------
A rule that compares two points calls every noisy run stuck and every stuck run noisy. Here the whole run so far is a
curve of averages, without its first sixteenth (in which even a broken model finds the mean of its targets), and a
straight line through it has to say three things at once: it does not surely fall; what it fell is less than
`min_improvement` of the level; and the line is *known well enough* that a real improvement of twice that would have
shown. The last one is what keeps it silent on noise: a loss that scatters by a fifth takes thousands of steps before
anybody can tell, unless evaluations of always the same samples can.

Flat since the beginning is what has not fallen from its first losses either: a small model that learns all it can
within the first sixteenth has learned. Where the number of classes is known, chance takes the place of first losses
above it. A rule that was not there in the beginning (after a restart of the daemon, or in a run that was resumed) does
not know where that was, and a converged run is flat as well: it speaks only where chance is known.

A model that cannot learn may still memorise: its training loss falls by a little, and surely so. Where there are
evaluations they tell the two apart, because what is memorised does not show in them. Where there are none, chance does:
a loss that is still within a few hundredths of ln(classes) after an epoch, or thousands of steps if nobody knows how
long an epoch is, has found nothing that holds for more than the samples it fell on.

A run that learns slowly looks flat when seen for a short while, hence the patience with live runs, of which every step
is seen. A slow start at chance level falls a little at every step, and surely so; it is not flat. A warm-up from a rate
of zero is waited for. Where the number of classes is known, a loss at ln(classes) is named as chance.
"""

import math
from dataclasses import dataclass
from statistics import fmean, median, stdev

from caboose_daemon.rules.parts.beginning import is_in_sight
from caboose_daemon.rules.parts.chance import known, likely
from caboose_daemon.rules.parts.curve import Curve, Trend, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

MIN_BUCKETS = 24
MIN_EVALUATIONS = 3
KNOWING_EVALUATIONS = 8
START_POINTS = 5
START_ERROR = 1.7
"""Three standard errors of the median of that many normal values, in standard deviations of one."""
TO_SIGMA = 0.886
"""Mean absolute difference of two independent values to the standard deviation of one, if they are normal."""
EIGHTHS = 8
HAS_LEFT = 0.94
"""Share of chance below which an eighth of a run lies that has learned something once."""


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
    fallen: float = 0.03
    """Share of where it began (first losses, or chance) by which a run has fallen that has learned something."""
    chance_steps: int = 2000
    """Steps within that share of chance that are too many, where batch and dataset size do not tell an epoch."""


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
        self._is_in_sight = True
        """Whether the run began where the curve does."""
        self._trend: Trend | None = None
        self._has_learned = False
        self._evaluations = Curve()
        self._start: list[float] = []
        self._last = math.nan
        self._jitter = 0.0
        self._epochs = math.nan
        self._is_at_chance = False

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the run is flat since its beginning; once it has learned, never again."""
        step = view.step
        for evaluation in of_events(view.events) if view.events else ():
            if math.isfinite(evaluation.loss):
                self._evaluations.add(evaluation.loss)
        if step is None or self._has_learned or (loss := step.finite_loss) is None:
            return None
        if not self._curve.num_points:
            self._is_in_sight = is_in_sight(step, view.regime)
        if self._first_step is None:
            self._first_step = step.step
        self._follow(loss)
        has_new = self._curve.add(loss) and "warmup" not in view.regime.active
        enough = self.config.min_steps if step.reports else self.config.min_points
        if has_new and self._curve.num_points >= enough and len(self._curve.means) >= MIN_BUCKETS:
            was_flat, self._trend = self._trend is not None, self._judge(view)
            if was_flat and self._trend is None:
                return self._finding(view, step.step, "resolved")
        return self._finding(view, step.step, "open") if self._trend is not None else None

    def resume(self, finding: Finding) -> None:
        """The curve was lost with the daemon: the verdict stands until a new one can be had."""
        self._first_step = finding.onset_step
        self._trend = Trend(change=finding.values["change"], error=0.0, level=finding.values["level"])

    def _follow(self, loss: float) -> None:
        """Remembers where the run began, and how far one loss lies from the next."""
        if len(self._start) < START_POINTS:
            self._start.append(loss)
        if math.isfinite(self._last):
            self._jitter += (abs(loss - self._last) - self._jitter) / self._curve.num_points
        self._last = loss

    def _judge(self, view: JobView) -> Trend | None:
        """The flat line, if it is one; also decides when the question is settled for good."""
        means = self._curve.means
        line = trend(means[max(1, len(means) // 16) :])
        limit = self.config.min_improvement
        chance = known(view)
        if line.falls(4.0) and line.relative < -5 * limit:
            self._has_learned = True  # a later standstill is a plateau, not a failure to begin
        self._is_at_chance = self._stays_at_chance(view)
        if self._is_at_chance:
            return line
        if self._trend is not None:  # said once, it stands until the loss surely falls, and by enough
            return None if line.falls(2.5) and line.relative <= -limit else line
        is_flat = line.relative > -limit and (not line.falls(2.5) or self._is_memorising())
        is_flat = is_flat and (line.relative_error < 1.5 * limit or self._is_known_from_evaluations(line))
        return line if is_flat and not self._has_fallen(chance) else None

    def _has_fallen(self, chance: float | None) -> bool:
        """Whether a stretch of the run's later half lies surely below where it began."""
        began, error = median(self._start), START_ERROR * TO_SIGMA * self._jitter
        if not self._is_in_sight and chance is None:
            return True  # for all that anybody knows
        if chance is not None and (chance < began or not self._is_in_sight):
            began, error = chance, 0.0
        size = len(self._curve.means) // EIGHTHS
        means = self._curve.means[len(self._curve.means) // 2 :]
        lowest = min(fmean(means[i : i + size]) for i in range(0, len(means) - size + 1, size))
        return began - lowest > max(self.config.fallen * abs(began), error)

    def _stays_at_chance(self, view: JobView) -> bool:
        """Whether the run has been near chance for so long that whatever it falls by is learned by heart."""
        means = self._curve.means
        self._epochs = _epochs(view, self._curve.num_points)
        long = self._epochs >= 1 if math.isfinite(self._epochs) else self._curve.num_points >= self.config.chance_steps
        chance = likely(view, median(self._start)) if long else None
        if chance is None or min(self._start) < (1 - self.config.fallen) * chance:
            return False
        size = len(means) // EIGHTHS
        if min(fmean(means[i : i + size]) for i in range(0, len(means) - size + 1, size)) < HAS_LEFT * chance:
            return False  # it has been elsewhere, and is back: not for want of learning
        recent = means[-len(means) // 4 :]
        lowest = fmean(recent) - 2 * stdev(recent) / math.sqrt(len(recent))
        return lowest > (1 - self.config.fallen) * chance

    def _is_known_from_evaluations(self, line: Trend) -> bool:
        """Whether evaluations, which scatter less, show what a noisy training loss can hardly tell: that it is flat."""
        losses = self._evaluations.means
        if len(losses) < KNOWING_EVALUATIONS or line.relative_error > 4 * self.config.min_improvement:
            return False
        shown = trend(losses)
        return abs(shown.relative) < self.config.min_improvement and shown.relative_error < self.config.min_improvement

    def _is_memorising(self) -> bool:
        """Whether the evaluations, of which the first counts as where they began, have not gone down with it."""
        losses = self._evaluations.means
        if len(losses) < MIN_EVALUATIONS:
            return False
        later = losses[len(losses) // 2 :]
        return min(later) > (1.0 - self.config.min_improvement / 2) * losses[0]

    def _finding(self, view: JobView, step: int, state: str) -> Finding:
        line = self._trend or Trend(0.0, 0.0, self._curve.means[-1])
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if state == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._first_step if self._first_step is not None else step,
            summary="the loss has begun to fall" if state == "resolved" else self._summary(view, line),
            state=state,
            values={"level": line.level, "change": line.change, "points": float(self._curve.num_points)},
        )

    def _summary(self, view: JobView, line: Trend) -> str:
        chance = likely(view, median(self._start)) if self._start else known(view)
        classes = 0.0 if chance is None else round(math.exp(chance))
        if chance is not None and self._is_at_chance and line.relative < -self.config.min_improvement:
            seen = f"{self._epochs:.2g} epochs" if math.isfinite(self._epochs) else f"{self._curve.num_points} steps"
            now = self._curve.means[-1]
            return f"loss is still at {now:.4g} after {seen}; chance for {classes} classes is {chance:.4g}"
        is_chance = chance is not None and abs(line.level / chance - 1.0) < self.config.chance_tolerance
        named = f", which is chance for {classes} classes" if is_chance else ""
        return f"loss has been flat at {line.level:.4g} since the beginning{named}"


def _epochs(view: JobView, num_steps: int) -> float:
    """How often the data was seen in so many steps of a live run; NaN where nobody knows."""
    batch, size = view.setting("batch_size"), view.setting("dataset_length")
    is_live = view.step is not None and view.step.reports
    return num_steps * batch * view.world / size if batch and size and is_live else math.nan
