"""not_learning: the loss has been flat since the start of the run.

Design
------
Comparing two points would call every noisy run stuck and every stuck run noisy. Here the whole run so far is a curve of
averages, without its first sixteenth (in which even a broken model finds the mean of its targets). A straight line
through it must meet three conditions: it does not fall significantly; its fall is less than `min_improvement` of the
level; and it is *known precisely enough* that twice that improvement would show. The last one keeps the rule silent on
noise: a loss that scatters by 20 % takes thousands of steps to judge, unless evaluations on fixed samples show it
earlier.

Flat since the start also means not fallen from the first losses: a small model that learns all it can within the first
sixteenth has learned. Where the number of classes is known, chance replaces first losses above it. A rule that did not
see the start (after a restart of the daemon, or in a resumed run) does not know the first losses, and a converged run
is flat as well: it reports only where chance is known.

A model that cannot learn may still memorise: its training loss falls a little, and significantly. Evaluations, where
there are any, distinguish the two, because memorised samples do not improve them. Without evaluations chance does: a
loss still within a few percent of ln(classes) after an epoch (or after `chance_steps` where the length of an epoch is
unknown) has found nothing that holds beyond the samples it fell on.

Where the loss shows its targets, chance is the loss of an answer without a look at the inputs (see `unexplained`): a
language model at the unigram entropy, or a regression that predicts the mean, has not learned, whatever it came from.

A log is judged in hindsight (see `hindsight`), when half of it is over. Any run that learns has fallen visibly by then.
So it need not be flat to a percent: that it fell by less than `least_progress` is enough, if that is certain. A rise
above the start is cut off first, because coming back from it is no progress. Rows that resemble their neighbours are
fewer observations than rows. A log of 12 to 19 rows is judged at its last one. One that falls, but in a straight line
at a tiny rate, has not learned either (see `creeping`).

A run that learns slowly looks flat over a short time, hence the many steps for live runs, of which every step is seen.
A slow start at chance level falls significantly by a little at every step; it is not flat. A warm-up from a rate of
zero is waited for. Where the number of classes is known, a loss at ln(classes) is reported as chance.
"""

import itertools
import math
from dataclasses import dataclass
from statistics import fmean, median, stdev

from caboose_daemon.rules.parts.beginning import is_start_of_run
from caboose_daemon.rules.parts.chance import known, likely
from caboose_daemon.rules.parts.creeping import Creeping
from caboose_daemon.rules.parts.curve import Curve, Trend, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.hindsight import LOSSES, is_last, is_too_early
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.standstill import standstill
from caboose_daemon.rules.parts.unexplained import Unexplained
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

MIN_BUCKETS = 16
MIN_WHOLE = 12
"""Losses of a whole log that are enough."""
MIN_EVALUATIONS = 3
MEMORISING_POINTS = 80
"""Points before a significant fall can be memorisation: a slow start at chance level looks the same for a while."""
KNOWING_EVALUATIONS = 5
VAGUE = 15.0
"""Limit on the training loss's relative error, as a multiple of the improvement, where evaluations know better."""
START_POINTS = 5
START_ERROR = 1.7
"""Three standard errors of the median of that many normal values, in standard deviations of one."""
MEDIAN_TO_SIGMA = 1.05
"""The median of such differences likewise."""
TO_SIGMA = 0.886
"""Mean absolute difference of two independent values to the standard deviation of one, if they are normal."""
HIGH = 2.0
"""Standard deviations above its start at which a loss has risen."""
CERTAIN = 2.0
"""Standard errors to the bound of a fall."""
EIGHTHS = 8
HAS_LEFT = 0.94
"""Share of chance; an eighth of the run below it shows that something was learned once."""


