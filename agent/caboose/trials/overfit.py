"""`overfit_one_batch`: whether the model, with this loss and this optimizer, can memorise one batch.

Design
------
A model that cannot does not learn a dataset either, and the reason is in the code, not in the data. If the user's
optimizer fails, the same steps are made with a plain AdamW from the same weights: if that succeeds, the model and the
loss are fine and the optimizer's settings are the problem; if not, they are not. A loss that still falls at the end
(targets far from zero, a small rate) does not prove that the batch cannot be learned.

The verdict depends on how much of what can be learned from the inputs was learned, with dropout as it is, over the last
few steps: from the best loss of one output for all samples (0) to the best loss of any output (1); see
`without_input`. Where these are not known, it is the relative fall of the loss. With a target loss, that is reached or
not.

A loss with its own noise (diffusion, masked tokens) is another task at each step, and one batch of it cannot be
learned. There the same random numbers are used each time, without dropout: its masks, always the same, would identify
the samples even for a model that does not see its input.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from caboose.trials import plots
from caboose.trials.progress import ProgressLine
from caboose.trials.sources import BatchSource, as_loader
from caboose.trials.trial import LossFunction, Trial
from caboose.trials.without_input import Bounds, bounds
from caboose_plots import FAINT, Chart, Series

LEARNED = 0.7
"""The share of a learned batch."""
STUCK = 0.3
"""Below this, almost nothing was learned from the inputs."""
LAST = 5
PATIENCE = 3
"""A factor for the number of steps while the loss still falls: small rates are slow, not wrong."""
FALLS, PACE = 0.01, 0.2
"""A loss falls if it loses this share within an eighth of the steps, or keeps this share of its mean pace."""
ROUNDING = 1e-6
NOISE = 1e-3
"""Relative difference between two losses of one batch in eval mode from which the loss has noise."""
ROOM = 20
"""Steps without a better loss, once the batch is learned, before it stops."""


@dataclass(frozen=True, slots=True)
class Overfit:
    """The losses of one batch."""

    losses: tuple[float, ...]
    """Before each step, the mean over the ranks."""
    reference: tuple[float, ...]
    """The same with a plain AdamW; empty where it was not needed."""
    bounds: Bounds | None = None
    """What this batch costs without a model; None if that is not known."""
    target_loss: float | None = None

    @property
    def gone(self) -> float:
        """The relative fall of the loss at the end."""
        return _gone(self.losses)

    @property
    def learned(self) -> float:
        """The share of what can be learned from the inputs, at the end."""
        return share_learned(self.losses, self.bounds)

    @property
    def is_learned(self) -> bool:
        """Whether the target loss was reached; without one, whether the batch was learned."""
        return _is_learned(self.losses, self.bounds, self.target_loss)

    @property
    def verdict(self) -> Literal["pass", "warn", "fail"]:
        """`warn`: learned in part, or only by a plain AdamW, or still falling."""
        if not math.isfinite(self.losses[-1]):
            return "fail"
        if self.is_learned:
            return "pass"
        is_partly = self.learned >= STUCK or self._is_reference_learned or self._is_under_way
        return "warn" if is_partly else "fail"

    @property
    def _is_reference_learned(self) -> bool:
        return bool(self.reference) and _is_learned(self.reference, self.bounds, self.target_loss)

    @property
    def _is_under_way(self) -> bool:
        """Whether it still falls, and so does the plain AdamW's: one that has settled shows the end."""
        return _is_falling(self.losses) and (not self.reference or _is_falling(self.reference))

    @property
    def _goal(self) -> str:
        """What was not reached."""
        if self.target_loss is not None:
            return f", above the target {self.target_loss:g}"
        if self.bounds is None or not self.bounds.has_room:
            return ""
        if self.learned <= 0:
            return f", not below {self.bounds.constant:.4g}, which one output for all samples reaches"
        return f", {self.learned:.0%} of the way from {self.bounds.constant:.4g} (one output for all samples)"

    @property
    def says(self) -> str:
        """The result in one sentence."""
        first, last = self.losses[0], _last(self.losses)
        change = f"loss {first:.4g} to {last:.4g} in {len(self.losses)} steps"
        if not math.isfinite(self.losses[-1]):
            return f"the loss was {self.losses[-1]} after {len(self.losses)} steps"
        if self.is_learned:
            return change
        change += self._goal
        if not self.reference:
            return change
        other = f"{_last(self.reference):.4g}"
        if self._is_reference_learned:
            return f"{change}, where a plain AdamW reaches {other}"
        if self._is_under_way:
            return f"{change}, and still falling"
        return f"{change}, and a plain AdamW gets to {other} only"

    @property
    def fix(self) -> str:
        """What to try first."""
        if self.verdict == "pass":
            return ""
        if self._is_reference_learned:
            return "the model can learn: look at the optimizer's learning rate and settings; caboose.find_lr helps"
        if not math.isfinite(self.losses[-1]):
            return "lower the learning rate, and look for log, sqrt or a division of zero in the loss"
        if self._is_under_way:
            return "raise the learning rate, or scale targets that are far from zero; else give it more steps"
        return "look for a wrong or detached loss, targets that do not belong to the inputs, and a missing activation"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.says}" + (f"\n      fix: {self.fix}" if self.fix else "")

    def plot(self, path: "str | Path | None" = None) -> Any:
        """The loss over the steps; written to a file if a path is given (.png, .svg or .html)."""
        return plots.show(self.chart(), path)

    def chart(self) -> Chart:
        """What `plot` shows."""
        series = [Series("your optimizer", range(len(self.losses)), self.losses)]
        if self.reference:
            steps = range(len(self.reference))
            series.append(Series("plain AdamW", steps, self.reference, color=FAINT, dash="dot"))
        is_log = min(self.losses) > 0
        return Chart("One batch, learned by heart", "step", "loss", series, note=self.says, is_y_log=is_log)


