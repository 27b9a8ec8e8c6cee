"""`gradient_noise`: how much of a batch's gradient is noise, whether its size is right, and where the updates point.

Design
------
The gradients of several batches at the same weights differ only by their samples. Their lengths, and the length of
their mean, give the noise scale (McCandlish and others, 2018): the batch at which noise and signal are equal. Both are
corrected for the number of batches, so the estimate has no bias; with few batches it has a wide scatter, and where the
mean is no longer than noise alone would make it, there is only a lower bound. It needs one process, where the daemon's
rule `batch_size` needs two ranks.

With an optimizer, it makes one step: how large the update is against the weights, and its angle to the mean gradient.
Dropout uses the same random numbers for each batch. Everything is restored.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from caboose.tensors.placement import own
from caboose.trials.batches import num_samples
from caboose.trials.progress import ProgressLine
from caboose.trials.sources import BatchSource, as_loader
from caboose.trials.trial import LossFunction, Trial
from caboose.trials.weight_space import Direction, WeightSpace

SMALL, LARGE = 10.0, 0.1
"""Noise scale over the batch: above, the batch is small; below, it is large."""
UPHILL = 0.0
"""Cosine of the update and the direction that lowers the loss, below which the update raises it."""
ADVICE = {
    "small": "accumulate gradients or use a larger batch, up to about the noise scale; scale the rate by the same "
    "factor (Adam: by its square root), with a warm-up",
    "balanced": "keep the batch: a larger one saves few steps, a smaller one little time",
    "large": "a smaller batch learns as much per step; or raise the rate with a warm-up",
}


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """The gradients of several batches at the same weights."""

    num_batches: int
    batch: int
    """Samples in a batch, over all ranks."""
    noise_scale: float
    """Samples in a batch whose gradient is half signal, half noise; infinite where no signal was found."""
    agreement: float
    """The mean cosine of the gradients of two batches: 1 without noise, 0 without signal."""
    update_ratio: float | None = None
    """The length of one update over that of the weights, with an optimizer."""
    update_direction: float | None = None
    """The cosine of that update and the mean gradient, downhill: below 0 the update raises the loss."""

    @property
    def verdict(self) -> Literal["small", "balanced", "large"]:
        """Of the batch."""
        ratio = self.noise_scale / self.batch
        return "small" if ratio > SMALL else "large" if ratio < LARGE else "balanced"

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.is_uphill:
            return "look for maximize=True, a negated loss, or gradients of an earlier batch: updates raise the loss"
        return ADVICE[self.verdict]

    @property
    def is_uphill(self) -> bool:
        """Whether the update goes against the mean gradient."""
        return self.update_direction is not None and self.update_direction < UPHILL

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        scale = self.noise_scale if math.isfinite(self.noise_scale) else None
        return {**asdict(self), "noise_scale": scale, "verdict": self.verdict, "advice": self.advice}

    def __str__(self) -> str:
        scale = f"{self.noise_scale:,.0f} samples" if math.isfinite(self.noise_scale) else "above all batches together"
        lines = [
            f"{self.verdict}: noise scale {scale}, batch {self.batch:,}; "
            f"gradients of two batches agree by {self.agreement:.3f} (cosine, {self.num_batches} batches)"
        ]
        if self.update_ratio is not None and self.update_direction is not None:
            way = "uphill" if self.is_uphill else "downhill"
            lines.append(
                f"      update: {self.update_ratio:.2g} of the weights (about 0.001 is usual), {way}: cosine "
                f"{self.update_direction:.2f} to the mean gradient"
            )
        return "\n".join([*lines, f"      do: {self.advice}"])


def gradient_noise(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    loader: Any,
    optimizer: Any = None,
    *,
    num_batches: int = 16,
    split: Any = None,
    progress: bool | None = None,
) -> GradientNoise:
    """Measures on the first `num_batches` of a loader at the same weights, and restores everything."""
    if num_batches < 2:
        raise ValueError(f"gradient_noise(num_batches={num_batches}): give at least 2, to compare them")
    source = BatchSource("gradient_noise", as_loader(loader))
    trial = Trial("gradient_noise", model, loss_fn, optimizer, split=split)
    with trial, source, ProgressLine(num_batches, is_shown=progress if trial.ranks.rank == 0 else False) as bar:
        batches = trial.ranks.together(lambda: source.take(num_batches))
        batches = batches[: trial.ranks.least(len(batches))]
        if len(batches) < 2:
            raise ValueError("gradient_noise: the data has one batch; give a loader with two or more")
        space, mean, squares = WeightSpace(trial), None, 0.0
        for number, batch in enumerate(batches, 1):
            gradient = space.gradient([batch])
            squares += space.dot(gradient, gradient) / len(batches)
            mean = _added(mean, gradient, 1.0 / len(batches))
            bar.show(f"gradient of batch {number} of {len(batches)}", 1)
        assert mean is not None
        size = int(sum(map(num_samples, batches)) / len(batches)) * trial.ranks.num
        ratio, direction = _update(trial, space, mean) if trial.optimizers else (None, None)
        return _judged(len(batches), size, space.dot(mean, mean), squares, ratio, direction)


def _added(total: Direction | None, part: Direction, share: float) -> Direction:
    if total is None:
        return [share * one for one in part]
    for one, other in zip(total, part, strict=True):
        one += share * other
    return total


def _judged(
    num: int, batch: int, mean_square: float, square: float, ratio: float | None, direction: float | None
) -> GradientNoise:
    """From the squared length of the mean of `num` gradients, and the mean of their squared lengths."""
    signal = (num * mean_square - square) / (num - 1)
    noise = batch * (square - mean_square) * num / (num - 1)
    scale = noise / signal if signal > 0 else math.inf
    return GradientNoise(num, batch, scale, signal / square if square > 0 else 0.0, ratio, direction)


def _update(trial: Trial, space: WeightSpace, mean: Direction) -> tuple[float, float]:
    """One step of the optimizer on the mean gradient: its length over the weights', its cosine downhill."""
    before = [own(p).detach().clone() for p in space.parameters]
    for parameter, gradient in zip(space.parameters, mean, strict=True):
        if parameter.grad is not None:
            own(parameter.grad).copy_(gradient)
    trial.step()
    moved = [own(p).detach() - start for p, start in zip(space.parameters, before, strict=True)]
    length, steep = space.length(moved), space.length(mean)
    cosine = -space.dot(moved, mean) / max(length * steep, 1e-30)
    return length / max(space.start_length(), 1e-30), cosine
