"""`sharpness`: how fast the loss rises around the weights, in random directions and in the steepest.

Design
------
Two measures. The filter-normalised profile (Li and others, 2018) moves every filter by a share of its own length, so
that it does not depend on the scale of the weights and can be compared between models. The largest eigenvalue of the
Hessian is the curvature in the steepest direction, which does depend on the scale, and bounds the learning rate:
gradient descent without momentum is unstable above 2 over it (Cohen and others, 2021). Dropout uses the same random
numbers in each evaluation, so only the weights differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from caboose.trials import plots
from caboose.trials.hessian import Eigenvalue, lowest_eigenvalue, top_eigenvalue
from caboose.trials.progress import ProgressLine
from caboose.trials.sources import BatchSource, as_loader
from caboose.trials.trial import LossFunction, Trial
from caboose.trials.weight_space import WeightSpace
from caboose_plots import Chart, Series
from caboose_plots.chart import Dash

FLAT, SHARP = 0.1, 1.0
"""Rises of the loss, as a share of it, when every filter moves by the radius."""
SADDLE = 0.05
"""The share of the largest eigenvalue from which a negative one counts."""
ADVICE = {
    "flat": "nothing: small changes of the weights hardly change the loss",
    "moderate": "nothing, unless validation is far worse than training: then as for sharp",
    "sharp": "a smaller batch or a larger rate with warm-up, weight decay, an average of the weights (SWA), or SAM, "
    "judged by validation",
    "unstable": "lower the rate below the limit, lengthen the warm-up, or clip the gradient; Adam and momentum move "
    "the limit",
    "saddle": "go on, with momentum or a larger or cyclical rate: the loss still falls along some direction, so a "
    "plateau here is no minimum",
}
POINTS = 4
"""Distances on each side."""


@dataclass(frozen=True, slots=True)
class Sharpness:
    """The loss around the weights."""

    loss: float
    distances: tuple[float, ...]
    """As shares of each filter's length."""
    profiles: tuple[tuple[float, ...], ...]
    """For each direction, the loss at each distance."""
    eigenvalue: Eigenvalue
    lowest: Eigenvalue | None = None
    """The most negative eigenvalue, if it was looked for."""
    lr: float | None = None
    """The rate of the run, if it was given."""

    @property
    def verdict(self) -> Literal["flat", "moderate", "sharp", "unstable", "saddle"]:
        """`unstable`: the rate is above what the steepest direction bears. `saddle`: the loss curves down somewhere."""
        if self.lr is not None and self.lr > self.max_stable_lr:
            return "unstable"
        if self.is_saddle:
            return "saddle"
        share = self.rise / max(abs(self.loss), 1e-12)
        return "flat" if share < FLAT else "sharp" if share > SHARP else "moderate"

    @property
    def is_saddle(self) -> bool:
        """Whether the loss curves down clearly along some direction."""
        lowest = self.lowest
        return lowest is not None and -lowest.value > SADDLE * abs(self.eigenvalue.value) > 0

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ADVICE[self.verdict]

    @property
    def rise(self) -> float:
        """The mean rise of the loss at the farthest distance, over directions and both signs."""
        ends = [value - self.loss for profile in self.profiles for value in (profile[0], profile[-1])]
        return math.fsum(ends) / len(ends)

    @property
    def max_stable_lr(self) -> float:
        """2 over the eigenvalue: above it plain gradient descent is unstable; infinite where nothing curves up."""
        return 2 / self.eigenvalue.value if self.eigenvalue.value > 0 else math.inf

    @property
    def says(self) -> str:
        """The result in one sentence."""
        share = f" ({self.rise / abs(self.loss):+.2%})" if self.loss else ""
        found = self.eigenvalue
        doubt = "" if found.residual < 0.1 else f", not settled after {found.num_iterations} iterations"
        limit = f"; plain gradient descent is stable below {self.max_stable_lr:.3g}" if found.value > 0 else ""
        return (
            f"loss {self.loss:.4g} changes by {self.rise:+.3g}{share} when every filter moves by "
            f"{self.distances[-1]:.0%}; top Hessian eigenvalue {found.value:.4g}{doubt}{limit}{self._downward}"
        )

    @property
    def _downward(self) -> str:
        if self.lowest is None:
            return ""
        name = "a saddle: " if self.is_saddle else ""
        return f"; {name}the lowest eigenvalue is {self.lowest.value:.4g}"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.says}\n      do: {self.advice}"

    def plot(self, path: "str | Path | None" = None) -> Any:
        """The profiles; written to a file if a path is given (.png, .svg or .html)."""
        return plots.show(self.chart(), path)

    def chart(self) -> Chart:
        """What `plot` shows."""
        dashes: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot")
        series = [
            Series(f"direction {number + 1}", self.distances, profile, "line and dots", dash=dashes[number % 4])
            for number, profile in enumerate(self.profiles)
        ]
        title, x = "The loss around the weights", "distance, share of a filter"
        return Chart(title, x, "loss", series, note=self.says, x_is_share=True)