def overfit_one_batch(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    loader: Any,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    num_steps: int = 100,
    target_loss: float | None = None,
    split: Any = None,
    progress: bool | None = None,
) -> Overfit:
    """Trains on the first batch of a loader repeatedly, reports whether it is learned, and restores everything.

    With a `target_loss` (0.01, say) it is learned when the loss is that low. One batch may be given as well. While the
    loss still falls, up to three times `num_steps` are made. On several ranks each learns its own first
    batch, with averaged gradients.
    """
    if num_steps < 1:
        raise ValueError(f"overfit_one_batch(num_steps={num_steps}): give at least 1")
    if target_loss is not None and not math.isfinite(target_loss):
        raise ValueError(f"overfit_one_batch(target_loss={target_loss}): give a finite number, or nothing")
    source = BatchSource("overfit_one_batch", as_loader(loader))
    trial = Trial("overfit_one_batch", model, loss_fn, optimizer, split=split, needs_optimizer=True)
    with trial, source:
        batch = trial.ranks.together(lambda: source.take(1)[0])
        shown = progress if trial.ranks.rank == 0 else False
        with ProgressLine(num_steps, is_shown=shown) as bar:
            return overfit(trial, batch, num_steps, bar, target_loss)


def overfit(trial: Trial, batch: Any, num_steps: int, bar: ProgressLine, target_loss: float | None = None) -> Overfit:
    """The same within a trial, which is left at its end."""
    is_noisy = _is_noisy(trial, batch)
    trial.rewind()
    known = None if is_noisy else bounds(trial, batch)
    learning = _Learning(trial, batch, num_steps, bar, is_noisy, known, target_loss)
    raise_lr(trial)
    losses = learning.run(trial.optimizers)
    if _is_learned(losses, known, target_loss):
        return Overfit(tuple(losses), (), known, target_loss)
    plain = _plain(trial)
    trial.rewind()
    try:
        reference = learning.run(plain)
    except Exception:  # noqa: BLE001 - of steps that the user never makes: no reference, and no verdict on the user's own
        reference = []
    return Overfit(tuple(losses), tuple(reference), known, target_loss)


def _plain(trial: Trial) -> list[torch.optim.Optimizer]:
    """Adam for all trained parameters; sparse embeddings need SparseAdam."""
    trained = [p for p in trial.parameters if p.requires_grad]
    sparse = [p for p in trained if p.grad is not None and p.grad.is_sparse]
    dense = [p for p in trained if not any(p is other for other in sparse)]
    found: list[torch.optim.Optimizer] = [torch.optim.SparseAdam(sparse, lr=1e-3)] if sparse else []
    return [*found, torch.optim.AdamW(dense, lr=1e-3, weight_decay=0.0)] if dense else found


