"""Trains with `skip_step`, one rank having a bad batch, and again without: which updates were left out, and how."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_

from caboose.rollback.skip_step import StepSkipper
from caboose.tensors.tensor_tree import inner_tensors
from support.jobs.sharded import CountCollectives

STEPS, BAD = 6, 4


def skip(mode: str) -> dict[str, Any]:
    """Two runs that see the same data but for one number; `mode` is skip_ddp, skip_fsdp1 or skip_fsdp2."""
    kind = mode.removeprefix("skip_")
    bare, watched = train(kind, is_watched=False, bad=0), train(kind, is_watched=True, bad=0)
    return {"bare": bare, "watched": watched, "bad": train(kind, is_watched=True, bad=BAD)}


def train(kind: str, *, is_watched: bool, bad: int) -> dict[str, Any]:
    """A few steps; the batch of step `bad` is not finite on the last rank."""
    from support.jobs.replayed import make_model, wrap

    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = wrap(make_model(has_batch_norm=False), kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    skipper = StepSkipper("nonfinite", [optimizer]) if is_watched else None
    counter = CountCollectives()
    losses, norms, is_moved = [], [], []
    for number in range(1, STEPS + 1):
        draw = torch.Generator().manual_seed(100 * number + rank)
        x = torch.randn(8, 8, generator=draw)
        if number == bad and rank == world - 1:
            x[0, 0] = math.inf
        before = contents(model)
        with counter:
            loss = ((model(x) - 1.0) ** 2).mean()
            loss.backward()
            total = model.clip_grad_norm_(1.0) if kind == "fsdp1" else clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
        norms.append(float(total.full_tensor() if hasattr(total, "full_tensor") else total).hex())
        losses.append(loss.item().hex())
        is_moved.append(contents(model) != before)
        if skipper is not None:
            skipper.end_step()
    found = {"losses": losses, "norms": norms, "is_moved": is_moved, "collectives": counter.count}
    if skipper is not None:
        found |= {"num_skipped": skipper.num_skipped, "reason": skipper.last_reason, "why_off": skipper.why_off}
        found |= {"failures": skipper.guard.num_failures}
        skipper.close()
    return found


def contents(model: torch.nn.Module) -> list[Any]:
    """Every number of this rank's parameters."""
    return [[t.tolist() for t in inner_tensors(p, "").values()] for p in model.parameters()]
