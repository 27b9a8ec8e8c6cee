"""overfitting: validation gets worse while the training loss still falls.

Design
------
Validation is seen rarely, so every number of it counts. The best one so far is remembered with the training loss that
the run had then. It is overfitting when validation stands above its best by `rise` *and* by more than it usually
scatters, on `persist` evaluations in a row, or has risen on each of the last `rises` evaluations to there; and while
the training loss (a slow average) is below what it was at the best: the model still learns, but no longer what carries
over. One bad evaluation is noise; a training loss that rises as well is another matter.

Once there are many evaluations, their medians over three are looked at instead: the best of many noisy ones is luck.

How far above is a share of the best one; of losses that have been negative, of the way that they came down (see
`progress`). The scatter of validation is that of its changes from one evaluation to the next, without the general fall.
A validation that has come down again after a rise before (double descent) is told with the finding.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.progress import Progress
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

TRAIN_MEMORY = 50.0
SCATTER_MEMORY = 16
MANY = 8
MEDIAN_OF = 3
LUCK = 0.6
"""The best of n normal values lies about sqrt(2 ln n) standard deviations below their mean; in usual changes, this."""


@dataclass(frozen=True)
class OverfittingConfig(RuleConfig):
    """Thresholds of overfitting."""

    rise: float = 0.08
    """How far above its best validation must stand, as a share of it (or of its way, once it has been negative)."""
    scatters: float = 1.5
    """How many times its usual change between evaluations it must stand above what the best of so many is by luck."""
    persist: int = 2
    """Evaluations in a row that do."""
    rises: int = 3
    """Evaluations in a row, each worse than the one before, that are enough instead."""
    min_evaluations: int = 3
    """Evaluations before anything is said."""


class Overfitting(Rule[OverfittingConfig]):
    """Learning by heart."""

    name = "overfitting"
    config_class = OverfittingConfig
    needs = frozenset({"loss"})
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
        self._changes: deque[float] = deque(maxlen=MANY)
        self._num_changes = 0
        self._scatter = 0.0
        self._num = 0
        self._num_above = 0
        self._has_come_back = False
        self._is_open = False
        self._finding: Finding | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding from the evaluation that shows it until validation is near its best again."""
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
        """The best validation is in the finding."""
        self._best, self._best_step = finding.values["best"], finding.onset_step
        self._progress.take_up(finding.values.get("first", self._best), self._best)
        self._train_at_best = finding.values["train_at_best"]
        self._scatter, self._num_changes = finding.values["scatter"], SCATTER_MEMORY
        self._num, self._num_above, self._is_open = self.config.min_evaluations, self.config.persist, True
        self._finding = finding

    def _evaluate(self, view: JobView, loss: float, step: int) -> None:
        self._num += 1
        self._progress.observe(loss, view)
        if self._recent:  # of the evaluations themselves: medians over three change by less than they scatter
            self._changes.append(abs(loss - self._recent[-1]))
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
        is_lasting = self._num_above >= self.config.persist or (is_above and self._num_rises >= self.config.rises)
        is_found = is_lasting and self._num >= self.config.min_evaluations
        if self._is_open and not is_above:
            self._is_open, self._has_come_back = False, True
            self._finding = self._say(step, loss, "resolved", "validation is near its best again")
        elif is_found or self._is_open:
            self._is_open = True
            share = 100 * (loss - self._best) / max(self._progress.size(self._best), 1e-12)
            rise = f"{share:.0f} % of its way" if self._progress.is_signed else f"{share:.0f} %"
            note = "; it has come down after a rise before (double descent)" if self._has_come_back else ""
            summary = (
                f"validation loss {loss:.4g} is {rise} above its best of {self._best:.4g} at step"
                f" {self._best_step}, while the training loss fell from {self._train_at_best:.4g} to"
                f" {self._train:.4g}{note}"
            )
            self._finding = self._say(step, loss, "open", summary)

    def _learn_scatter(self) -> None:
        """From the changes up to now, those of an excursion that has ended included; one that lasts is not scatter."""
        for change in self._changes:
            self._num_changes += 1
            self._scatter += (change - self._scatter) / min(self._num_changes, SCATTER_MEMORY)
        self._changes.clear()

    def _is_above(self, loss: float) -> bool:
        rise = loss - self._best
        is_training = math.isnan(self._train_at_best) or self._train < self._train_at_best
        luck = LUCK * math.sqrt(2 * math.log(max(2, self._num)))
        limit = max(self.config.rise * self._progress.size(self._best), (self.config.scatters + luck) * self._scatter)
        return rise > limit and is_training

    def _say(self, step: int, loss: float, state: str, summary: str) -> Finding:
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
