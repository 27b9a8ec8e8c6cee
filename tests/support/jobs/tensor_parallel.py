"""One small model whose parameters and outputs are DTensors; the ranks look closely at different steps.

    torchrun --nproc-per-node 2 tensor_parallel.py OUT LAYOUT...

Each layout is a job of its own name. OUT/rank<N>.json holds, for each, the losses, the gradient norm of each step as
the job gathers it itself, how many collectives the steps took, and how often the agent failed.
"""

import argparse
import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import caboose

STEPS = 8


def lay_out(model: torch.nn.Module, layout: str, mesh: DeviceMesh) -> None:
    if layout == "standard":  # the outputs are plain tensors again
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif layout == "sharded":  # the first two outputs are sharded
        plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel(input_layouts=Shard(-1))}
        parallelize_module(model, mesh, plan)
    elif layout == "mixed":  # a sharded layer, then a replicated one; the loss is a DTensor
        whole = ColwiseParallel(use_local_output=False, output_layouts=Replicate())
        parallelize_module(model, mesh, {"0": whole})
        distribute_module(model.get_submodule("2"), mesh)
    else:  # all of it is replicated
        distribute_module(model, mesh)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(layout: str) -> dict[str, Any]:
    """A few steps in one layout."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    lay_out(model, layout, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # As when the governor has stretched one rank, or one alone saw a number that is not finite.
    every = 2 if dist.get_rank() == 0 else 3
    monitor = caboose.attach(model, optimizer, job=layout, sampling=caboose.Sampling(every, overhead_budget=1.0))
    counter = CommDebugMode()
    losses, norms, num_collectives = [], [], 0
    for step in range(STEPS):
        x = torch.ones(4, 8) * (step + 1)
        with counter:
            loss = model(distribute_tensor(x, mesh) if layout == "replicated" else x).pow(2).mean()
            loss.backward()
        num_collectives += counter.get_total_counts()
        losses.append(gathered(loss).item())
        norms.append(math.hypot(*(float(gathered(p.grad).norm()) for p in model.parameters() if p.grad is not None)))
        with counter:
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
        num_collectives += counter.get_total_counts()
    num_failures = monitor.guard.num_failures
    monitor.close()
    return {"losses": losses, "norms": norms, "collectives": num_collectives, "failures": num_failures}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("layouts", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    seen = {layout: train(layout) for layout in options.layouts}
    (options.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
