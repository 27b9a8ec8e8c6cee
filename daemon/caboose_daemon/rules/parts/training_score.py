"""Reads the accuracy on training data: the user's own metric of a step, or a number beside an evaluation.

Design
------
`monitor.step(loss, metrics={"accuracy": ...})` is training accuracy unless its name says that it comes from an
evaluation; so are names such as `train_acc`, of a step or beside a validation. A value above 1 is percent. Steps are
averaged, since a batch has few samples.
"""

from collections.abc import Mapping

from caboose_daemon.rules.parts.metric_names import is_accuracy, is_of_evaluation, is_training_accuracy

MEMORY = 20


def training_accuracy(metrics: Mapping[str, float], *, is_evaluation: bool = False) -> float | None:
    """The first accuracy on training data among these numbers, as a share; None where there is none."""
    for name, value in metrics.items():
        if is_training_accuracy(name) or (not is_evaluation and is_accuracy(name) and not is_of_evaluation(name)):
            return value / 100.0 if value > 1.0 else value
    return None


class TrainingScore:
    """The recent training accuracy of one run."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of one step."""
        if metrics and (new := training_accuracy(metrics)) is not None:
            self.value = new if self.value is None else self.value + (new - self.value) / MEMORY