@dataclass(frozen=True)
class NotLearningConfig(RuleConfig):
    """Thresholds of not_learning."""

    min_steps: int = 500
    """Steps of a live run before the first judgement."""
    epoch_steps: int = 200
    """Likewise where that is an epoch or more, since a run that has seen all of its samples has had its chance, or
    where many samples show that the loss is that of an answer without a look at the inputs."""
    min_points: int = 20
    """Points of a log before the first judgement; most logs have one per many steps, or one per epoch."""
    min_improvement: float = 0.01
    """Fall of the loss along its trend, as a share of its level, below which the run is flat."""
    chance_tolerance: float = 0.02
    """Relative distance from ln(num_classes) that counts as chance level."""
    fallen: float = 0.03
    """Fall from the start (first losses, or chance), as a share, that shows that something was learned."""
    least_progress: float = 0.06
    """Share of its level by which a log must have fallen by half of its rows, if noise hides how much it fell."""
    at_once: float = 0.6
    """Share of its start above which a log that fell only in its first quarter has learned no more than the frequencies
    of its targets."""
    creeping_rate: float = 2e-6
    """Highest learning rate at which a log that falls a little, in a straight line, is reported."""
    chance_steps: int = 2000
    """Steps within that share of chance that are reported, where batch and dataset size are unknown."""


