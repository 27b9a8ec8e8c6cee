"""What all tests read: the run's curves and evaluations, and its later part as two straight lines.

Design
------
Everything is measured over one window, the later half of the run: long enough for a slow fall to leave its noise, and
late enough that the fast fall of the beginning is over. Lines go through averages, and their errors take the likeness
of neighbours into account (see `rules/parts/curve`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.offline.hypotheses.curvature import Curvature
from caboose_daemon.offline.runs.run import Run
from caboose_daemon.rules.parts.curve import CAPACITY, Trend, trend

Floats = NDArray[np.float64]
MIN_STEPS = 64
"""Training losses in the window below which it has no line."""
MIN_EVALUATIONS = 4
HALF = 0.5
CLEAR = 2.0
"""Standard errors that a change must exceed."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation."""

    step: int
    loss: float
    others: Mapping[str, float]


@dataclass(frozen=True)
class Window:
    """The run, and its part that is judged."""

    run: Run
    curvature: Curvature | None = None

    @cached_property
    def train(self) -> tuple[NDArray[np.int64], Floats]:
        """Steps and finite training losses of the whole run."""
        return self.run.curve("loss")

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """All of them, each step once; several ranks may report one."""
        found = {step: Evaluation(step, loss, others) for step, loss, others in self.run.validations}
        return tuple(found[step] for step in sorted(found) if np.isfinite(found[step].loss) or found[step].others)

    @property
    def losses(self) -> list[Evaluation]:
        """The evaluations with a finite loss."""
        return [one for one in self.evaluations if np.isfinite(one.loss)]

    @cached_property
    def start(self) -> int:
        """The window's first step."""
        steps = self.train[0]
        if not len(steps):
            return 0
        return int(steps[0] + HALF * (steps[-1] - steps[0]))

    @cached_property
    def end(self) -> int:
        """The run's last step."""
        return self.run.last_step

    def part(self, name: str) -> Floats:
        """The finite values of a curve within the window."""
        steps, values = self.run.curve(name)
        return values[steps >= self.start]

    def before(self, name: str) -> Floats:
        """The finite values of a curve before the window."""
        steps, values = self.run.curve(name)
        return values[steps < self.start]

    @cached_property
    def train_line(self) -> Trend | None:
        """The line through the window's training loss; None where there are too few values."""
        values = self.part("loss")
        if len(values) < MIN_STEPS:
            return None
        return trend([float(part.mean()) for part in np.array_split(values, CAPACITY // 2)], remembers=True)

    @cached_property
    def recent_losses(self) -> list[Evaluation]:
        """The evaluations within the window."""
        return [one for one in self.losses if one.step >= self.start]

    @cached_property
    def validation_line(self) -> Trend | None:
        """The line through the window's validation losses; None where there are too few."""
        values = [one.loss for one in self.recent_losses]
        return trend(values, remembers=True) if len(values) >= MIN_EVALUATIONS else None

    def train_at(self, step: int) -> float | None:
        """The training loss around a step: the median of the fifty values up to it."""
        steps, values = self.train
        until = values[steps <= step][-50:]
        return float(np.median(until)) if len(until) >= 5 else None

    @cached_property
    def hours(self) -> float | None:
        """How long the window took; None where no times were reported."""
        seconds = self.part("step_seconds")
        return float(np.median(seconds)) * (self.end - self.start) / 3600 if len(seconds) else None


def percent(line: Trend) -> str:
    """The change of a line and its standard error, as shares of the level."""
    return f"{100 * line.relative:+.2g} % ± {100 * line.relative_error:.2g} %"
