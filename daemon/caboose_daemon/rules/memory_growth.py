"""memory_growth: a process keeps more memory with every step, and will run out of it.

Design
------
Losses that keep their graph, lists and caches without a bound take the same memory at every step, so the memory rises
in a straight line. What a healthy run takes rises in its first steps, at its first evaluation, or by chance, and then
stays. So a rise is reported where it is large *and* steady: in each third of the last part of the run the rate is near
that of the whole part. The parts are the last three quarters, half and quarter of what was seen, so that a leak that
begins late is found too.

Read in the sampled steps, of the rank that uses most: the peak memory of its process, and what its device has
allocated. The rate and the total tell when it will be full. Where the objective moves it is a note: a replay buffer
fills in the same way, and is meant to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from caboose_daemon.format import amount
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView

KINDS = ("host", "device")
MOST_KEPT = 64
"""Samples that are kept; of more, every second one."""
MIN_IN_PART = 5
PARTS = (0.25, 0.5, 0.75)
"""Where the last part begins, as a share of the samples."""
SLOWEST, FASTEST = 0.5, 2.0
"""Rate of a third over that of the whole part, between which the rise is steady."""
CALM = 3
"""Samples without a steady rise before it is resolved."""


@dataclass(frozen=True)
class MemoryGrowthConfig(RuleConfig):
    """Thresholds of memory_growth."""

    growth: float = 0.08
    """Share by which the memory has risen steadily that is reported."""
    min_samples: int = 6
    """Sampled steps before anything is judged."""


class _Sample(NamedTuple):
    step: int
    used: int


class _Rise(NamedTuple):
    first: _Sample
    last: _Sample

    @property
    def share(self) -> float:
        return self.last.used / max(1, self.first.used) - 1.0

    @property
    def per_step(self) -> float:
        return (self.last.used - self.first.used) / max(1, self.last.step - self.first.step)


class MemoryGrowth(LastingRule[MemoryGrowthConfig]):
    """Memory that rises in a straight line."""

    name = "memory_growth"
    config_class = MemoryGrowthConfig
    forgets_after = frozenset({"resume"})

    def __init__(self, config: MemoryGrowthConfig) -> None:
        super().__init__(config)
        self._samples: dict[str, list[_Sample]] = {kind: [] for kind in KINDS}
        self._num_calm = 0

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every sampled step while the memory rises."""
        step = view.step
        if step is None or not step.is_sampled:
            return None
        for kind, used in _in_use(step).items():
            self._keep(self._samples[kind], _Sample(step.step, used))
        rises = {kind: rise for kind in KINDS if (rise := self._steady_rise(self._samples[kind])) is not None}
        if not rises:
            return self._calm(step.step)
        self._num_calm = 0
        kind = max(rises, key=lambda name: rises[name].share)
        return self._report(view, step.step, kind, rises[kind])

    def _keep(self, samples: list[_Sample], new: _Sample) -> None:
        samples.append(new)
        if len(samples) > MOST_KEPT:
            del samples[1:-1:2]

    def _steady_rise(self, samples: Sequence[_Sample]) -> _Rise | None:
        """The largest steady rise up to now; None where there is none that is large."""
        if len(samples) < self.config.min_samples:
            return None
        parts = (samples[int(start * len(samples)) :] for start in PARTS)
        rises = [_Rise(part[0], part[-1]) for part in parts if len(part) >= MIN_IN_PART and _is_steady(part)]
        best = max(rises, key=lambda rise: rise.share, default=None)
        least = self.config.growth * (0.5 if self.is_open else 1.0)
        return best if best is not None and best.share > least else None

    def _calm(self, step: int) -> Finding | None:
        self._num_calm += 1
        if self._num_calm < CALM:
            return None
        return self._resolved(step, "the memory no longer rises with the steps")

    def _report(self, view: JobView, step: int, kind: str, rise: _Rise) -> Finding:
        first, last = rise
        where = "host memory of the process" if kind == "host" else "allocated device memory"
        summary = (
            f"{where} rises by {_size(rise.per_step)} at every step: from {_size(first.used)} at step {first.step:,} to"
            f" {_size(last.used)}, and nothing is freed"
        )
        left = _steps_left(view, kind, rise)
        if left is not None:
            summary += f"; full in about {amount(left, 2)} steps"
        return self._found(
            Severity.INFO if MOVING_OBJECTIVE in view.visible else Severity.WARNING,
            step,
            summary,
            onset=first.step,
            values={"used": float(last.used), "before": float(first.used), "per_step": rise.per_step}
            | ({} if left is None else {"steps_left": left}),
        )


def _in_use(step: AlignedStep) -> Mapping[str, int]:
    """The most that a rank uses, of each kind of memory that is known."""
    reports = step.reports.values()
    used = {
        "host": max((report.host_bytes or 0 for report in reports), default=0),
        "device": max((report.device_bytes or 0 for report in reports), default=0),
    }
    return {kind: num for kind, num in used.items() if num}


def _is_steady(part: Sequence[_Sample]) -> bool:
    """Whether it rises in each third of the part about as fast as in the whole."""
    last = len(part) - 1
    marks = [part[i] for i in (0, last // 3, 2 * last // 3, last)]
    whole = _Rise(marks[0], marks[-1]).per_step
    rates = [_Rise(*pair).per_step for pair in pairwise(marks)]
    return whole > 0 and SLOWEST * whole <= min(rates) and max(rates) <= FASTEST * whole


def _steps_left(view: JobView, kind: str, rise: _Rise) -> float | None:
    """Steps until the memory is full at this rate; None where its size is not known. The ranks of a host share it."""
    total = view.setting(f"{kind}_memory_bytes")
    if not total:
        return None
    ranks = (view.setting("ranks_per_host") or 1.0) if kind == "host" else 1.0
    return max(0.0, total / ranks - rise.last.used) / rise.per_step


def _size(num: float) -> str:
    """Bytes as people write them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num >= size:
            return f"{num / size:.3g} {unit}"
    return f"{num:.0f} bytes"
