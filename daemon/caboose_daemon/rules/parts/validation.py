"""Validation results among the events of a step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caboose_daemon.rules.parts.metric_names import is_accuracy, is_score
from caboose_wire import Event


@dataclass(frozen=True, slots=True)
class Validation:
    """One evaluation: its loss, NaN where it gave none, and its other numbers."""

    loss: float
    metrics: Mapping[str, float]

    @property
    def score(self) -> tuple[str, float] | None:
        """The first metric that is better when higher."""
        return next(((name, value) for name, value in self.metrics.items() if is_score(name)), None)

    @property
    def accuracy(self) -> float | None:
        """The first metric that is an accuracy, as a share, also where it was told in percent."""
        told = next((value for name, value in self.metrics.items() if is_accuracy(name)), None)
        return told / 100.0 if told is not None and told > 1.0 else told


def of_events(events: Sequence[Event]) -> Iterator[Validation]:
    """The evaluations among these events, in their order."""
    for event in events:
        if event.kind == "validation":
            numbers = {k: float(v) for k, v in event.fields.items() if isinstance(v, int | float)}
            yield Validation(numbers.pop("loss", float("nan")), numbers)
