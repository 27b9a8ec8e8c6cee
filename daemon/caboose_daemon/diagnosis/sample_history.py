"""What the diagnosis keeps of every sampled step: the inputs, the targets of the loss, and the typical update."""

from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from caboose_daemon.steps.aligned import AlignedStep


@dataclass(frozen=True)
class InputRange:
    """Lowest and highest element, and the mean, of the batches of all ranks."""

    attempt: int
    step: int
    lowest: float
    highest: float
    mean: float | None = None
    """Of all elements; None where the agent does not report it."""

    @classmethod
    def of(cls, step: AlignedStep) -> "InputRange | None":
        """None where no rank reported a finite range."""
        batches = [report.batch for report in step.reports.values() if report.batch is not None]
        lows = [batch.lowest for batch in batches if batch.lowest is not None and isfinite(batch.lowest)]
        highs = [batch.highest for batch in batches if batch.highest is not None and isfinite(batch.highest)]
        means = [batch.mean for batch in batches if batch.mean is not None and isfinite(batch.mean)]
        mean = fmean(means) if means else None
        return cls(step.attempt, step.step, min(lows), max(highs), mean) if lows and highs else None


@dataclass(frozen=True)
class TargetSample:
    """The targets of the loss, over all ranks."""

    attempt: int
    step: int
    loss: float | None
    blind: float | None
    """The loss of the best answer without a look at the inputs: the variance of real targets, the entropy of classes.
    None where neither is known."""
    commonest: float | None
    """Share of the commonest class; None where the targets are no classes."""

    @classmethod
    def of(cls, step: AlignedStep) -> "TargetSample | None":
        """None where no rank saw any."""
        batches = [report.batch for report in step.reports.values() if report.batch is not None]
        variances = [b.target_variance for b in batches if b.target_variance is not None]
        shares = [b.commonest_share for b in batches if b.commonest_share is not None]
        if not variances and not shares:
            return None
        entropies = [b.target_entropy for b in batches if b.target_entropy is not None]
        blind = fmean(variances or entropies) if variances or entropies else None
        return cls(step.attempt, step.step, step.finite_loss, blind, fmean(shares) if shares else None)


@dataclass(frozen=True)
class UpdateRatio:
    """The update of the typical weight matrix as a share of its weights."""

    attempt: int
    step: int
    value: float
