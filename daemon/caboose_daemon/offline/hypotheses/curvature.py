"""The curvature of the loss at a checkpoint, as `caboose inspect sharpness --json` prints it.

The daemon never imports torch: the measurement is made by another process, or not at all.
"""

from dataclasses import dataclass
from typing import Any

SADDLE = 0.05
"""Share of the largest eigenvalue from which a negative one counts: a trained network has small negative ones."""
SETTLED = 0.1
"""Residual up to which an eigenvalue is known."""


@dataclass(frozen=True)
class Curvature:
    """The largest and the smallest eigenvalue of the Hessian, on some batches."""

    loss: float
    top: float
    lowest: float
    top_residual: float
    """How far the iteration was from its end; 0 is exact."""
    lowest_residual: float

    @property
    def residual(self) -> float:
        """The worse of both."""
        return max(self.top_residual, self.lowest_residual)

    @property
    def is_saddle(self) -> bool:
        """Whether the loss curves down clearly along a direction that was found; the largest need not be settled."""
        return self.lowest_residual <= SETTLED and -self.lowest > SADDLE * abs(self.top) > 0

    @property
    def is_no_saddle(self) -> bool:
        """Whether no direction curves down clearly: both eigenvalues must be known for that."""
        return self.residual <= SETTLED and not self.is_saddle

    @classmethod
    def of(cls, answer: dict[str, Any]) -> "Curvature | None":
        """From the command's answer; None where it has no smallest eigenvalue."""
        top, lowest = answer.get("eigenvalue"), answer.get("lowest")
        if not isinstance(top, dict) or not isinstance(lowest, dict):
            return None
        residuals = float(top["residual"]), float(lowest["residual"])
        return cls(float(answer["loss"]), float(top["value"]), float(lowest["value"]), *residuals)
