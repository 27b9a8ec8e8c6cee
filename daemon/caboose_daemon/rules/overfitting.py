"""overfitting: the validation loss rises while the training loss still falls.

Design
------
Evaluations are rare, so every one counts. The best one so far is remembered with the training loss at that step. It is
overfitting when the validation loss exceeds its best by `rise` *and* by more than its usual scatter, on `persist`
evaluations in a row, or has risen on each of the last `rises` evaluations; and while the training loss (a slow average)
is below its value at the best evaluation: the model still learns, but nothing that generalises. One bad evaluation is
noise; a training loss that rises too has another cause.

After many evaluations their medians over three are used instead: the best of many noisy ones is luck.

A rise that is slow against the scatter of evaluations is seen in all of them: a straight line from the best level on
rises significantly, by as much, over a good part of the run.

The rise is a share of the best value; for losses that have been negative, of the improvement so far (see `progress`).
The scatter is that of the changes between evaluations around their own median, which a steady trend does not change.
The first change, where it is the largest fall of all, is the descent of the run (it may have been evaluated before its
first step) and is left out. An open rise is no scatter. Where the validation loss came
down again after an earlier rise (double descent), the finding mentions it.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.progress import Progress
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

TRAIN_MEMORY = 50.0
SCATTER_MEMORY = 32
MANY = 8
MEDIAN_OF = 3
MIN_CHANGES = 2
TO_MEAN = 1.18
"""Median to mean absolute deviation, for a normal distribution."""
FEW = 4.0
"""A scatter known from n changes is taken to be 1 + FEW / n times as large."""
LUCK = 0.6
"""The best of n normal values is about sqrt(2 ln n) standard deviations below their mean; in usual changes, this."""
MIN_RISING = 8
"""Evaluations since the best level through which a line is known."""
LASTING = 1.0 / 3.0
"""Share of the evaluations since the best level."""
SURE = 5.0
"""Standard errors by which the line must rise; more than chance, because it begins at the lowest level."""


@dataclass(frozen=True)
class OverfittingConfig(RuleConfig):
    """Thresholds of overfitting."""

    rise: float = 0.08
    """Rise of validation above its best, as a share of it (or of its improvement, once it has been negative)."""
    scatters: float = 1.5
    """Rise in usual changes between evaluations that is needed as well, beyond the luck of the best of so many."""
    persist: int = 2
    """Evaluations in a row above both before it is reported."""
    rises: int = 3
    """Evaluations in a row, each worse than the one before, that are enough instead."""
    min_evaluations: int = 6
    """Evaluations before the first judgement, unless it has risen on so many in a row."""


class Overfitting(Rule[OverfittingConfig]):
    """Validation loss rises while training loss falls."""

    name = "overfitting"
    config_class = OverfittingConfig
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch"})

    def __init__(self, config: OverfittingConfig) -> None:
        super().__init__(config)
        self._train = math.nan
        self._num_train = 0
        self._progress = Progress(start_points=1)
        self._best = math.inf
        self._best_step = 0
        self._train_at_best = math.nan
        self._recent: deque[float] = deque(maxlen=MEDIAN_OF)
        self._last = math.nan
        self._num_rises = 0
        self._curve = Curve()
        self._changes: deque[float] = deque(maxlen=SCATTER_MEMORY)
        """Changes between evaluations, from which the scatter is learned."""
        self._held: list[float] = []
        """Changes since the loss was above its best: they count once it is back, because a rise is no scatter."""
        self._scatter = 0.0
        self._num = 0
        self._num_above = 0
        self._has_come_back = False
        self._is_open = False
        self._finding: Finding | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding from the evaluation that shows it until the validation loss is near its best again."""
        step = view.step
        if step is None:
            return None
        if (loss := step.finite_loss) is not None:
            self._num_train += 1
            rate = 1.0 / min(self._num_train, TRAIN_MEMORY)
            before = self._train if self._num_train > 1 else loss
            self._train = before + rate * (loss - before)
        if view.events:
            for validation in of_events(view.events):
                if math.isfinite(validation.loss):
                    self._evaluate(view, validation.loss, step.step)
        finding = self._finding
        if finding is not None and finding.state == "resolved":
            self._finding = None
        return finding

    def resume(self, finding: Finding) -> None:
        """The best validation loss is in the finding."""
        self._best, self._best_step = finding.values["best"], finding.onset_step
        self._progress.restore(finding.values.get("first", self._best), self._best)
        self._train_at_best = finding.values["train_at_best"]
        self._scatter = finding.values["scatter"]
        self._num, self._num_above, self._is_open = self.config.min_evaluations, self.config.persist, True
        self._finding = finding

    def _evaluate(self, view: JobView, loss: float, step: int) -> None:
        self._num += 1
        self._progress.observe(loss, view)
        self._curve.add(loss)
        if self._recent:  # changes of single evaluations: medians over three scatter less
            self._held = [*self._held[-SCATTER_MEMORY:], loss - self._recent[-1]]
        self._recent.append(loss)
        if self._num > MANY:
            loss = median(self._recent)
        self._num_rises = self._num_rises + 1 if loss > self._last else 0
        self._last = loss
        if loss < self._best:
            self._best, self._best_step, self._train_at_best = loss, step, self._train
        is_above = self._is_above(loss)
        if not is_above and not self._is_above(self._recent[-1]):
            self._learn_scatter()
        self._num_above = self._num_above + 1 if is_above else 0
        chances = max(
            0, int(math.log2(self._num / MANY))
        )  # the more evaluations, the more often several are bad in a row
        persist = self.config.persist + chances
        is_slow = self._is_rising_slowly()
        is_rising = is_slow or (is_above and self._num_rises >= self.config.rises)
        is_found = is_rising or (self._num_above >= persist and self._num >= self.config.min_evaluations)
        if self._is_open and not (is_above or is_slow):
            self._is_open, self._has_come_back = False, True
            summary = f"validation loss back at {loss:.4g}, near its best {self._best:.4g}"
            self._finding = self._make_finding(step, loss, "resolved", summary)
        elif is_found or self._is_open:
            self._is_open = True
            share = 100 * (loss - self._best) / max(self._progress.size(self._best), 1e-12)
            rise = f"{share:.0f} % of its improvement" if self._progress.is_signed else f"{share:.0f} %"
            note = "; an earlier rise came down again" if self._has_come_back else ""
            summary = (
                f"validation loss {loss:.4g}, {rise} above its best {self._best:.4g} at step {self._best_step:,}; "
                f"training loss fell from {self._train_at_best:.4g} to {self._train:.4g}{note}"
            )
            self._finding = self._make_finding(step, loss, "open", summary)

    def _learn_scatter(self) -> None:
        self._changes.extend(self._held)
        self._held = []
        if not self._changes:
            return
        changes = list(self._changes)
        if len(changes) < SCATTER_MEMORY and -changes[0] > max(map(abs, changes[1:]), default=0.0):
            del changes[0]
        if len(changes) >= MIN_CHANGES:
            middle, few = median(changes), 1.0 + FEW / len(changes)
            self._scatter = few * TO_MEAN * median(abs(change - middle) for change in changes)

    @property
    def _is_training(self) -> bool:
        return math.isnan(self._train_at_best) or self._train < self._train_at_best

    def _is_rising_slowly(self) -> bool:
        """Whether a line through all evaluations since the best level rises."""
        means = self._curve.means
        if len(means) < 2 * MIN_RISING:
            return False
        levels = [median(means[i : i + MEDIAN_OF]) for i in range(len(means) - MEDIAN_OF + 1)]
        since = means[min(range(len(levels)), key=levels.__getitem__) :]
        if len(since) < max(MIN_RISING, LASTING * len(means)):
            return False
        line = trend(since)
        return (
            self._is_training and line.rises(SURE) and line.change > self.config.rise * self._progress.size(self._best)
        )

    def _is_above(self, loss: float) -> bool:
        rise = loss - self._best
        luck = LUCK * math.sqrt(2 * math.log(max(2, self._num)))
        limit = max(self.config.rise * self._progress.size(self._best), (self.config.scatters + luck) * self._scatter)
        return rise > limit and self._is_training

    def _make_finding(self, step: int, loss: float, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if state == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._best_step,
            summary=summary,
            state=state,
            values={
                "validation_loss": loss,
                "best": self._best,
                "train": self._train,
                "train_at_best": self._train_at_best,
                "scatter": self._scatter,
                "first": self._progress.first,
            },
        )
