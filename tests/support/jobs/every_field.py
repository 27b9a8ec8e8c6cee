"""A DDP job that makes the agent use every field of the wire: clipping, scaler, samples, rollback, checkpoints, hunt.

    torchrun --nproc-per-node 2 every_field.py OUT

The hardware is faked at its boundary: the two functions that ask torch for a device's memory and utilization.
It trains until a command stops it, with an error that the ranks report.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from caboose.tensors import readback
from support import wire_recorder

JOB = "every-field"
SECONDS = 400.0
DIFFER = "differ"
"""Once a file of this name is there, one rank's weights are changed, so that the layers' fingerprints are compared.
Not before the rollback: it checks that the ranks have the same weights.
"""
HIGH_LOSS = range(60, 120)
"""Steps whose loss is far too high: long enough that the daemon asks the ranks to keep the snapshots from before."""


class Attention(torch.nn.Module):
    """Of each sample's features among one another."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.scale(x.unsqueeze(-1)).unsqueeze(1)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)[:, 0, :, 0]


class BusyDevice:
    """A device whose driver answers."""

    def __init__(self, device: torch.device) -> None:
        pass

    def read(self) -> float | None:
        return 0.75


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wire_recorder.install(out, "agent")
    readback.memory_bytes = lambda device: 3 * 2**30
    readback.Utilization = BusyDevice  # type: ignore[misc,assignment]
    import caboose

    caboose.resume_plan(out / "checkpoints", job=JOB)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.ReLU(),
        torch.nn.BatchNorm1d(32),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32, 8),
        torch.nn.Tanh(),
        Attention(),
        torch.nn.Linear(8, 4),
    )
    network[2].eval()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    monitor = caboose.attach(
        model,
        optimizer,
        scheduler=scheduler,
        scaler=scaler,
        job=JOB,
        start_step=3,
        config={"batch_size": 8},
        num_classes=4,
        rollback=caboose.Rollback(
            "auto", budget=100, cooldown_steps=0, skip_step="nonfinite", snapshots=caboose.Snapshots(every=10)
        ),
        checkpoints=out / "checkpoints",
        sampling=caboose.Sampling(5, overhead_budget=1.0),
        hunt=True,
    )
    monitor.watch_router(network[-1], top_k=2)  # its four outputs could be those of a router
    draw = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(4096, 16, generator=draw)
    if rank == 1:
        inputs[25 * 8 + 3, 3] = float("nan")
    data = TensorDataset(inputs, torch.randint(0, 4, (4096,), generator=draw))
    try:
        until_stopped(model, optimizer, scheduler, scaler, data, monitor, out / DIFFER)
    except caboose.RollbackFailed as error:
        monitor.close()
        print(f"stopped as planned: {error}")
    caboose.resume_plan(out / "checkpoints", job=JOB, timeout=10.0)
    sharded(rank)
    parted(rank)
    alone(rank)
    dist.destroy_process_group()


def until_stopped(
    model: Any, optimizer: Any, scheduler: Any, scaler: Any, data: Any, monitor: Any, differ: Path
) -> None:
    began, number, is_same = time.monotonic(), 0, True
    while time.monotonic() - began < SECONDS:
        for x, y in monitor.watch(DataLoader(data, batch_size=8)):
            number += 1
            train(model, optimizer, scaler, x, y, number, monitor)
            if is_same and dist.get_rank() == 1 and differ.exists():
                is_same = False
                with torch.no_grad():
                    model.module[0].weight.add_(1e-3)
            scheduler.step()
            if number in (27, 40):
                monitor.checkpoint()
            time.sleep(0.01)
    raise SystemExit("nobody stopped the run")


def sharded(rank: int) -> None:
    """FSDP2, a frozen layer, a parameter without optimizer, an uncalled module, eval mode, skipped updates."""
    import caboose

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
    network.extra = torch.nn.Linear(4, 4)
    network[0].bias.requires_grad_(False)
    fully_shard(network)
    trained = [p for name, p in network.named_parameters() if p.requires_grad and not name.startswith("extra")]
    optimizer = torch.optim.SGD(trained, lr=1e-2)
    options = {"rollback": caboose.Rollback(skip_step="nonfinite"), "sampling": caboose.Sampling(overhead_budget=1e-6)}
    monitor = caboose.attach(network, optimizer, job="every-field-sharded", **options)
    network.eval()
    for number in range(150):
        x = torch.full((8, 16), float("nan")) if number == 5 else torch.randn(8, 16)
        loss = network(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        monitor.step(loss)
        time.sleep(0.02 if number > 100 else 0.0)
    monitor.close()


def parted(rank: int) -> None:
    """Two models with optimizers and losses of their own."""
    import caboose

    models = {"maker": torch.nn.Linear(4, 4), "critic": torch.nn.Linear(4, 1)}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
    monitor = caboose.attach(models, optimizers, job="every-field-parted")
    for _ in range(20):
        loss = models["critic"](models["maker"](torch.randn(8, 4))).square().mean()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        monitor.step({"maker": loss, "critic": float(loss)})
        time.sleep(0.02)
    monitor.close()


def alone(rank: int) -> None:
    """Ranks without a wrapper, one of which falls behind; reports are dropped, and the agent turns itself off."""
    import caboose
    from caboose.guard import MAX_FAILURES
    from caboose.report import sender

    sender.Sender.__init__.__kwdefaults__["max_queued"] = 4  # a short queue, so that reports are dropped
    network = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    monitor = caboose.attach(network, optimizer, job="every-field-alone")
    for number in range(400):
        if 100 <= number < 105:  # evaluations with gradients on
            monitor.validation(1.0)
            network.eval()
            network(torch.randn(8, 4))
            network.train()
        loss = torch.nn.functional.cross_entropy(network(torch.randn(8, 4)), torch.randint(2, (8,)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        monitor.step(loss)
        time.sleep(4.0 if number == 200 and rank == 1 else 0.01 if number > 300 else 0.0)
    with contextlib.suppress(ValueError), monitor:
        raise ValueError("the run ends by an error, which its Bye has")
    monitor = caboose.attach(network, optimizer, job="every-field-off")
    for _ in range(MAX_FAILURES + 1):
        monitor.guard.failed("test", RuntimeError("injected"))
    time.sleep(3.0)


def train(model: Any, optimizer: Any, scaler: Any, x: Any, y: Any, number: int, monitor: Any) -> None:
    model.train()
    model.module[2].eval()
    loss = torch.nn.functional.cross_entropy(model(x), y) * (20.0 if number in HIGH_LOSS else 1.0)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if number % 10 == 7:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)  # before the scale is removed; it changes nothing
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    if number % 20 == 0:
        with torch.no_grad():
            model(x)  # an evaluation without model.eval()
        monitor.validation(1.0, accuracy=0.5)
    monitor.step(loss, metrics={"accuracy": 0.5}, num_samples=8, num_tokens=128)


if __name__ == "__main__":
    main()
