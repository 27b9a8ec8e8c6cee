"""`find_lr`: the learning rate range test, and a suggestion with its reason.

Design
------
The rate grows from `start` to `end` by a constant factor per step, over new batches, with the user's own optimizer and
the ratios between its groups. An exponential mean decides whether to stop early; it is available at once but lags. The
suggestion is read afterwards from the same losses smoothed by a centred window, which does not lag: an exponential mean
would shift it to a rate several times too high. Suggested is the point where the loss falls fastest against the
logarithm of the rate, before its lowest point; if it never falls by more than its noise, nothing is suggested.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from caboose.trials import plots
from caboose.trials.batches import parted
from caboose.trials.mixing import are_sorted
from caboose.trials.overfit import set_lr
from caboose.trials.progress import ProgressLine
from caboose.trials.sources import BatchSource
from caboose.trials.trial import LossFunction, Trial
from caboose_plots import FAINT, LINE, MARK, OWN, Chart, Line, Series

ONLINE = 0.9
"""Weight of the past in the exponential mean that stops the test."""
WINDOW = 0.04
"""Width of the centred window (standard deviation of a bell), as a share of the steps."""
MIN_STEPS = 20
MAX_SEEN = 100
"""Batches whose targets are looked at."""
SORTED = "the batches are sorted by class, so the curve is not that of a shuffled run: shuffle, and repeat it"


@dataclass(frozen=True, slots=True)
class RangeTest:
    """The loss at growing learning rates."""

    rates: tuple[float, ...]
    """Of the group with the highest rate."""
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    """Where the loss falls steepest."""
    lowest: float | None
    """The rate at the lowest smoothed loss: higher ones are too high."""
    says: str
    current: float
    """The optimizer's own rate."""

    def __str__(self) -> str:
        return self.says

    def plot(self, path: "str | Path | None" = None) -> Any:
        """Loss against rate with the suggestion; written to a file if a path is given (.png, .svg or .html)."""
        return plots.show(self.chart(), path)

    def chart(self) -> Chart:
        """What `plot` shows."""
        own = (
            (self.suggestion, "suggested", MARK, True),
            (self.current, "yours", OWN, False),
        )
        marks = [
            Line(rate, f"{name} {rate:.2g}", color, is_at_top)
            for rate, name, color, is_at_top in own
            if rate is not None and self.rates and self.rates[0] <= rate <= self.rates[-1]
        ]
        return Chart(
            "Learning rate range test",
            "learning rate",
            "loss",
            [
                Series("loss", self.rates, self.losses, "dots", FAINT),
                Series("smoothed", self.rates, self.smoothed, "line", LINE, width=2.5),
            ],
            note=self.says,
            lines=marks,
            is_x_log=True,
            y_range=self._range(),
        )

    def _range(self) -> tuple[float, float] | None:
        """Without the divergence at the end."""
        if not self.smoothed:
            return None
        low, high = min(self.smoothed), max(self.smoothed)
        first = self.smoothed[0]
        top = min(high, first + 1.5 * (first - low)) if first > low else high
        room = 0.08 * (top - low or 1.0)
        return low - room, top + 2 * room


