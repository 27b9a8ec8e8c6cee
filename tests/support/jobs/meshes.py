"""One small network in several layouts over a mesh; each rank writes the norms of the unsharded network.

    torchrun --nproc-per-node 4 meshes.py OUT LAYOUT...

Each layout is a job of its own name. OUT/rank<N>.json holds, for each, the norm of each parameter's gradient at each
step, from a copy of the network that is not sharded and gets the batches of all ranks.
"""

import copy
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import caboose

STEPS, LENGTH, BATCH = 4, 8, 4
EVEN, UNEVEN = (24, 8), (25, 7)
"""Vocabulary and width: those of tensor parallel layers must be divisible."""
Lay = Callable[["Network", int], tuple[int, int]]
"""Lays the network out over so many ranks; returns this rank's share of the batch and the number of shares."""


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return y


class Network(torch.nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        y: torch.Tensor = self.head(self.norm(x))
        return y


def tensor_parallel(network: Network, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Every layer is parallel; with `sequence` the norms get a part of the sequence each."""
    inside: Any = Shard(1) if sequence else Replicate()
    norm = SequenceParallel(use_local_output=True) if sequence else None
    plan: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=inside),
        "head": ColwiseParallel(input_layouts=inside, output_layouts=Replicate()),
    }
    for number in range(len(network.blocks)):
        plan[f"blocks.{number}.up"] = ColwiseParallel(input_layouts=inside)
        plan[f"blocks.{number}.down"] = RowwiseParallel(output_layouts=inside)
    if norm is not None:
        plan |= {"norm": SequenceParallel(use_local_output=True)}
        plan |= {f"blocks.{number}.norm": SequenceParallel(use_local_output=True) for number in range(2)}
    parallelize_module(network, mesh, plan)
    if not sequence:
        for module in network.modules():
            if isinstance(module, torch.nn.LayerNorm):  # its input is whole on every rank, as a plain tensor
                distribute_module(module, mesh)
                whole = PrepareModuleInput(
                    input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=False
                )
                parallelize_module(module, mesh, whole)
                module.register_forward_hook(lambda _m, _a, out: out.to_local())


def tp(network: Network, world: int) -> tuple[int, int]:
    tensor_parallel(network, init_device_mesh("cpu", (world,)), sequence=False)
    return 0, 1


def sequence(network: Network, world: int) -> tuple[int, int]:
    tensor_parallel(network, init_device_mesh("cpu", (world,)), sequence=True)
    return 0, 1


def tied(network: Network, world: int) -> tuple[int, int]:
    tensor_parallel(network, init_device_mesh("cpu", (world,)), sequence=True)
    network.head.weight = network.embed.weight
    return 0, 1


def fsdp(network: Network, world: int) -> tuple[int, int]:
    for block in network.blocks:
        fully_shard(block)
    fully_shard(network)
    return dist.get_rank(), world


def hybrid(network: Network, world: int) -> tuple[int, int]:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return dist.get_rank(), world


def fsdp_tp(network: Network, world: int) -> tuple[int, int]:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    tensor_parallel(network, mesh["tp"], sequence=True)
    for block in network.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(network, mesh=mesh["dp"])
    return mesh["dp"].get_local_rank(), 2


def fsdp_some_tp(network: Network, world: int) -> tuple[int, int]:
    """Norms, embedding and head are on the data-parallel mesh alone, which is a part of the job."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    for block in network.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(network, mesh=mesh["dp"])
    return mesh["dp"].get_local_rank(), 2


def by_hand(network: Network, world: int) -> tuple[int, int]:
    """Placements on a mesh of two dimensions."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))

    def place(_name: str, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            is_sharded = isinstance(module, torch.nn.Linear) and parameter.dim() > 1
            how = [Replicate(), Shard(0) if is_sharded else Replicate()]
            module.register_parameter(name, torch.nn.Parameter(distribute_tensor(parameter, mesh, how)))

    distribute_module(network, mesh, place)
    return 0, 1


def experts(network: Network, world: int) -> tuple[int, int]:
    """The blocks' second layers are spread over a part of the job; the rest is whole."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "ep"))
    for block in network.blocks:
        parallelize_module(block, mesh["ep"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return 0, 1


LAYOUTS: dict[str, Lay] = {
    each.__name__: each for each in (tp, sequence, tied, fsdp, hybrid, fsdp_tp, fsdp_some_tp, by_hand, experts)
}


def train(layout: str, world: int) -> dict[str, Any]:
    torch.manual_seed(0)
    vocabulary, width = UNEVEN if layout in ("fsdp", "hybrid", "by_hand") else EVEN
    network = Network(vocabulary, width).double()
    if layout == "tied":
        network.head.weight = network.embed.weight
    whole = copy.deepcopy(network)
    share, num_shares = LAYOUTS[layout](network, world)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    monitor = caboose.attach(network, optimizer, job=f"{layout}-{world}", sampling=caboose.Sampling(2))
    draw = torch.Generator().manual_seed(1)
    norms = []
    for _ in range(STEPS):
        x = torch.randint(vocabulary, (num_shares, BATCH, LENGTH), generator=draw)
        if layout == "by_hand":
            (mesh,) = {p.device_mesh for p in network.parameters() if isinstance(p, DTensor)}
            out = network(distribute_tensor(x[share], mesh, [Replicate(), Replicate()])).full_tensor()
        else:
            out = network(x[share])
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), x[share].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss)
        whole.zero_grad()
        torch.nn.functional.cross_entropy(whole(x.flatten(0, 1)).flatten(0, 1), x.flatten()).backward()
        norms.append({name: p.grad.norm().item() for name, p in whole.named_parameters() if p.grad is not None})
    failures = monitor.guard.num_failures
    monitor.close()
    return {"norms": norms, "failures": failures}


def main() -> None:
    out, *layouts = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    seen = {layout: train(layout, dist.get_world_size()) for layout in layouts}
    (Path(out) / f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
