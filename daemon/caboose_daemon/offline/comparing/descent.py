"""Validation loss against the number of parameters: falling, rising, U-shaped, a bump, or double descent.

Design
------
"Double descent" is a strong claim for a curve of few points, so it needs all of: four or more sizes; a middle size
clearly worse than a smaller and than a larger one; and a training loss that shows the larger models fit what the
smaller ones could not, since the peak belongs where a model just begins to fit everything. Without the last, it is
called a bump. Final validation losses are used: the best of a run would hide the effect of stopping late. Double
descent over the course of one run needs a rise and a second fall that both last, with no drop of the learning rate in
between: such a drop explains a fall on its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from caboose_daemon.offline.comparing.measures import Measures
from caboose_daemon.offline.runs.run import Run

Verdict = Literal["too few", "falls", "rises", "u-shape", "bump", "double descent", "flat"]
MIN_SIZES = 4
LAST = 3
FLOOR = 0.01
"""Minimum uncertainty of a validation loss, as a share of its level."""
CLEAR = 2.0
FITS = 0.25
"""Maximum training loss of the large models, as a share of the small ones', to count as a better fit."""
MIN_EVALUATIONS = 9
MIN_RISE = 0.05


@dataclass(frozen=True)
class Size:
    """Runs of one parameter count."""

    num_parameters: int
    names: tuple[str, ...]
    validation: float
    error: float
    train: float | None

    def clearly_below(self, other: "Size") -> bool:
        """Whether its validation loss is lower by more than noise."""
        return other.validation - self.validation > CLEAR * math.hypot(self.error, other.error)


@dataclass(frozen=True)
class Descent:
    """How validation depends on model size."""

    verdict: Verdict
    text: str
    sizes: tuple[Size, ...]

    def as_object(self) -> dict[str, Any]:
        """For `--json`."""
        return {"verdict": self.verdict, "text": self.text, "sizes": [vars(size) for size in self.sizes]}


def against_size(names: Sequence[str], runs: Sequence[Run], measures: Sequence[Measures]) -> Descent | None:
    """The verdict; None if fewer than two sizes have a validation loss."""
    sizes = _sizes(names, runs, measures)
    if len(sizes) < 2:
        return None
    if len(sizes) < MIN_SIZES:
        return Descent(
            "too few", f"{len(sizes)} sizes: at least {MIN_SIZES} are needed for more than a direction", sizes
        )
    peak = _peak(sizes)
    if peak is not None:
        return _bump(sizes, *peak)
    low = min(range(len(sizes)), key=lambda i: sizes[i].validation)
    falls, rises = sizes[low].clearly_below(sizes[0]), sizes[low].clearly_below(sizes[-1])
    at = f"{sizes[low].num_parameters:,} parameters"
    if falls and rises:
        return Descent("u-shape", f"validation is best at {at} and worse on both sides, with no second fall", sizes)
    if falls:
        return Descent("falls", f"validation falls as the model grows, to {sizes[low].validation:.4g} at {at}", sizes)
    if rises:
        return Descent("rises", f"validation rises as the model grows: the smallest are best, {at}", sizes)
    return Descent("flat", "validation does not depend on size beyond noise", sizes)


def over_time(name: str, run: Run) -> str | None:
    """A sentence if validation turned twice in one run, else None."""
    evaluations = [(step, value) for step, value, _ in run.validations if np.isfinite(value)]
    if len(evaluations) < MIN_EVALUATIONS:
        return None
    values = np.array([value for _, value in evaluations])
    smooth = np.array([np.median(values[max(0, i - 1) : i + 2]) for i in range(len(values))])
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    for top in sorted(range(2, len(smooth) - 2), key=lambda i: -smooth[i]):
        first, second = int(smooth[:top].argmin()), top + int(smooth[top:].argmin())
        least = max(3 * noise, MIN_RISE * abs(float(smooth[top])))
        if smooth[top] - smooth[first] < least or smooth[top] - smooth[second] < least:
            continue
        if top - first < 2 or second - top < 2:
            continue
        text = (
            f"validation in {name} turned twice: {smooth[first]:.3g} at step {evaluations[first][0]:,}, up to "
            f"{smooth[top]:.3g} at {evaluations[top][0]:,}, down to {smooth[second]:.3g} at {evaluations[second][0]:,}"
        )
        steps, rates = run.curve("lr")
        between = rates[(steps >= evaluations[top][0]) & (steps <= evaluations[second][0])]
        if len(between) and between[-1] < 0.5 * between[0]:
            return f"{text}; the learning rate fell in between, which may explain it"
        if not len(rates):
            return f"{text}: double descent over time, or a drop of the learning rate, which was not logged"
        return f"{text}, with no drop of the learning rate: double descent over time"
    return None


def _peak(sizes: tuple[Size, ...]) -> tuple[int, int, int] | None:
    """Positions of the best small, the worst middle and the best large model, if clearly different."""
    for top in sorted(range(1, len(sizes) - 1), key=lambda i: -sizes[i].validation):
        left = min(range(top), key=lambda i: sizes[i].validation)
        right = min(range(top + 1, len(sizes)), key=lambda i: sizes[i].validation)
        if sizes[left].clearly_below(sizes[top]) and sizes[right].clearly_below(sizes[top]):
            return left, top, right
    return None


def _bump(sizes: tuple[Size, ...], left: int, top: int, right: int) -> Descent:
    small, middle, large = sizes[left], sizes[top], sizes[right]
    facts = (
        f"validation goes from {small.validation:.4g} at {small.num_parameters:,} parameters up to "
        f"{middle.validation:.4g} at {middle.num_parameters:,} and down to {large.validation:.4g} at "
        f"{large.num_parameters:,}"
    )
    if small.train is None or middle.train is None or large.train is None:
        return Descent("bump", f"{facts}; not called double descent, since training losses are missing", sizes)
    fits = large.train <= FITS * small.train and large.train <= middle.train <= small.train
    if fits:
        text = f"{facts}, while the training loss falls from {small.train:.3g} to {large.train:.3g}: double descent"
        return Descent("double descent", text, sizes)
    text = (
        f"{facts}; the training loss ({small.train:.3g}, {middle.train:.3g}, {large.train:.3g}) does not show that the "
        "larger models fit better: a bump, not double descent"
    )
    return Descent("bump", text, sizes)


def _sizes(names: Sequence[str], runs: Sequence[Run], measures: Sequence[Measures]) -> tuple[Size, ...]:
    groups: dict[int, list[int]] = {}
    for i, run in enumerate(runs):
        count = run.setting("num_parameters") or run.setting("num_trainable")
        if count and measures[i].validation_final is not None and measures[i].not_finite_since is None:
            groups.setdefault(int(count), []).append(i)
    sizes = []
    for count, members in sorted(groups.items()):
        finals = [measures[i].validation_final or 0.0 for i in members]
        trains = [level.value for i in members for level in [measures[i].final] if level is not None]
        spread = max([_wander(runs[i]) for i in members] + [float(np.ptp(finals)) / 2])
        value = float(np.mean(finals))
        train = float(np.mean(trains)) if trains else None
        error = max(spread, FLOOR * abs(value))
        sizes.append(Size(count, tuple(names[i] for i in members), value, error, train))
    return tuple(sizes)


def _wander(run: Run) -> float:
    """Half the range of the last evaluations."""
    last = [value for _, value, _ in run.validations if np.isfinite(value)][-LAST:]
    return float(np.ptp(last)) / 2 if len(last) > 1 else 0.0
