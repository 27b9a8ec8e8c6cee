"""Two models with an optimizer each, trained in turn on several ranks, each wrapped in DDP or sharded by FSDP2.

    torchrun --nproc-per-node 2 parted.py OUT ddp|fsdp2 STEPS [attach]

Each rank writes OUT/rank<N>.json: of each part and step the loss (the mean over the ranks), the norm of the whole
gradient and the learning rate, and at the end a checksum of the whole weights.
"""

import gc
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6))

    def forward(self, noise: torch.Tensor) -> Any:
        return self.body(noise)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 7), nn.LeakyReLU(0.2), nn.Linear(7, 1))

    def forward(self, sample: torch.Tensor) -> Any:
        return self.body(sample)


def wrap(model: nn.Module, kind: str) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.body:  # type: ignore[union-attr]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


def full(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def norm(model: nn.Module) -> float:
    return float(torch.nn.utils.get_total_norm([full(p.grad) for p in model.parameters()]))


def mean(loss: torch.Tensor) -> float:
    value = loss.detach().clone()
    dist.all_reduce(value)
    return float(value) / dist.get_world_size()


def main() -> None:
    out, kind, steps, *how = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    models = {"discriminator": wrap(Discriminator(), kind), "generator": wrap(Generator(), kind)}
    optimizers = {
        "discriminator": torch.optim.SGD(models["discriminator"].parameters(), lr=0.05),
        "generator": torch.optim.AdamW(models["generator"].parameters(), lr=0.01),
    }
    schedule = torch.optim.lr_scheduler.StepLR(optimizers["generator"], 3, 0.5)
    monitor = None
    if how:
        import caboose

        monitor = caboose.attach(models, optimizers, objective="adversarial")
    critic, maker = models["discriminator"], models["generator"]
    criterion = nn.BCEWithLogitsLoss()
    torch.manual_seed(10 + rank)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}

    def update(name: str, loss: torch.Tensor) -> None:
        optimizer = optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        found[name].append((mean(loss), norm(models[name]), optimizer.param_groups[0]["lr"]))
        optimizer.step()

    for _ in range(int(steps)):
        with torch.no_grad():
            fake = maker(torch.randn(8, 4))
        both = torch.cat([torch.randn(8, 6), fake])
        critic_loss = criterion(critic(both), torch.cat([torch.ones(8, 1), torch.zeros(8, 1)]))
        update("discriminator", critic_loss)
        maker_loss = criterion(critic(maker(torch.randn(8, 4))), torch.ones(8, 1))
        update("generator", maker_loss)
        schedule.step()
        if monitor is not None:
            monitor.step({"discriminator": critic_loss, "generator": maker_loss})
    weights = [full(p.detach()).numpy().tobytes() for model in models.values() for p in model.parameters()]
    seen = {"parts": found, "weights": zlib.crc32(b"".join(weights))}
    Path(out, f"rank{rank}.json").write_text(json.dumps(seen))
    if monitor is not None:
        monitor.close()
    # The reducers of DDP wait for ever now and then if they are freed after their process group.
    models.clear()
    optimizers.clear()
    del critic, maker, critic_loss, maker_loss, schedule, monitor
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
