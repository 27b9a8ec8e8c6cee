"""The gradient noise scale in units of the job's own batch, from the gradients that data parallelism has anyway.

Design
------
The noise scale (McCandlish et al., 2018) is the batch at which noise and signal of the gradient are equal. The ranks'
own gradients are those of a small batch, their mean that of the large one. With N ranks, the mean square norm of the
own gradients s and the square norm of the averaged one b,

    signal = (N b - s) / (N - 1)        noise of the whole batch = (s - b) / (N - 1)

are unbiased, and noise / signal is the noise scale in units of the job's own batch. Each alone is so uncertain that
their ratio means nothing on one step: they are averaged separately, over sampled steps. The rule `batch_size`
judges by it, and a job's metrics show it.
"""

import math

import numpy as np

from caboose_daemon.steps.aligned import AlignedStep

MEMORY = 20
"""Sampled steps that the averages remember by default."""
MIN_SAMPLES = 5
SIGMAS = 2.0
"""Standard errors of the averages within which the bounds are."""


class Average:
    """An exponential average with its standard error."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.mean = 0.0
        self._square = 0.0
        self.num = 0

    def learn(self, value: float) -> None:
        self.num += 1
        rate = 1.0 / min(self.num, self._memory)
        self.mean += rate * (value - self.mean)
        self._square += rate * (value * value - self._square)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        num = min(self.num, 2 * self._memory - 1)
        return math.sqrt(max(self._square - self.mean**2, 0.0) / max(1, num - 1))


class NoiseScale:
    """Follows one attempt of one job."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.signal = Average(memory)
        self.noise = Average(memory)

    def observe(self, step: AlignedStep) -> bool:
        """Takes a sampled step; False if not every rank's own gradient and the averaged one are there."""
        local, num = step.local_grad_norm, len(step.local_grad_norm)
        norm = step.finite_grad_norm
        if num < 2 or norm is None or not step.has_local_grad_norm.all() or not np.isfinite(local).all():
            return False
        small, large = float(np.mean(np.square(local))), norm**2
        if not (small > 0 and large > 0) or not math.isfinite(small + large):
            return False
        self.signal.learn((num * large - small) / (num - 1))
        self.noise.learn((small - large) / (num - 1))
        return True

    @property
    def ratio(self) -> float | None:
        """The noise scale over the batch size; None while it is not known, or where noise hides the signal."""
        if self.signal.num < MIN_SAMPLES or self.signal.mean <= 0:
            return None
        return max(0.0, self.noise.mean) / self.signal.mean

    def bounds(self) -> tuple[float, float]:
        """The least and the most that the noise scale over the batch size can be, by the averages' standard errors."""
        signal, noise = self.signal.mean, self.noise.mean
        of_signal, of_noise = SIGMAS * self.signal.error, SIGMAS * self.noise.error
        least = max(noise - of_noise, 0.0) / max(max(signal, 0.0) + of_signal, 1e-300)  # a square is not negative
        most = (noise + of_noise) / (signal - of_signal) if signal > of_signal else math.inf
        return least, most
