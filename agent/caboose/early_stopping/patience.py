"""Whether a run should stop, from its validation values alone.

Design
------
A run stops after `patience` validations without a new best. Before that, one thing is looked at: validation may rise
and fall again (double descent), and a run that is stopped at the peak never sees the second fall. So while the values
after the peak keep reaching new lows, below the peak by more than their noise, the run goes on; it stops when they have
not done so for `patience` validations either. The same values give the same answer: nothing else is read.
"""

import math
import statistics
from dataclasses import dataclass, field

PATIENCE = 5
MIN_FALL = 0.02
"""The least fall after a peak that counts, as a share of the peak's height above the best."""
SIGMA = 3.0


@dataclass
class Patience:
    """One run's validation values, in order."""

    patience: int = PATIENCE
    min_delta: float = 0.0
    """A value must be better than the best by more than this to be a new best."""
    is_higher_better: bool = False
    values: list[float] = field(default_factory=list)
    """Turned around where higher is better; a value that is not finite is infinite."""
    best_at: int | None = None

    def add(self, value: float) -> None:
        """The next validation."""
        turned = (-value if self.is_higher_better else value) if math.isfinite(value) else math.inf
        self.values.append(turned)
        best = math.inf if self.best_at is None else self.values[self.best_at]
        if turned < best - (self.min_delta if math.isfinite(best) else 0.0):
            self.best_at = len(self.values) - 1

    @property
    def is_best(self) -> bool:
        """Whether the last one is the best so far."""
        return self.best_at is not None and self.best_at == len(self.values) - 1

    @property
    def best(self) -> float | None:
        """The best value."""
        if self.best_at is None:
            return None
        found = self.values[self.best_at]
        return -found if self.is_higher_better else found

    @property
    def num_since_best(self) -> int:
        """Validations after the best; all of them if there is none."""
        return len(self.values) - (0 if self.best_at is None else self.best_at + 1)

    @property
    def should_stop(self) -> bool:
        """Whether patience has run out."""
        return self.num_since_best >= self.patience and not self._is_falling_again()

    def _is_falling_again(self) -> bool:
        """Whether the values after the peak reached a new low within the last `patience` validations."""
        after = self.values[0 if self.best_at is None else self.best_at :]
        finite = [value for value in after if math.isfinite(value)]
        if len(finite) < self.patience or self.best_at is None:
            return False
        peak = max(range(len(finite)), key=finite.__getitem__)
        rest = finite[peak:]
        low = min(range(len(rest)), key=rest.__getitem__)
        height, clear = rest[0] - finite[0], max(SIGMA * self._noise(), self.min_delta)
        has_turned = height > clear and rest[0] - rest[low] > max(clear, MIN_FALL * height)
        return has_turned and len(rest) - 1 - low < self.patience

    def _noise(self) -> float:
        """The scatter of single values around a smooth course, from second differences."""
        seen = [value for value in self.values if math.isfinite(value)]
        bends = [abs(a - 2 * b + c) for a, b, c in zip(seen, seen[1:], seen[2:], strict=False)]
        return 1.4826 * statistics.median(bends) / math.sqrt(6) if bends else 0.0
