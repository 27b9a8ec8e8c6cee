"""Batches of a run, and what is measured of it for the comparison with its twin."""

import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from caboose_drills.randomised.plan import Data, Loss, Plan, Tensors, seeded


class Batches:
    """A loader of this rank's share; a pass is an epoch, in a new order."""

    def __init__(self, plan: Plan, data: Data, batch_size: int, spoiled_from: int = 0) -> None:
        mine = slice(plan.rank, None, plan.draw.world)
        self.dataset = TensorDataset(*(tensor[mine] for tensor in data.train))
        self.batch_size = max(1, min(batch_size, len(self.dataset)))
        self._plan = plan
        self._order = seeded(plan, 100 + plan.rank + spoiled_from)
        self._step = spoiled_from * plan.micro_batches

    def __len__(self) -> int:
        return max(1, len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Tensors]:
        order = torch.randperm(len(self.dataset), generator=self._order)
        for number in range(len(self)):
            chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
            batch = tuple(tensor[chosen] for tensor in self.dataset.tensors)
            step = self._step // self._plan.micro_batches + 1
            self._step += 1
            if self._plan.batch_delay is not None:
                time.sleep(self._plan.batch_delay(step))
            yield batch if self._plan.spoil is None else self._plan.spoil(step, batch)


def evaluate(model: nn.Module, loss: Loss, held: Tensors, classes: int | None) -> tuple[float, float | None]:
    """Loss and, of a classifier, accuracy on these samples, in eval mode; the mode stays as it was."""
    was_training, state = model.training, torch.get_rng_state()
    model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        value = float(loss(model, held))
        accuracy = None
        if classes is not None:
            accuracy = float((model(held[0]).argmax(dim=-1) == held[1]).float().mean())
    torch.set_rng_state(state)
    model.train(was_training)
    return value, accuracy


class Record:
    """What a run did, by its own measure and not the daemon's."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._losses: list[float] = []
        self._times: list[float] = []
        self.first = self.final = math.nan
        self.reported: list[float] = []

    def step(self, loss: float) -> None:
        self._losses.append(loss)
        self._times.append(time.perf_counter())

    def summary(self) -> dict[str, Any]:
        """Plain values; None where a number is not finite."""
        onset = max(1, self._plan.draw.onset)
        before, since = self._losses[max(0, onset - 41) : onset - 1], self._losses[onset - 1 :]
        gaps = [later - earlier for earlier, later in zip(self._times, self._times[1:], strict=False)]
        values = {
            "first": self.first,
            "final": self.final,
            "reported": self.reported[-1] if self.reported else math.nan,
            "best_reported": min(self.reported, default=math.nan),
            "first_loss": self._losses[0] if self._losses else math.nan,
            "before": statistics.median(before) if before else math.nan,
            "peak": max(since, default=math.nan) if all(map(math.isfinite, since)) else math.inf,
            "tail": statistics.median(since[-40:]) if since else math.nan,
            "wasted": self._plan.wasted,
            "step_seconds": statistics.median(gaps) if gaps else math.nan,
            "early_seconds": statistics.median(gaps[10:60]) if len(gaps) > 60 else math.nan,
            "late_seconds": statistics.median(gaps[-50:]) if len(gaps) > 60 else math.nan,
        }
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        places = {"origin_ranks": self._plan.origin_ranks, "origin_layers": self._plan.origin_layers}
        return {**plain, **places, "num_bad": sum(not math.isfinite(v) for v in since), "steps": len(self._losses)}
