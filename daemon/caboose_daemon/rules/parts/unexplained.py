"""How much of the targets a model explains, by the samples whose loss shows them.

Design
------
The best answer without a look at the inputs has a known loss: the variance of real targets, the entropy of classes. It
is taken of the very targets that the loss was computed from, so the noise of a small batch is in both and cancels. A
run whose loss has stayed at that level has learned the frequencies of its targets and nothing else.
"""

from collections import deque
from itertools import islice
from statistics import fmean

from caboose_daemon.steps.aligned import AlignedStep

RANKS = 8
"""Ranks whose targets are looked at: those of others are like them."""
MANY, HARDLY = 8, 0.98
MEMORY = 16
ENOUGH = 2
"""Samples from which it is known; a run of short steps has only a few, and its curve shows that it does not fall."""


class Unexplained:
    """Follows the sampled steps of one run."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=MEMORY)
        """Loss, and the loss without a look at the inputs."""
        self.lowest = 1.0
        """The lowest share so far."""

    def observe(self, step: AlignedStep) -> None:
        """Takes a step; those without targets are left out."""
        if not step.is_sampled or (loss := step.finite_loss) is None:
            return
        batches = [report.batch for report in islice(step.reports.values(), RANKS) if report.batch is not None]
        blind = [b.target_variance if b.target_variance is not None else b.target_entropy for b in batches]
        known = [value for value in blind if value is not None and value > 0]
        if known:
            self._last.append((loss, fmean(known)))
            self.lowest = min(self.lowest, self.share or 1.0)

    @property
    def is_well_known(self) -> bool:
        """Whether many samples show that hardly anything is explained."""
        return len(self._last) >= MANY and (self.share or 0.0) > HARDLY

    @property
    def share(self) -> float | None:
        """The loss as a share of that without a look at the inputs; None from too few samples."""
        if len(self._last) < ENOUGH:
            return None
        return sum(loss for loss, _ in self._last) / sum(blind for _, blind in self._last)
