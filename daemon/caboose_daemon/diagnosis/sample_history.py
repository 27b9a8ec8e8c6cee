"""What the diagnosis keeps of every sampled step: memory, inputs, targets of the loss, and the typical update.

Design
------
A few numbers per sample, reduced over the ranks. The journal keeps them, so that a restarted daemon knows whether
memory has grown since the run began, and does not wait for the next samples to judge the inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

import msgspec

from caboose_daemon.steps.aligned import AlignedStep


@dataclass(frozen=True)
class MemoryUse:
    """Memory in a sampled step, of the rank that uses most; None where no rank reported it."""

    attempt: int
    step: int
    host: int | None = None
    """Peak host memory of the process, in bytes."""
    device: int | None = None


@dataclass(frozen=True)
class InputRange:
    """Lowest and highest element, and the mean, of the batches of all ranks."""

    attempt: int
    step: int
    lowest: float
    highest: float
    mean: float | None = None
    """Of all elements; None where the agent does not report it."""


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


@dataclass(frozen=True)
class UpdateRatio:
    """The update of the typical weight matrix as a share of its weights."""

    attempt: int
    step: int
    value: float


class SampleFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of these of one sampled step."""

    attempt: int
    step: int
    host: int | None = None
    device: int | None = None
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    loss: float | None = None
    blind: float | None = None
    commonest: float | None = None
    updates: dict[str, float] = {}
    """By part; the name of a whole model is empty."""

    @classmethod
    def of(cls, step: AlignedStep, updates: Mapping[str, float]) -> "SampleFacts":
        reports = step.reports.values()
        batches = [report.batch for report in reports if report.batch is not None]
        lows = [batch.lowest for batch in batches if batch.lowest is not None and isfinite(batch.lowest)]
        highs = [batch.highest for batch in batches if batch.highest is not None and isfinite(batch.highest)]
        means = [batch.mean for batch in batches if batch.mean is not None and isfinite(batch.mean)]
        shares = [batch.commonest_share for batch in batches if batch.commonest_share is not None]
        variances = [batch.target_variance for batch in batches if batch.target_variance is not None]
        blind = variances or [batch.target_entropy for batch in batches if batch.target_entropy is not None]
        return cls(
            attempt=step.attempt,
            step=step.step,
            host=max((report.host_bytes or 0 for report in reports), default=0) or None,
            device=max((report.device_bytes or 0 for report in reports), default=0) or None,
            lowest=min(lows) if lows and highs else None,
            highest=max(highs) if lows and highs else None,
            mean=fmean(means) if means else None,
            loss=step.finite_loss if blind else None,
            blind=fmean(blind) if blind else None,
            commonest=fmean(shares) if shares else None,
            updates=dict(updates),
        )

    @property
    def memory(self) -> MemoryUse:
        return MemoryUse(self.attempt, self.step, self.host, self.device)

    @property
    def input_range(self) -> InputRange | None:
        """None where no rank reported a finite range."""
        if self.lowest is None or self.highest is None:
            return None
        return InputRange(self.attempt, self.step, self.lowest, self.highest, self.mean)

    @property
    def targets(self) -> TargetSample | None:
        """None where no rank saw any."""
        if self.blind is None and self.commonest is None:
            return None
        return TargetSample(self.attempt, self.step, self.loss, self.blind, self.commonest)

    def update_of(self, part: str) -> UpdateRatio | None:
        """None where no rank sampled the updates of this part."""
        value = self.updates.get(part)
        return None if value is None else UpdateRatio(self.attempt, self.step, value)
