"""Reads validation results from the events of a step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caboose_daemon.rules.parts.metric_names import is_accuracy, is_score
from caboose_daemon.steps.settings import as_numbers
from caboose_wire import Event


@dataclass(frozen=True, slots=True)
class Validation:
    """One evaluation: its loss (NaN where none was reported) and its metrics."""

    loss: float
    metrics: Mapping[str, float]

    @property
    def score(self) -> tuple[str, float] | None:
        """The first metric that is better when higher."""
        return next(((name, value) for name, value in self.metrics.items() if is_score(name)), None)

    @property
    def accuracy(self) -> float | None:
        """The first metric that is an accuracy, as a share; a value above 1 is read as percent."""
        value = next((value for name, value in self.metrics.items() if is_accuracy(name)), None)
        return value / 100.0 if value is not None and value > 1.0 else value


def of_events(events: Sequence[Event]) -> Iterator[Validation]:
    """The evaluations among these events, in order."""
    for event in events:
        if event.kind == "validation":
            numbers = as_numbers(event.fields)
            yield Validation(numbers.pop("loss", float("nan")), numbers)
