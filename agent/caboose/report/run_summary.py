"""The summary at the end of a run: what one rank's own reports add up to.

Design
------
Counted on the sender's thread, where each report is made anyway; the training thread does nothing for it. The gradient
norm is that of the clipper, or of all layers in a run of one process: of several ranks each has only a part, and the
daemon adds them up. Steps that were dropped from a full queue are not in the sums, and their number is stated.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from caboose_wire import StepReport

RECENT = 100
"""Steps whose mean loss is the one at the end."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run, as one rank saw it; None where something is not known."""

    num_steps: int
    """Steps that ended on this rank."""
    num_counted: int
    """Those that are in the numbers here."""
    first_loss: float | None
    last_loss: float | None
    """The mean of the last 100 steps."""
    num_not_finite: int
    """Steps whose loss was not finite."""
    mean_grad_norm: float | None
    max_grad_norm: float | None
    clip_share: float | None
    """The share of the steps with clipping whose norm was above the limit."""
    max_norm: float | None
    """The limit of the last clipping."""
    best_validation: float | None
    num_rollbacks: int
    num_dropped: int
    health: str
    """What the daemon reported last: ok, or the severity of the worst open incident; empty where none was heard of."""
    finding: str
    """Of that incident."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def __str__(self) -> str:
        """The numbers; the verdict has a line of its own."""
        return ", ".join(self._parts())

    def _parts(self) -> Iterable[str]:
        yield f"{self.num_steps:,} steps"
        if self.first_loss is not None and self.last_loss is not None:
            yield f"loss {self.first_loss:.4g} to {self.last_loss:.4g}"
        if self.best_validation is not None:
            yield f"best validation {self.best_validation:.4g}"
        if self.mean_grad_norm is not None:
            yield f"gradient norm {self.mean_grad_norm:.3g} on average, {self.max_grad_norm:.3g} at most"
        if self.clip_share is not None:
            yield f"{self.clip_share:.0%} of the steps clipped to {self.max_norm:g}"
        if self.num_not_finite:
            yield f"{self.num_not_finite:,} losses not finite"
        if self.num_rollbacks:
            yield f"{self.num_rollbacks} rollbacks"


class RunTotals:
    """What the reports of one rank add up to so far."""

    def __init__(self, *, is_whole: bool) -> None:
        """`is_whole`: the layers' norms in a report are those of the whole model."""
        self._is_whole = is_whole
        self.num_steps = 0
        self.num_not_finite = 0
        self.first_loss: float | None = None
        self._recent: list[float] = []
        self._sum = self.max_grad_norm = 0.0
        self._num_norms = self._num_clipping = self._num_clipped = 0
        self.max_norm: float | None = None

    def note(self, report: StepReport) -> None:
        """A report was made."""
        self.note_loss(report.loss)
        clipping = report.clipping
        norm = None if clipping is None else clipping.total_norm
        if norm is None and self._is_whole and "grad_norm" in report.arrays:
            norm = float(np.sqrt(np.nansum(np.square(report.arrays["grad_norm"], dtype=np.float64))))
        if norm is not None and math.isfinite(norm):
            self._sum += norm
            self._num_norms += 1
            self.max_grad_norm = max(self.max_grad_norm, norm)
        if clipping is not None and clipping.max_norm is not None and norm is not None:
            self.max_norm = clipping.max_norm
            self._num_clipping += 1
            self._num_clipped += norm > clipping.max_norm

    def note_loss(self, loss: float | None) -> None:
        """Of a step that has nothing else."""
        self.num_steps += 1
        if loss is None:
            return
        if not math.isfinite(loss):
            self.num_not_finite += 1
            return
        if self.first_loss is None:
            self.first_loss = loss
        self._recent.append(loss)
        if len(self._recent) >= 2 * RECENT:
            del self._recent[:-RECENT]

    @property
    def last_loss(self) -> float | None:
        """The mean of the last steps."""
        recent = self._recent[-RECENT:]
        return math.fsum(recent) / len(recent) if recent else None

    @property
    def mean_grad_norm(self) -> float | None:
        """Over the steps whose norm is known and finite."""
        return self._sum / self._num_norms if self._num_norms else None

    @property
    def clip_share(self) -> float | None:
        """Of the steps with clipping."""
        return self._num_clipped / self._num_clipping if self._num_clipping else None
