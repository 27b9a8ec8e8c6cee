"""One model trained in many ways; each rank writes down the gradient norms it can gather itself.

    torchrun --nproc-per-node N sharded.py OUT MODE...

The whole batch is the same in every mode and is divided among the ranks, so the gradients are those of MODE `plain`.
Each mode is a job of its own name. OUT/rank<N>.json holds, for each mode and step, the norm of every parameter's
gradient, gathered over the ranks by the job's own collectives, and how many collectives the steps took.
"""

import argparse
import contextlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_  # by name, as many scripts do
from torch.utils._python_dispatch import TorchDispatchMode

import caboose

STEPS, BATCH, WIDTH = 5, 16, 12


class CountCollectives(TorchDispatchMode):
    """Counts what goes through torch's collective operations on this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace in ("c10d", "_c10d_functional")
        return func(*args, **(kwargs or {}))


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, WIDTH),
        torch.nn.Tanh(),
        torch.nn.LayerNorm(WIDTH),
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()),
        torch.nn.Linear(WIDTH, 1),
    )


def wrap(model: torch.nn.Module, mode: str, world: int) -> torch.nn.Module:
    if mode in ("ddp", "accumulate", "amp", "two_optimizers", "clip", "clip_by_name"):
        return torch.nn.parallel.DistributedDataParallel(model)
    if mode == "ddp_compiled":
        return torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="aot_eager")
    if mode == "compile":
        # Inductor makes C++ here; without a compiler the rest of the way through torch.compile is still taken.
        return torch.compile(model, backend="inductor" if shutil.which("g++") else "aot_eager")
    if mode.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

        options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": mode != "fsdp1_flat"}
        if mode == "fsdp1_hybrid":
            options["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
            options["device_mesh"] = dist.device_mesh.init_device_mesh("cpu", (2, world // 2))
        model[3] = FullyShardedDataParallel(model[3], **options)  # type: ignore[operator]  # a Sequential
        return FullyShardedDataParallel(model, **options)
    if mode.startswith("fsdp2"):
        from torch.distributed.fsdp import fully_shard

        shape = (2, world // 2) if mode == "fsdp2_hybrid" else (world,)
        names = ("replicate", "shard") if len(shape) == 2 else ("shard",)
        mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
        fully_shard(model[3], mesh=mesh)  # type: ignore[index]  # a Sequential
        fully_shard(model, mesh=mesh)
    return model


def gathered_norms(model: torch.nn.Module, mode: str) -> list[float]:
    """Every parameter's norm, by this job's own means."""
    norms = []
    for p in model.parameters():
        grad = p.grad
        if mode.startswith("fsdp1"):
            square = torch.zeros((), dtype=torch.float64) if grad is None else grad.double().pow(2).sum()
            dist.all_reduce(square)
            norms.append(math.sqrt(float(square) / (2 if mode == "fsdp1_hybrid" else 1)))
        elif hasattr(grad, "full_tensor"):
            norms.append(float(grad.full_tensor().double().norm()))
        else:
            norms.append(float(grad.double().norm()))
    return norms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("modes", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = {mode: train(mode) for mode in options.modes}
    (options.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def train(mode: str) -> dict[str, Any]:
    """Five steps in one mode."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = wrap(make_model(), mode, world)
    parameters = list(model.parameters())
    middle = 1 if mode == "two_optimizers" else len(parameters)
    optimizers = [torch.optim.SGD(some, lr=0.05) for some in (parameters[:middle], parameters[middle:]) if some]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if mode == "amp" else None
    monitor = caboose.attach(
        model, optimizers, scaler=scaler, job=mode, sampling=caboose.Sampling(2, overhead_budget=1.0)
    )
    draw = torch.Generator().manual_seed(5)
    seen = []
    counter = CountCollectives()
    for _ in range(STEPS):
        x = torch.randn(BATCH, 8, generator=draw)
        y = x.sum(dim=1, keepdim=True)
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        parts = 2 if mode == "accumulate" else 1
        with counter:
            for part in range(parts):
                xs, ys = x[mine].chunk(parts)[part], y[mine].chunk(parts)[part]
                is_last = part == parts - 1
                with contextlib.nullcontext() if is_last else model.no_sync():  # type: ignore[operator]  # DDP's
                    loss = ((model(xs) - ys) ** 2).mean() / parts
                    (scaler.scale(loss) if scaler is not None else loss).backward()
        scale = scaler.get_scale() if scaler is not None else 1.0
        seen.append([norm / scale for norm in gathered_norms(model, mode)])
        with counter:
            clip(model, mode)
            for optimizer in optimizers:
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                optimizer.zero_grad()
            monitor.step(loss)
    monitor.close()
    return {"norms": seen, "collectives": counter.count}


def clip(model: torch.nn.Module, mode: str) -> None:
    """As the mode has it: through the module, by name, or FSDP's own."""
    if mode == "clip":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    elif mode in ("clip_by_name", "fsdp2_clip"):
        clip_grad_norm_(model.parameters(), 0.01)
    elif mode == "fsdp1_clip":
        model.clip_grad_norm_(0.01)  # type: ignore[operator]  # FSDP's own


if __name__ == "__main__":
    main()
