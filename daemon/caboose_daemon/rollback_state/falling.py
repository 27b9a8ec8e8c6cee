"""How fast a raised loss falls: a straight line through the logarithms of its heights.

Design
------
The heights are weighted by how far each is above the noise. This gives the words and the rate of a verdict; what
waiting loses follows from many possible `futures`.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SCATTER = 0.1
"""Scatter of a raised loss relative to its height, beside the noise of its level."""


def fall_rate(steps: NDArray[np.int64], excess: Floats, noise: float) -> tuple[float, float]:
    """The share of itself by which a height falls at each step, and its standard error."""
    floor = np.maximum(excess, 0.5 * noise)
    weights = 1.0 / ((noise / floor) ** 2 + SCATTER**2)
    weights /= weights.sum()
    ahead, logs = steps - float(weights @ steps), np.log(floor)
    spread = float(weights @ ahead**2)
    middle = float(weights @ logs)
    slope = float(weights @ (ahead * logs)) / spread
    variance = float(weights @ (logs - middle - slope * ahead) ** 2) * len(steps) / max(1, len(steps) - 2)
    return -slope, math.sqrt(variance / spread / len(steps))


def steps_back(excess: float, noise: float, rate: float) -> float:
    """Steps until a height that falls at this rate is within the noise."""
    return max(0.0, math.log(max(excess, 1e-300) / noise)) / rate
