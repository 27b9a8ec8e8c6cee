"""Validation results among the events of a step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caboose_wire import Event

HIGHER_IS_BETTER = ("accuracy", "acc", "f1", "auc", "bleu", "map", "recall", "precision", "score")
"""Parts of names by which a metric is known to be better when higher."""


@dataclass(frozen=True, slots=True)
class Validation:
    """One evaluation: its loss, NaN where it gave none, and its other numbers."""

    loss: float
    metrics: Mapping[str, float]

    @property
    def score(self) -> tuple[str, float] | None:
        """The first metric that is better when higher."""
        for name, value in self.metrics.items():
            if any(part in name.lower().replace("-", "_").split("_") for part in HIGHER_IS_BETTER):
                return name, value
        return None


def of_events(events: Sequence[Event]) -> Iterator[Validation]:
    """The evaluations among these events, in their order."""
    for event in events:
        if event.kind == "validation":
            numbers = {k: float(v) for k, v in event.fields.items() if isinstance(v, int | float)}
            yield Validation(numbers.pop("loss", float("nan")), numbers)
