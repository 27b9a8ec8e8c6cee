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
    residual: float
    """The worse of both; 0 is exact."""

    @property
    def is_settled(self) -> bool:
        """Whether the iteration came to its end."""
        return self.residual <= SETTLED

    @property
    def is_saddle(self) -> bool:
        """Whether the loss curves down clearly along some direction."""
        return -self.lowest > SADDLE * abs(self.top) > 0

    @classmethod
    def of(cls, answer: dict[str, Any]) -> "Curvature | None":
        """From the command's answer; None where it has no smallest eigenvalue."""
        top, lowest = answer.get("eigenvalue"), answer.get("lowest")
        if not isinstance(top, dict) or not isinstance(lowest, dict):
            return None
        residual = max(float(top["residual"]), float(lowest["residual"]))
        return cls(float(answer["loss"]), float(top["value"]), float(lowest["value"]), residual)
