"""What the diagnosis keeps of every sampled step: the range of the inputs and the typical update."""

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


@dataclass(frozen=True)
class UpdateRatio:
    """The update of the typical weight matrix as a share of its weights."""

    attempt: int
    step: int
    value: float
