"""A run of some ranks, one of whose batches holds NaN in one sample; each rank writes down its losses.

    torchrun --nproc-per-node 2 hunted.py OUT --way ddp --nan-at 130

Without `--guarded` nothing is attached that could act: the twin that a hunted run is compared with.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import caboose

NAN_RANK, NAN_SAMPLE = 1, 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--way", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--steps", type=int, default=190)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--nan-at", type=int, default=0)
    parser.add_argument("--guarded", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inner = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32, 1),
    )
    if options.way == "fsdp2":
        inner[1] = torch.nn.LayerNorm(32)
    model: Any = DistributedDataParallel(inner) if options.way == "ddp" else fully_shard(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rollback = caboose.Rollback("auto", cooldown_steps=5, snapshots=caboose.Snapshots(every=20))
    guarding: dict[str, Any] = {"rollback": rollback, "hunt": True}
    monitor = caboose.attach(model, optimizer, **guarding if options.guarded else {})
    draw = torch.Generator().manual_seed(100 + rank)
    torch.manual_seed(1 + rank)
    data = [torch.randn(8, 16, generator=draw) for _ in range(options.steps)]
    if options.nan_at and rank == NAN_RANK:
        data[options.nan_at - 1][NAN_SAMPLE, 3] = float("nan")
    losses = []
    for batch in monitor.watch(data):
        loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
        losses.append(float(loss.detach()).hex())
        time.sleep(options.step_seconds)
    rollbacks = monitor.num_rollbacks
    monitor.close()
    (options.out / f"rank{rank}.json").write_text(json.dumps({"losses": losses, "num_rollbacks": rollbacks}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
