"""The range of the inputs in a sampled step, kept for the diagnosis."""

from dataclasses import dataclass
from math import isfinite

from caboose_daemon.steps.aligned import AlignedStep


@dataclass(frozen=True)
class InputRange:
    """Lowest and highest element of the batches of all ranks."""

    attempt: int
    step: int
    lowest: float
    highest: float

    @classmethod
    def of(cls, step: AlignedStep) -> "InputRange | None":
        """None where no rank reported a finite range."""
        batches = [report.batch for report in step.reports.values() if report.batch is not None]
        lows = [batch.lowest for batch in batches if batch.lowest is not None and isfinite(batch.lowest)]
        highs = [batch.highest for batch in batches if batch.highest is not None and isfinite(batch.highest)]
        return cls(step.attempt, step.step, min(lows), max(highs)) if lows and highs else None