def raise_lr(trial: Trial) -> None:
    """Skips a warm-up: at its beginning the rate is almost zero, and nothing would be learned."""
    tops = {}
    if hasattr(trial.scheduler, "max_lrs"):  # of a CyclicLR, which begins at its lowest
        groups = trial.scheduler.optimizer.param_groups
        tops = {id(group): float(top) for group, top in zip(groups, trial.scheduler.max_lrs, strict=False)}
    for optimizer in trial.optimizers:
        for group in optimizer.param_groups:
            known = (group.get("max_lr", 0.0), group.get("initial_lr", 0.0), tops.get(id(group), 0.0))
            base = max(map(float, known))
            if base > float(group["lr"]):
                set_lr(group, base)


def set_lr(group: dict[str, Any], lr: float) -> None:
    """In place where the rate is a tensor, as captured graphs have it."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


@dataclass(frozen=True, slots=True)
class _Learning:
    """How the batch is learned."""

    trial: Trial
    batch: Any
    num_steps: int
    bar: ProgressLine
    is_noisy: bool
    bounds: Bounds | None
    target_loss: float | None

    def run(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[float]:
        """The losses."""
        trial = self.trial
        trial.train()
        if self.is_noisy:
            for module in trial.model.modules():
                if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                    module.eval()
        losses: list[float] = []
        best, best_at = math.inf, 0
        for step in range(PATIENCE * self.num_steps):
            if self.is_noisy:
                trial.repeat_noise()
            loss = trial.backward(self.batch)
            losses.append(loss)
            if not math.isfinite(loss):
                break
            if loss < best * (1 - 1e-3 * (best > 0)):
                best, best_at = loss, step
            if self._is_over(losses, step - best_at):
                break
            for optimizer in optimizers:
                trial.ranks.together(optimizer.step)
            self.bar.show(f"overfit one batch: loss {loss:.4g}", 1)
        return losses

    def _is_over(self, losses: Sequence[float], num_since_best: int) -> bool:
        is_learned = _is_learned(losses, self.bounds, self.target_loss)
        if self.target_loss is not None:
            return is_learned or (len(losses) >= self.num_steps and not _is_falling(losses))
        if num_since_best >= ROOM and is_learned:
            return True
        if 0 <= losses[-1] < 1e-3 * losses[0]:
            return True
        return len(losses) >= self.num_steps and (is_learned or not _is_falling(losses))


def share_learned(losses: Sequence[float], known: Bounds | None) -> float:
    """The share of what can be learned from the inputs; the relative fall where that is not known."""
    last = _last(losses)
    if not math.isfinite(last):
        return -math.inf
    if known is None or not known.has_room:
        return _gone(losses)
    return (known.constant - last) / (known.constant - known.lowest)


def _is_learned(losses: Sequence[float], known: Bounds | None, target_loss: float | None) -> bool:
    if not math.isfinite(losses[-1]):
        return False
    return _last(losses) <= target_loss if target_loss is not None else share_learned(losses, known) >= LEARNED


def _is_noisy(trial: Trial, batch: Any) -> bool:
    """Whether the loss of one batch differs from one time to the next without dropout."""
    trial.model.eval()
    first, second = trial.measure(batch), trial.measure(batch)
    return abs(first - second) > NOISE * abs(first)


def _is_falling(losses: Sequence[float]) -> bool:
    """Whether the last eighth of the losses lies below the one before it, by more than noise."""
    span = max(LAST, len(losses) // 8)
    before, last = losses[-2 * span : -span], losses[-span:]
    if not before or not all(map(math.isfinite, (*before, *last))):
        return False
    level = statistics.fmean(last)
    fall, scatter = statistics.fmean(before) - level, statistics.pstdev(last) / math.sqrt(span)
    pace = (losses[0] - level) * span / len(losses)
    return fall > max(2 * scatter, min(FALLS * abs(level), PACE * pace), ROUNDING * abs(level))


def _last(losses: Sequence[float]) -> float:
    return statistics.fmean(losses[-LAST:]) if len(losses) >= 2 * LAST else losses[-1]


def _gone(losses: Sequence[float]) -> float:
    first, last = losses[0], _last(losses)
    if not math.isfinite(last):
        return -math.inf
    return (first - last) / abs(first) if first else 0.0
