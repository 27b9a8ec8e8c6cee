"""generalisation_gap: training is far better than validation, and validation no longer improves.

Design
------
Most gaps are no fault: a model that still gets better on new data may be far better on its own. So a gap is reported
where the last few evaluations brought nothing more. Two kinds are seen:

- in accuracy, more than twenty points. Training accuracy is the user's own metric (`monitor.step(metrics=)`, or
  `train_acc` in a log);
- in loss, more than twice the training loss, and by a good part of what the run had to learn (chance where it is known,
  else its first loss): at a training loss near zero twice as much is nothing.

The loss of pairs, which depends on the size of the batch, has no such gap. A gap in loss alone is a note, unless it is
five times as large: healthy models of small data have one, as has a log whose rows are single batches.

`overfitting` sees a validation loss that rises; this rule needs no rise. Dropout and augmentation make the training
loss higher than it would be in an evaluation, so a gap is rather larger than it looks.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from caboose_daemon.rules.parts.beginning import is_start_of_run
from caboose_daemon.rules.parts.chance import known
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.training_score import TrainingScore, training_accuracy
from caboose_daemon.rules.parts.validation import Validation, of_events
from caboose_daemon.steps.view import JobView

TRAIN_MEMORY = 20
START_POINTS = 5
LARGE = 5.0
"""Times the ratio from which a gap in loss alone is more than a note."""
CLOSED = 0.8
"""Share of a limit below which an open gap is closed."""


@dataclass(frozen=True)
class GeneralisationGapConfig(RuleConfig):
    """Thresholds of generalisation_gap."""

    accuracy: float = 0.2
    """Training accuracy above that of validation, as a share of all answers."""
    ratio: float = 2.0
    """Validation over training loss that is needed ..."""
    part: float = 0.25
    """... and their difference, as a share of chance, or of the first loss where the classes are not known."""
    evaluations: int = 4
    """Evaluations in a row with a gap, of which the best is no better than the one before them."""
    improves: float = 0.02
    """Share by which validation must get better to count as still improving."""


class GeneralisationGap(LastingRule[GeneralisationGapConfig]):
    """A gap between training and validation that stays."""

    name = "generalisation_gap"
    config_class = GeneralisationGapConfig
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch"})

    def __init__(self, config: GeneralisationGapConfig) -> None:
        super().__init__(config)
        self._start: list[float] = []
        """The first losses; none where the start of the run was not seen."""
        self._is_start_seen: bool | None = None
        self._train = math.nan
        self._score = TrainingScore()
        self._losses: deque[float] = deque(maxlen=config.evaluations + 1)
        self._accuracies: deque[float] = deque(maxlen=config.evaluations + 1)
        self._num = 0
        """Evaluations in a row with a gap."""

    def observe(self, view: JobView) -> Finding | None:
        """Judged at each evaluation; a finding from the one that shows it until the gap is closed."""
        step = view.step
        if step is None:
            return None
        if (loss := step.finite_loss) is not None:
            if self._is_start_seen is None:
                self._is_start_seen = is_start_of_run(step, view.regime)
            if self._is_start_seen and len(self._start) < START_POINTS:
                self._start.append(loss)
            self._train = loss if math.isnan(self._train) else self._train + (loss - self._train) / TRAIN_MEMORY
        self._score.add(step.metrics)
        for validation in of_events(view.events) if view.events else ():
            if math.isfinite(validation.loss):
                return self._evaluate(view, validation, step.step)
        return self._last

    def resume(self, finding: Finding) -> None:
        """Continues the gap; the size of what was to be learned is in the finding."""
        super().resume(finding)
        scale = finding.values["scale"]
        self._start, self._is_start_seen = [scale] if math.isfinite(scale) else [], False

    def _evaluate(self, view: JobView, validation: Validation, step: int) -> Finding | None:
        train_accuracy = training_accuracy(validation.metrics, is_evaluation=True) or self._score.value
        accuracy = validation.accuracy
        self._losses.append(validation.loss)
        if accuracy is not None:
            self._accuracies.append(accuracy)
        limit = CLOSED if self.is_open else 1.0
        apart = None if accuracy is None or train_accuracy is None else train_accuracy - accuracy
        is_wide = apart is not None and apart > limit * self.config.accuracy
        is_wide = is_wide or self._is_apart(view, validation.loss, limit)
        self._num = self._num + 1 if is_wide else 0
        if not is_wide:
            return self._resolved(
                step, f"validation loss {validation.loss:.4g}, training {self._train:.4g}: gap closed"
            )
        if not self.is_open and (self._num < self.config.evaluations or self._is_improving()):
            return None
        gap = (
            f"validation loss {validation.loss:.4g}, {validation.loss / max(self._train, 1e-12):.3g}x the training loss"
        )
        values = {"validation_loss": validation.loss, "train": self._train, "scale": self._scale(view)}
        if apart is not None and train_accuracy is not None and accuracy is not None:
            gap = f"{gap}; accuracy {100 * accuracy:.3g} % against {100 * train_accuracy:.3g} % in training"
            values |= {"accuracy": accuracy, "train_accuracy": train_accuracy}
        summary = f"{gap}, and no better for {self.config.evaluations} evaluations"
        is_sure = (apart or 0.0) > self.config.accuracy or validation.loss > LARGE * self.config.ratio * self._train
        return self._found(Severity.WARNING if is_sure else Severity.INFO, step, summary, values=values)

    def _is_apart(self, view: JobView, loss: float, limit: float) -> bool:
        if not self._train > 0 or view.facts.get("loss_of_pairs") is True:
            return False
        is_far = loss - self._train > limit * self.config.part * self._scale(view)
        return is_far and loss > limit * self.config.ratio * self._train

    def _scale(self, view: JobView) -> float:
        """The loss of a model that has learned nothing; NaN where it is not known."""
        return known(view) or (median(self._start) if self._start else math.nan)

    def _is_improving(self) -> bool:
        """Whether the evaluations with a gap brought anything, in loss or in accuracy."""
        first, *later = self._losses
        if later and min(later) < (1.0 - self.config.improves) * first:
            return True
        if len(self._accuracies) < 2:
            return False
        began, *since = self._accuracies
        return max(since) > began + self.config.improves * (1.0 - began)
