"""The job of `caboose demo`: some ranks train a small transformer, and a few steps go wrong for a real reason.

From `--spike-at` on, for `--bad-steps` steps, every rank's batch is corrupted (its targets are shuffled, as a broken
shard would) while the learning rate is too high, as a schedule's bug would. One such step heals by itself; several do
damage that lasts, and the run is better off where it was before: `--rollback auto` lets Caboose take it back.

    torchrun --nproc-per-node 2 -m caboose_drills.demo --steps 300 --spike-at 180 --bad-steps 6 --rollback auto

The bad batches belong to the data and the wrong rate to the step, so neither is met again after a rollback.
"""

import argparse
import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import caboose
from caboose_drills.text import TextStream
from caboose_drills.transformer import Transformer

VOCABULARY, LENGTH, BATCH = 64, 48, 16
HELD_OUT_SEED, HELD_OUT_BATCHES = 999, 16
COMPILED_EVERY = 10
"""Steps between two samples of a compiled run."""
PACED_AFTER = 5
"""The step at which the ranks agree on how long one takes."""


def main() -> None:
    """Trains, with the fault, for the given number of steps."""
    options = _options()
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    model = _wrap(Transformer(vocabulary=VOCABULARY, length=LENGTH), options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    seed = 1 + 100 * options.seed + dist.get_rank()
    stream = TextStream(vocabulary=VOCABULARY, length=LENGTH, batch=BATCH, seed=seed)
    shuffle = torch.Generator().manual_seed(3 + options.seed)
    began = time.perf_counter()
    losses: list[float] = []
    work = math.inf  # seconds until all ranks are together in a step

    monitor = caboose.attach(
        model,
        optimizer,
        scheduler=scheduler,
        num_classes=VOCABULARY,
        rollback=caboose.Rollback(
            options.rollback,
            cooldown_steps=options.rollback_cooldown,
            snapshots=caboose.Snapshots(every=options.snapshot_every),
        ),
        checkpoints=options.checkpoint_dir or None,
        sampling=caboose.Sampling(COMPILED_EVERY, compiled=True) if options.compiled else None,
    )
    for step, tokens in zip(range(1, options.steps + 1), monitor.watch(stream), strict=False):
        step_began = time.perf_counter()
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if _goes_wrong(step, options):
            order = torch.randperm(targets.numel(), generator=shuffle)
            targets = targets.flatten()[order].view_as(targets)
            for group in optimizer.param_groups:
                group["lr"] *= options.raise_lr
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
        together = time.perf_counter()
        if step <= PACED_AFTER:
            work = min(work, together - step_began) if step < PACED_AFTER else _most(work)
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss, num_samples=BATCH)
        if step == options.checkpoint_at:
            monitor.checkpoint()
        scheduler.step()  # sets the LR back to the schedule's
        losses.append(loss.item())
        # Counted from where all ranks are together: from its own beginning, a rank that is behind once would stay so.
        time.sleep(max(0.0, together + options.step_seconds - work - time.perf_counter()))
    seconds = time.perf_counter() - began
    num_rollbacks = monitor.num_rollbacks
    monitor.close()
    if options.result:
        facts = {"losses": losses, "seconds": seconds, "num_rollbacks": num_rollbacks}
        facts |= {"held_out": _held_out_loss(model), "parameters": _fingerprint(model)}
        Path(f"{options.result}.{dist.get_rank()}").write_text(json.dumps(facts), encoding="utf-8")
    dist.barrier()  # all leave together: gloo may abort in a rank whose peers are gone before it is done with them
    dist.destroy_process_group()


def _most(seconds: float) -> float:
    """The largest value over all ranks."""
    shared = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def _goes_wrong(step: int, options: argparse.Namespace) -> bool:
    since: int = step - options.spike_at
    if options.again_every and since >= 0:
        since %= options.again_every
    return since in range(options.bad_steps)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--spike-at", type=int, default=180, help="the first step that goes wrong")
    parser.add_argument("--bad-steps", type=int, default=1, help="how many do; 0 for none")
    parser.add_argument("--again-every", type=int, default=0, help="the fault comes again after so many steps")
    parser.add_argument("--raise-lr", type=float, default=40.0, help="how many times the LR is raised on them")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="do not run faster than this")
    parser.add_argument("--rollback", choices=("off", "advise", "auto"), default="advise")
    parser.add_argument("--rollback-cooldown", type=int, default=200)
    parser.add_argument("--snapshot-every", type=int, default=10)
    parser.add_argument("--checkpoint-dir", default="")
    parser.add_argument("--checkpoint-at", type=int, default=0, help="save one after this step")
    parser.add_argument("--sharding", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--compiled", action="store_true", help="compile the blocks, and read inside their graphs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", default="", help="write losses and a fingerprint to this file, .RANK added")
    return parser.parse_args()


def _wrap(model: Transformer, options: argparse.Namespace) -> nn.Module:
    if options.compiled:
        for block in model.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
    if options.sharding == "ddp":
        return DistributedDataParallel(model)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)  # in place: it becomes an FSDPModule
    return model


def _held_out_loss(model: nn.Module) -> float:
    """Loss on text that no rank trains on; the same on all ranks."""
    stream = TextStream(vocabulary=VOCABULARY, length=LENGTH, batch=BATCH, seed=HELD_OUT_SEED)
    total = 0.0
    with torch.no_grad():
        for _, tokens in zip(range(HELD_OUT_BATCHES), stream, strict=False):
            logits = model(tokens[:, :-1])
            total += F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    return total / HELD_OUT_BATCHES


def _fingerprint(model: nn.Module) -> str:
    """Fingerprint of the whole model, equal on all ranks, sharded or not."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        whole: Any = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(whole.detach().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