def find_lr(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    loader: Any,
    optimizer: torch.optim.Optimizer,
    *,
    start: float = 1e-7,
    end: float = 10.0,
    num_steps: int = 100,
    stop_at: float = 4.0,
    split: Any = None,
    progress: bool | None = None,
) -> RangeTest:
    """Tries growing learning rates, suggests one, and restores everything.

    It takes `num_steps` batches, from the beginning again if the loader has fewer, and stops early when the loss is
    `stop_at` times its lowest. On several ranks every rank calls it; losses are means over the ranks.
    """
    if not 0 < start < end:
        raise ValueError(f"find_lr(start={start}, end={end}): give 0 < start < end")
    if num_steps < MIN_STEPS:
        raise ValueError(f"find_lr(num_steps={num_steps}): give at least {MIN_STEPS}, or the curve says nothing")
    if stop_at <= 1:
        raise ValueError(f"find_lr(stop_at={stop_at}): give more than 1, as 4 times the lowest loss")
    source = BatchSource("find_lr", loader)
    trial = Trial("find_lr", model, loss_fn, optimizer, split=split, needs_optimizer=True)
    with trial, source:
        groups = [group for each in trial.optimizers for group in each.param_groups]
        own = [float(group["lr"]) for group in groups]
        current = max(own)
        ratios = [rate / current if current > 0 else 1.0 for rate in own]
        rates: list[float] = []
        losses: list[float] = []
        seen: list[torch.Tensor] = []
        mean, lowest = 0.0, math.inf
        why = ""
        batches = source.endlessly()
        trial.train()
        with ProgressLine(num_steps, is_shown=progress if trial.ranks.rank == 0 else False) as bar:
            for step in range(num_steps):
                rate = start * (end / start) ** (step / (num_steps - 1))
                for group, ratio in zip(groups, ratios, strict=True):
                    set_lr(group, rate * ratio)
                batch = trial.ranks.together(lambda: next(batches))
                targets = parted(batch, split)[1]
                if targets is not None and len(seen) < MAX_SEEN:
                    seen.append(targets.detach().cpu())
                loss = trial.backward(batch)
                if not math.isfinite(loss):
                    why = f"the loss was {loss} at {rate:.2g}"
                    break
                rates.append(rate)
                losses.append(loss)
                mean = ONLINE * mean + (1 - ONLINE) * loss
                steady = mean / (1 - ONLINE ** (step + 1))
                # Above the lowest by a share of the total fall, so that it works for losses below zero too.
                if step > num_steps // 10 and steady - lowest > (stop_at - 1) * max(abs(lowest), losses[0] - lowest):
                    why = f"the loss grew past {stop_at:g} times its lowest at {rate:.2g}"
                    break
                lowest = min(lowest, steady)
                trial.step()
                bar.show(f"learning rate {rate:.1e}: loss {loss:.4g}", 1)
        found = read(rates, losses, current=current, why=why)
        return replace(found, says=f"{found.says}; {SORTED}") if are_sorted(seen) else found


def read(rates: Sequence[float], losses: Sequence[float], *, current: float, why: str = "") -> RangeTest:
    """Interprets a range test's numbers."""
    if len(losses) < MIN_STEPS // 2:
        says = f"no suggestion: {why or 'too few steps'}; begin lower, or look at the loss itself"
        return RangeTest(tuple(rates), tuple(losses), tuple(losses), None, None, says, current)
    raw, x = np.asarray(losses), np.log(np.asarray(rates))
    # A divergence at the end would reach back through the window and hide the lowest point.
    first = float(np.median(raw[: max(3, len(raw) // 10)]))
    smoothed = _smooth(np.minimum(raw, first + 0.5 * (first - float(raw.min()))), max(1.0, WINDOW * len(raw)))
    lowest = int(np.argmin(smoothed))
    noise = float(np.median(np.abs(raw - smoothed)))
    fall = float(smoothed[: lowest + 1].max() - smoothed[lowest])
    made = {"rates": tuple(rates), "losses": tuple(losses), "smoothed": tuple(map(float, smoothed)), "current": current}
    if lowest < 2 or fall <= 3 * noise or fall <= 1e-6 * abs(float(raw[0])):
        says = f"no suggestion: the loss never fell by more than it scatters ({fall:.2g} against {noise:.2g})"
        return RangeTest(**made, suggestion=None, lowest=None, says=says)  # type: ignore[arg-type]
    slope = np.gradient(smoothed, x)[: lowest + 1]
    steepest = int(np.argmin(slope))
    found = float(rates[steepest])
    says = f"suggested {found:.2g}; the loss is lowest at {rates[lowest]:.2g} and rises after it"
    if lowest >= len(raw) - 2:
        says = f"suggested {found:.2g}; the loss still fell at {rates[-1]:.2g}, the end of the test"
    if why:
        says += f" ({why})"
    if current > float(rates[lowest]):
        says += f"; yours, {current:.2g}, is above the lowest point"
    return RangeTest(**made, suggestion=found, lowest=float(rates[lowest]), says=says)  # type: ignore[arg-type]


def _smooth(values: "np.ndarray[Any, Any]", width: float) -> "np.ndarray[Any, Any]":
    """Weighted means around each point, with a Gaussian window."""
    reach = math.ceil(3 * width)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    weights = np.convolve(np.ones_like(values), bell)[reach:-reach]
    smoothed: np.ndarray[Any, Any] = np.convolve(values, bell)[reach:-reach] / weights
    return smoothed
