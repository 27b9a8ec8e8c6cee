"""A small DDP job for tests: deterministic, and it writes down what it saw with its own eyes.

Each rank writes OUT/rank<N>.json: every loss as a hex float, the gradient norms it computed itself, its local norms
on every tenth step, and when each call of the agent began and how long it took.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import caboose
from caboose.guard import Protected
from support.stopwatch import run_queue_seconds


def time_every_call() -> list[tuple[float, float]]:
    """From now on, when each call into the agent begins and how long it takes, less waits for a core."""
    found: list[tuple[float, float]] = []
    original = Protected.__call__

    def timed(self: Protected, *args: Any, **kwargs: Any) -> Any:
        began, waited, start = time.time(), run_queue_seconds(), time.perf_counter()
        try:
            return original(self, *args, **kwargs)
        finally:
            seconds = time.perf_counter() - start
            found.append((began, seconds - max(0.0, run_queue_seconds() - waited)))

    Protected.__call__ = timed  # type: ignore[method-assign]  # to measure what is called, not to change it
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--nan-rank", type=int, default=-1, help="this rank's input becomes NaN ...")
    parser.add_argument("--nan-at", type=int, default=0, help="... at this step")
    parser.add_argument("--sample-every", type=int, help="the agent's default if not given")
    parser.add_argument("--raise-at", type=int, default=0, help="rank 1 raises at this step")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = caboose.attach(model, optimizer, sampling=caboose.Sampling(options.sample_every, overhead_budget=1.0))
    draw = torch.Generator().manual_seed(100 + rank)
    torch.manual_seed(1 + rank)
    losses, norms, local = [], [], {}
    calls = time_every_call()
    for step in range(1, options.steps + 1):
        began = time.perf_counter()
        x = torch.randn(8, 16, generator=draw)
        y = x.sum(dim=1, keepdim=True)
        if rank == options.nan_rank and step == options.nan_at:
            x[0, 0] = float("nan")
        if rank == 1 and step == options.raise_at:
            raise RuntimeError("the loader found a broken shard")
        if (step - 1) % 10 == 0:
            with model.no_sync():
                state = torch.get_rng_state()
                grads = torch.autograd.grad(((model.module(x) - y) ** 2).mean(), list(model.parameters()))
                torch.set_rng_state(state)
            local[step] = [float(g.norm()) for g in grads]
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        norms.append([float(p.grad.norm()) for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        monitor.step(loss, num_samples=8)
        time.sleep(max(0.0, options.step_seconds - (time.perf_counter() - began)))
    end = time.perf_counter()
    monitor.close()
    closing = time.perf_counter() - end
    seen = {"losses": losses, "norms": norms, "local": local, "calls": calls, "closing": closing, "pid": os.getpid()}
    (options.out / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
