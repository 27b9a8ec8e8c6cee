"""Statistics of one layer: its gradient, its output, and a verdict on each.

Design
------
Verdicts compare a layer with the others, since gradients scale with the loss: a layer whose gradient (root mean square)
is a ten-thousandth of the median, or a hundred-thousandth of the largest, learns almost nothing. The largest counts
because in a deep net that fades layer by layer the median has faded too. Healthy transformers and convolutional nets
are within about a factor of a thousand. A norm above 100 that is also a thousand times the smallest weight's is
exploding; one that is only large in itself is marked as large, which is no fault: the loss may be scaled.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

VANISHED, FADED = 1e-4, 1e-5
"""Relative to the median, and to the largest, of all weights."""
EXPLODED, ABOVE_ALL, LOUD = 1e4, 1e3, 100.0
"""Relative to the median, or to the smallest weight; and the least norm."""
LARGE, SMALL = 100.0, 1e-7
"""Norms that are marked, whatever the other layers have."""
DEAD, SATURATED = 0.4, 0.5
"""Shares of units from which it is reported; as in the rules of a live run."""
FLAT, HUGE = 1e-5, 1e4
"""Standard deviations of outputs between which float32 training is safe."""


@dataclass(frozen=True, slots=True)
class GradientStatistics:
    """One parameter's gradient."""

    name: str
    kind: str
    shape: tuple[int, ...]
    is_trained: bool
    has_gradient: bool = False
    norm: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    zeros: float = 0.0
    """Share of elements that are exactly zero."""
    num_bad: int = 0
    """Elements that are not finite."""
    verdict: str = "ok"
    """`ok`, `frozen`, `disconnected`, `not finite`, `zero`, `vanishing`, `exploding`; `large`, `small`."""

    @property
    def rms(self) -> float:
        """Root mean square of its elements: comparable between layers of different size."""
        return self.norm / math.sqrt(max(1, math.prod(self.shape)))


@dataclass(frozen=True, slots=True)
class OutputStatistics:
    """One module's output."""

    name: str
    kind: str
    mean: float
    std: float
    highest: float
    """Largest magnitude."""
    zeros: float
    saturated: float | None
    """Share of elements at the flat ends of a sigmoid or tanh."""
    dead: float | None
    """Share of ReLU units without output on the whole batch."""
    verdict: str = "ok"
    """`ok`, `not finite`, `dead`, `saturated`, `flat` or `huge`."""


def judge_gradients(looks: Sequence[GradientStatistics]) -> list[GradientStatistics]:
    """The same with their verdicts."""
    sizes = [look.rms for look in looks if look.is_trained and look.has_gradient and look.rms > 0]
    sizes = [size for size in sizes if math.isfinite(size)] or [0.0]
    median = statistics.median(sizes)
    faint = max(VANISHED * median, FADED * max(sizes))
    weights = [look.rms for look in looks if look.is_trained and len(look.shape) > 1 and 0 < look.rms < math.inf]
    loud = min(EXPLODED * median, ABOVE_ALL * min(weights, default=math.inf))
    return [replace(look, verdict=_gradient(look, faint, loud)) for look in looks]


def _gradient(look: GradientStatistics, faint: float, loud: float) -> str:
    if not look.is_trained:
        return "frozen"
    if not look.has_gradient:
        return "disconnected"
    if look.num_bad or not math.isfinite(look.norm):
        return "not finite"
    if look.norm == 0.0:
        return "zero"
    if look.rms < faint and len(look.shape) > 1:
        return "vanishing"  # biases before a normalisation, or of attention's keys, have almost none by nature
    if look.rms > loud and look.norm > LOUD:
        return "exploding"
    return "large" if look.norm > LARGE else "small" if look.norm < SMALL else "ok"


def judge_activation(look: OutputStatistics) -> OutputStatistics:
    """The same with its verdict."""
    return replace(look, verdict=_activation(look))


def _activation(look: OutputStatistics) -> str:
    if not (math.isfinite(look.std) and math.isfinite(look.highest)):
        return "not finite"
    if look.dead is not None and look.dead > DEAD:
        return "dead"
    if look.saturated is not None and look.saturated > SATURATED:
        return "saturated"
    if look.std < FLAT:
        return "flat"
    return "huge" if look.std > HUGE else "ok"