class NotLearning(Rule[NotLearningConfig]):
    """A loss that is flat since the start."""

    name = "not_learning"
    config_class = NotLearningConfig
    judges_parts = True
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch", "resume"})

    def __init__(self, config: NotLearningConfig) -> None:
        super().__init__(config)
        self._curve = Curve()
        self._first_step: int | None = None
        self._is_start_seen = True
        """Whether the curve begins at the start of the run."""
        self._trend: Trend | None = None
        self._has_learned = False
        self._evaluations = Curve()
        self._start: list[float] = []
        self._last = math.nan
        self._jitter = 0.0
        self._epochs = math.nan
        self._is_at_chance = False
        self._unexplained = Unexplained()
        self._creeping = Creeping()
        self._creeps = False
        self._fell_from: float | None = None
        """The first loss, of a log that fell in its first rows only."""

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the run is flat since its start; once it has learned, never again."""
        step = view.step
        for evaluation in of_events(view.events) if view.events else ():
            if math.isfinite(evaluation.loss):
                self._evaluations.add(evaluation.loss)
        if step is None or self._has_learned or (loss := step.finite_loss) is None:
            return None
        if not self._curve.num_points:
            self._is_start_seen = is_start_of_run(step, view.regime)
        if self._first_step is None:
            self._first_step = step.step
        self._unexplained.observe(step)
        self._follow(loss)
        if step.stands_for_many:
            self._creeping.follow(step, loss)
        has_new = self._curve.add(loss) and "warmup" not in view.regime.active
        if has_new and self._is_enough(view, is_log=step.stands_for_many):
            was_flat, self._trend = self._trend is not None, self._judge(view)
            if was_flat and self._trend is None:
                return self._finding(view, step.step, "resolved")
        return self._finding(view, step.step, "open") if self._trend is not None else None

    def resume(self, finding: Finding) -> None:
        """The curve was lost with the daemon: the verdict is kept until there is enough for a new one."""
        self._first_step = finding.onset_step
        self._trend = Trend(change=finding.values["change"], error=0.0, level=finding.values["level"])

    def _is_enough(self, view: JobView, *, is_log: bool) -> bool:
        """Whether there are enough losses to judge: a log that is over will have no more."""
        num = self._curve.num_points
        if not is_log:
            return num >= self._least_steps(view) and len(self._curve.means) >= MIN_BUCKETS
        if num >= MIN_WHOLE and is_last(view, num):
            return True
        return num >= self.config.min_points and len(self._curve.means) >= MIN_BUCKETS and not is_too_early(view, num)

    def _least_steps(self, view: JobView) -> int:
        epochs = _epochs(view, self._curve.num_points)
        is_soon = epochs >= 1 or self._unexplained.is_well_known
        return min(self.config.epoch_steps, self.config.min_steps) if is_soon else self.config.min_steps

    def _follow(self, loss: float) -> None:
        """Records the first losses, and the mean difference between neighbouring losses."""
        if len(self._start) < START_POINTS:
            self._start.append(loss)
        if math.isfinite(self._last):
            self._jitter += (abs(loss - self._last) - self._jitter) / self._curve.num_points
        self._last = loss

    def _judge(self, view: JobView) -> Trend | None:
        """The trend if it is flat, else None; also decides when the run has learned for good."""
        means = self._means(view)
        line = trend(means[max(1, len(means) // 16) :], remembers=True)
        limit = self.config.min_improvement
        chance = known(view)
        still, start = self._fell_at_once(view), self._start[0]
        has_fallen = still is not None and still.level < (1.0 - self.config.fallen) * start
        self._fell_from = start if has_fallen else None
        if still is not None:
            return still
        if (creeping := self._line_of_creeping(view)) is not None:
            return creeping
        if line.falls(4.0) and line.relative < -5 * limit and view.step is not None:
            self._has_learned = not view.step.stands_for_many  # if it is flat later, that is a plateau
        self._is_at_chance = self._stays_at_chance(view)
        if self._is_at_chance or self._explains_nothing(line):
            return line
        if self._trend is not None:  # once reported, it lasts until the loss falls significantly, and by enough
            return None if line.falls(2.5) and line.relative <= -limit else line
        is_flat = line.relative > -limit and (not line.falls(2.5) or self._is_memorising())
        is_flat = is_flat and (
            line.relative_error < 1.5 * limit or self._is_known_from_evaluations(line) or self._has_no_trend(view, line)
        )
        return line if is_flat and not self._has_fallen(view, line, chance) else None

    def _means(self, view: JobView) -> list[float]:
        """The curve; in a log, a rise above the start is cut off, because coming back from it is no progress."""
        means = self._curve.means
        if view.step is None or not view.step.stands_for_many:
            return means
        most = min(self._start[0], median(self._start)) + HIGH * self._row_scatter()
        return [min(mean, most) for mean in means]

    def _row_scatter(self) -> float:
        """The standard deviation of a log's row, from its neighbours; a jump or two do not raise it."""
        changes = [abs(b - a) for a, b in itertools.pairwise(self._curve.means)]
        return MEDIAN_TO_SIGMA * median(changes) * math.sqrt(self._curve.width)

    def _has_fallen(self, view: JobView, line: Trend, chance: float | None) -> bool:
        """Whether a part of the run's later half is significantly below the start."""
        is_log = view.step is not None and view.step.stands_for_many
        start, error = median(self._start), START_ERROR * TO_SIGMA * self._jitter
        if is_log:  # the next rows of a log are far from the start
            start, error = self._start[0], 3.0 * self._row_scatter()
        if not self._is_start_seen and chance is None:
            return True  # it may have, before this rule saw the run
        if chance is not None and (chance < start or not self._is_start_seen):
            start, error = chance, 0.0
        size = len(self._curve.means) // EIGHTHS
        means = self._curve.means[len(self._curve.means) // 2 :]
        lowest = min(fmean(means[i : i + size]) for i in range(0, len(means) - size + 1, size))
        fallen = self.config.fallen
        if is_log:  # the lowest of a few rows may be so by luck
            lowest, fallen = line.level + min(0.0, line.change / 2), self.config.least_progress
        return start - lowest > max(fallen * abs(start), error)

    def _fell_at_once(self, view: JobView) -> Trend | None:
        """The line through a log that fell from its first value to a level not far below, and not since.

        A model learns the frequencies of its targets within a few steps (a language model is then at the unigram
        entropy). Learning anything else takes longer than a few rows of a log. A row of a live run is one step, and a
        small model may be at its noise floor as fast.
        """
        if view.step is None or not view.step.stands_for_many or not self._is_start_seen:
            return None
        limit = self.config.min_improvement / 2
        line = standstill(self._curve, self._evaluations, limit, is_open=self._trend is not None)
        return line if line is not None and line.level > self.config.at_once * self._start[0] > 0 else None

    def _line_of_creeping(self, view: JobView) -> Trend | None:
        """The line through a log that falls hundreds of times too slowly."""
        num_in_all = view.setting(LOSSES) or 0.0
        found = self._creeping.line(self.config.creeping_rate, num_in_all) if self._is_start_seen else None
        self._creeps = found is not None
        return found

    def _stays_at_chance(self, view: JobView) -> bool:
        """Whether the run has been near chance for so long that any small fall is memorisation."""
        means = self._curve.means
        self._epochs = _epochs(view, self._curve.num_points)
        long = self._epochs >= 1 if math.isfinite(self._epochs) else self._curve.num_points >= self.config.chance_steps
        chance = likely(view, median(self._start)) if long else None
        if chance is None or min(self._start) < (1 - self.config.fallen) * chance:
            return False
        size = len(means) // EIGHTHS
        if min(fmean(means[i : i + size]) for i in range(0, len(means) - size + 1, size)) < HAS_LEFT * chance:
            return False  # it was well below chance once, so it did learn
        recent = means[-len(means) // 4 :]
        lowest = fmean(recent) - 2 * stdev(recent) / math.sqrt(len(recent))
        return lowest > (1 - self.config.fallen) * chance

    def _explains_nothing(self, line: Trend) -> bool:
        """Whether the loss has always been that of an answer without a look at the inputs, and does not fall."""
        share, least, means = self._unexplained.share, 1.0 - self.config.fallen, self._curve.means
        if share is None or (later := trend(means[len(means) // 2 :], remembers=True)).falls(2.5):
            return False
        if later.relative < -self.config.min_improvement or line.relative_error > 2 * self.config.fallen:
            return False
        return share > least and self._unexplained.lowest > least - self.config.fallen

    def _is_known_from_evaluations(self, line: Trend) -> bool:
        """Whether evaluations, which scatter less, show that a noisy training loss is flat."""
        losses = self._evaluations.means
        if len(losses) < KNOWING_EVALUATIONS or line.relative_error > VAGUE * self.config.min_improvement:
            return False
        shown = trend(losses)
        return abs(shown.relative) < self.config.min_improvement and shown.relative_error < self.config.min_improvement

    def _has_no_trend(self, view: JobView, line: Trend) -> bool:
        """Whether a log has certainly fallen by less than any run that learns, if not exactly by nothing."""
        if view.step is None or not view.step.stands_for_many:
            return False
        error, least = line.relative_error, self.config.least_progress
        return error < least and line.relative - CERTAIN * error > -least

    def _is_memorising(self) -> bool:
        """Whether the evaluations have not fallen below the first one."""
        losses = self._evaluations.means
        if len(losses) < MIN_EVALUATIONS or self._curve.num_points < MEMORISING_POINTS:
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
            summary=f"loss falls now, at {line.level:.4g}" if state == "resolved" else self._summary(view, line),
            state=state,
            values={
                "level": line.level,
                "change": line.change,
                "points": float(self._curve.num_points),
                **({"creeping_lr": self._creeping.peak} if self._creeps else {}),
                **({"start": self._fell_from} if self._fell_from is not None else {}),
            },
        )

    def _summary(self, view: JobView, line: Trend) -> str:
        if self._creeps:
            return self._creeping.summary(line)
        if self._fell_from is not None:
            return f"loss flat at {line.level:.4g} since its first rows, in which it fell from {self._fell_from:.4g}"
        chance = likely(view, median(self._start)) if self._start else known(view)
        classes = 0.0 if chance is None else round(math.exp(chance))
        if chance is not None and self._is_at_chance and line.relative < -self.config.min_improvement:
            seen = f"{self._epochs:.2g} epochs" if math.isfinite(self._epochs) else f"{self._curve.num_points:,} steps"
            now = self._curve.means[-1]
            return f"loss still {now:.4g} after {seen}, chance for {classes} classes is {chance:.4g}"
        is_chance = chance is not None and abs(line.level / chance - 1.0) < self.config.chance_tolerance
        named = f" (chance for {classes} classes)" if is_chance else ""
        return f"loss flat at {line.level:.4g}{named} since step {self._first_step or 0:,}, the start of the run"


def _epochs(view: JobView, num_steps: int) -> float:
    """Epochs in so many steps of a live run; NaN where unknown."""
    batch, size = view.setting("batch_size"), view.setting("dataset_length")
    is_live = view.step is not None and view.step.reports
    return num_steps * batch * view.world / size if batch and size and is_live else math.nan
