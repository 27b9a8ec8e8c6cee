"""The progress of a run: the fall of its loss from where it began to the level it left, known or not.

Design
------
A step is worth the share of the progress that its weights still hold, so the progress decides what a raised loss costs.
Where the beginning of a run was seen, or its chance level is known, the progress is one number. After a resume it is
not: the run has improved by what was seen of it, at least, and how high it began nobody knows. It is then a range in
which every order of magnitude is equally likely, and the share that is lost is the mean over it. The range begins at
the larger of the fall that was seen and the size of the loss, and ends at a few times the height of the spike: losses
seldom go far above where their run began.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BEYOND = 3.0
"""Heights of the spike that an unknown progress may be, at most."""


class Progress(msgspec.Struct, frozen=True):
    """The least and the most it may be; equal where it is known."""

    least: float
    most: float

    @classmethod
    def known(cls, progress: float) -> "Progress":
        """Of a run whose beginning is known."""
        return cls(progress, progress)

    @classmethod
    def unknown(cls, least: float, peak: float) -> "Progress":
        """Of a run whose beginning is not; `peak` is the height of its spike."""
        return cls(least, max(least, BEYOND * peak))

    @property
    def middle(self) -> float:
        """The geometric mean."""
        return math.sqrt(self.least) * math.sqrt(self.most)

    def share(self, excess: Floats | float) -> Floats:
        """The share of it that is lost at these heights, on average over the range."""
        height = np.maximum(np.asarray(excess, dtype=np.float64), 0.0)
        if self.most <= self.least:
            return np.minimum(1.0, height / max(self.least, 1e-300))
        within = np.clip(height, self.least, self.most)
        above = np.log(within / self.least)  # part of the range that is below the height: all of it is lost there
        below = height * np.maximum(0.0, 1.0 / within - 1.0 / self.most)
        found: Floats = np.minimum(1.0, (above + below) / math.log(self.most / self.least))
        return found