def sharpness(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    loader: Any,
    *,
    num_batches: int = 1,
    radius: float = 0.1,
    num_directions: int = 3,
    num_iterations: int = 50,
    tolerance: float = 1e-2,
    lr: float | None = None,
    saddle: bool = False,
    seed: int = 0,
    split: Any = None,
    progress: bool | None = None,
) -> Sharpness:
    """Measures on the first `num_batches` of a loader (or on one batch), and restores everything.

    `radius` is the farthest distance as a share of each filter's length. The power iteration ends when its residual is
    below `tolerance`, after `num_iterations` at most. With `lr`, the rate of the run, it is judged as well. With
    `saddle`, the lowest eigenvalue is looked for, too, in as many iterations again.
    """
    for name, value in (
        ("num_batches", num_batches),
        ("num_directions", num_directions),
        ("num_iterations", num_iterations),
    ):
        if value < 1:
            raise ValueError(f"sharpness({name}={value}): give at least 1")
    if not radius > 0:
        raise ValueError(f"sharpness(radius={radius}): give a share of the filters' length, as 0.1")
    source = BatchSource("sharpness", as_loader(loader))
    trial = Trial("sharpness", model, loss_fn, split=split)
    with trial, source:
        batches = trial.ranks.together(lambda: source.take(num_batches))
        batches = batches[: trial.ranks.least(len(batches))]
        space = WeightSpace(trial)
        distances = tuple(radius * place / POINTS for place in range(-POINTS, POINTS + 1))
        work = num_directions * len(distances) + num_iterations * (1 + saddle)
        with ProgressLine(work, is_shown=progress if trial.ranks.rank == 0 else False) as bar:
            loss = space.loss(batches)
            profiles = []
            for number in range(num_directions):
                direction = space.draw_by_filter(seed + 1 + number)
                profiles.append(tuple(_profile(space, direction, distances, batches, loss)))
                bar.show(f"direction {number + 1} of {num_directions}", len(distances))
            space.move(direction, 0.0)
            found = top_eigenvalue(
                trial,
                space,
                batches,
                num_iterations=num_iterations,
                tolerance=tolerance,
                seed=seed,
                report=lambda what: bar.show(what, 1),
            )
            lowest = None
            if saddle:
                lowest = lowest_eigenvalue(
                    trial,
                    space,
                    batches,
                    found,
                    num_iterations=num_iterations,
                    tolerance=tolerance,
                    seed=seed,
                    report=lambda what: bar.show(what, 1),
                )
        return Sharpness(loss, distances, tuple(profiles), found, lowest, lr)


def _profile(
    space: WeightSpace, direction: list[torch.Tensor], distances: Sequence[float], batches: Sequence[Any], loss: float
) -> Sequence[float]:
    found = []
    for distance in distances:
        space.move(direction, distance)
        found.append(space.loss(batches) if distance else loss)
    return found
