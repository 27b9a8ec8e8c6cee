"""`overfit_one_batch`: whether the model, with this loss and this optimizer, can memorise one batch.

Design
------
A model that cannot does not learn a dataset either, and the reason is in the code, not in the data. If the user's
optimizer fails, the same steps are made with a plain AdamW from the same weights: if that succeeds, the model and the
loss are fine and the optimizer's settings are the problem; if not, they are not. The verdict depends on the relative
fall of the loss, with dropout as it is, over the last few steps. A loss that still falls at the end (targets far from
zero, a small rate) does not prove that the batch cannot be learned.

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
from caboose.trials.sources import BatchSource
from caboose.trials.trial import LossFunction, Trial

LEARNED = 0.7
"""The relative fall of the loss of a learned batch; label smoothing keeps some of it."""
STUCK = 0.3
"""Below this, only the mean of the targets was learned."""
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

    @property
    def gone(self) -> float:
        """The relative fall of the loss at the end."""
        return _gone(self.losses)

    @property
    def verdict(self) -> Literal["pass", "warn", "fail"]:
        """`warn`: learned in part, or only by a plain AdamW, or still falling."""
        if not math.isfinite(self.losses[-1]):
            return "fail"
        if self.gone >= LEARNED:
            return "pass"
        reached = _gone(self.reference) if self.reference else 0.0
        return "warn" if self.gone >= STUCK or reached >= LEARNED or self._is_under_way else "fail"

    @property
    def _is_under_way(self) -> bool:
        """Whether it still falls, and so does the plain AdamW's: one that has settled shows the end."""
        return _is_falling(self.losses) and (not self.reference or _is_falling(self.reference))

    @property
    def says(self) -> str:
        """The result in one sentence."""
        first, last = self.losses[0], _last(self.losses)
        change = f"loss {first:.4g} to {last:.4g} in {len(self.losses)} steps"
        if not math.isfinite(self.losses[-1]):
            return f"the loss was {self.losses[-1]} after {len(self.losses)} steps"
        if self.gone >= LEARNED or not self.reference:
            return change
        other = f"{_last(self.reference):.4g}"
        if _gone(self.reference) >= LEARNED:
            return f"{change}, where a plain AdamW reaches {other}"
        if self._is_under_way:
            return f"{change}, and still falling"
        return f"{change}, and a plain AdamW gets to {other} only"

    @property
    def fix(self) -> str:
        """What to try first."""
        if self.verdict == "pass":
            return ""
        if self.reference and _gone(self.reference) >= LEARNED:
            return "the model can learn: look at the optimizer's learning rate and settings; caboose.find_lr helps"
        if not math.isfinite(self.losses[-1]):
            return "lower the learning rate, and look for log, sqrt or a division of zero in the loss"
        if self._is_under_way:
            return "raise the learning rate, or scale targets that are far from zero; else give it more steps"
        return "look for a wrong or detached loss, targets that do not belong to the inputs, and a missing activation"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.says}" + (f"\n      fix: {self.fix}" if self.fix else "")

    def plot(self, path: "str | Path | None" = None) -> Any:
        """The loss over the steps, as a plotly figure; written to a page if a path is given."""
        made, graph = plots.figure("One batch, learned by heart", "step", "loss", note=self.says)
        made.add_trace(graph.Scatter(y=self.losses, name="your optimizer", line={"color": plots.LINE, "width": 2}))
        if self.reference:
            line = {"color": plots.FAINT, "width": 2, "dash": "dot"}
            made.add_trace(graph.Scatter(y=self.reference, name="plain AdamW", line=line))
        if min(self.losses) > 0:
            made.update_yaxes(type="log", dtick="D2")
        return plots.finish(made, path)


def overfit_one_batch(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    loader: Any,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    num_steps: int = 100,
    split: Any = None,
    progress: bool | None = None,
) -> Overfit:
    """Trains on the first batch of a loader repeatedly, reports whether it is learned, and restores everything.

    `[batch]` is a loader too. While the loss still falls, up to three times `num_steps` are made. On several
    ranks each learns its own first batch, with averaged gradients.
    """
    if num_steps < 1:
        raise ValueError(f"overfit_one_batch(num_steps={num_steps}): give at least 1")
    source = BatchSource("overfit_one_batch", loader)
    trial = Trial("overfit_one_batch", model, loss_fn, optimizer, split=split, needs_optimizer=True)
    with trial, source:
        batch = trial.ranks.together(lambda: source.take(1)[0])
        shown = progress if trial.ranks.rank == 0 else False
        with ProgressLine(num_steps, is_shown=shown) as bar:
            return overfit(trial, batch, num_steps, bar)


def overfit(trial: Trial, batch: Any, num_steps: int, bar: ProgressLine) -> Overfit:
    """The same within a trial, which is left at its end."""
    is_noisy = _is_noisy(trial, batch)
    trial.rewind()
    raise_lr(trial)
    losses = _learn(trial, trial.optimizers, batch, num_steps, bar, is_noisy=is_noisy)
    if math.isfinite(losses[-1]) and _gone(losses) >= LEARNED:
        return Overfit(tuple(losses), ())
    plain = _plain(trial)
    trial.rewind()
    try:
        reference = _learn(trial, plain, batch, num_steps, bar, is_noisy=is_noisy)
    except Exception:  # noqa: BLE001 - of steps that the user never makes: no reference, and no verdict on the user's own
        reference = []
    return Overfit(tuple(losses), tuple(reference))


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


def _learn(
    trial: Trial,
    optimizers: Sequence[torch.optim.Optimizer],
    batch: Any,
    num_steps: int,
    bar: ProgressLine,
    *,
    is_noisy: bool,
) -> list[float]:
    trial.train()
    if is_noisy:
        for module in trial.model.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                module.eval()
    losses: list[float] = []
    best, best_at = math.inf, 0
    for step in range(PATIENCE * num_steps):
        if is_noisy:
            trial.repeat_noise()
        loss = trial.backward(batch)
        losses.append(loss)
        if not math.isfinite(loss):
            break
        if loss < best * (1 - 1e-3 * (best > 0)):
            best, best_at = loss, step
        if step - best_at >= ROOM and _gone(losses) >= LEARNED:
            break
        if 0 <= loss < 1e-3 * losses[0]:
            break
        if step + 1 >= num_steps and (_gone(losses) >= LEARNED or not _is_falling(losses)):
            break
        for optimizer in optimizers:
            trial.ranks.together(optimizer.step)
        bar.show(f"overfit one batch: loss {loss:.4g}", 1)
    return losses


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
