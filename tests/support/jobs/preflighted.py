"""Runs every tool for before the run on sharded models, then trains; each rank writes down what it saw.

    torchrun --nproc-per-node 2 preflighted.py OUT

OUT/rank<N>.json holds, for each way to wrap the model, what the tools found, what they changed, and the losses of
the steps after them, beside those of a run without any tool. Then come the models that are refused.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import caboose
from support.fingerprints import changed, fingerprint

WAYS = ("ddp_views", "fsdp2")


class Run:
    """One model in training."""

    def __init__(self, way: str, *, is_begun: bool = True) -> None:
        torch.manual_seed(0)
        inner = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.LayerNorm(16),
            torch.nn.ReLU(),
            torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.2)),
            torch.nn.Linear(16, 3),
        )
        self.model: Any = wrap(inner, way)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
        data = TensorDataset(inputs, inputs[:, :3].argmax(1))
        self.loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
        torch.manual_seed(100 + dist.get_rank())
        self.batch = next(iter(self.loader))
        if is_begun:
            self.step(self.batch)  # gradients, optimizer states and DDP's buckets are there

    def step(self, batch: Any) -> float:
        self.optimizer.zero_grad(set_to_none=False)
        loss = loss_fn(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.detach())

    def train(self) -> list[float]:
        return [self.step(batch) for batch in self.loader]

    def tools(self) -> dict[str, Any]:
        given = (self.model, loss_fn, self.loader)
        looked = caboose.inspect(self.model, loss_fn, self.batch)
        sharp = caboose.sharpness(*given, num_directions=1, num_iterations=3)
        report = caboose.preflight(
            *given,
            self.optimizer,
            validation_loader=self.loader,
            scheduler=self.scheduler,
            num_batches=2,
            overfit_steps=15,
        )
        return {
            "norms": [look.norm for look in looked.gradients],
            "activations": len(looked.activations),
            "method": sharp.eigenvalue.method,
            "verdicts": {line.name: line.verdict.grade for line in report.lines},
            "says": {line.name: line.verdict.says for line in report.lines},
            "suggestion": caboose.find_lr(*given, self.optimizer, num_steps=20).suggestion,
            "overfit": caboose.overfit_one_batch(*given, self.optimizer, num_steps=15).losses,
        }


def wrap(inner: Any, way: str) -> torch.nn.Module:
    if way.startswith("ddp"):
        return torch.nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=way == "ddp_views")
    if way == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(inner[3], mesh=mesh)
        fully_shard(inner, mesh=mesh)
    return inner


def loss_fn(model: Any, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def tried(way: str) -> dict[str, Any]:
    control = Run(way).train()
    run = Run(way)
    kept = (run.optimizer, run.scheduler, run.loader)
    before = fingerprint(run.model, *kept)
    found = run.tools()
    found["changed"] = changed(before, fingerprint(run.model, *kept))
    found["trained"], found["control"] = run.train(), control
    return found


def whole(rank: int) -> dict[str, Any]:
    """The same numbers of the unsharded model on both ranks' batches at once, without dropout's noise."""
    found: dict[str, Any] = {}
    for way in ("plain", "ddp", "fsdp2"):
        run = Run(way, is_begun=False)
        run.model.eval()
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(2))
        batch = (inputs, inputs[:, :3].argmax(1))
        own = batch if way == "plain" else tuple(part[rank::2] for part in batch)
        looked = caboose.inspect(run.model, loss_fn, own)
        sharp = caboose.sharpness(run.model, loss_fn, [own], num_directions=1, num_iterations=80, tolerance=1e-3)
        found[way] = {
            "norms": [look.norm for look in looked.gradients],
            "means": [look.mean for look in looked.gradients],
            "highest": [look.highest for look in looked.gradients],
            "eigenvalue": sharp.eigenvalue.value,
            "profile": sharp.profiles[0],
        }
    return found


def refused() -> dict[str, str]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    models = {
        "fsdp1": FullyShardedDataParallel(torch.nn.Linear(8, 4), device_id=torch.device("cpu")),
        "tensor_parallel": parallelize_module(
            torch.nn.Sequential(torch.nn.Linear(8, 4)), mesh, {"0": ColwiseParallel()}
        ),
    }
    found = {}
    for name, model in models.items():
        try:
            caboose.inspect(model, loss_fn, (torch.zeros(2, 8), torch.zeros(2)))
        except ValueError as error:
            found[name] = str(error)
    return found


def failing(rank: int) -> str:
    """The loss of one rank raises: no other rank may wait for it."""
    model: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        if rank == 1:
            raise KeyError("labels")
        return loss_fn(model, batch)

    batch = (torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))
    return caboose.preflight(model, loss, [batch], optimizer)["output_shape"].says


class Pooled(torch.nn.Module):
    """Its pooler is used by no loss, and behind a detach on demand."""

    def __init__(self, *, is_cut: bool) -> None:
        super().__init__()
        self.last, self.pooler, self.is_cut = torch.nn.Linear(8, 3), torch.nn.Linear(8, 8), is_cut

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.pooler(inputs).detach() if self.is_cut else inputs)  # type: ignore[no-any-return]


def unused() -> dict[str, list[str]]:
    """What is said of parameters without a gradient."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    models: dict[str, Any] = {
        "ddp": torch.nn.parallel.DistributedDataParallel(Pooled(is_cut=False)),
        "ddp, told": torch.nn.parallel.DistributedDataParallel(Pooled(is_cut=False), find_unused_parameters=True),
        "fsdp2": fully_shard(Pooled(is_cut=False), mesh=mesh),
        "fsdp2, cut": fully_shard(Pooled(is_cut=True), mesh=mesh),
    }
    batches = [(torch.randn(4, 8), torch.tensor([0, 1, 2, 0])) for _ in range(2)]
    found = {}
    for name, model in models.items():
        verdict = caboose.preflight(model, loss_fn, batches, only="gradient_flow")["gradient_flow"]
        found[name] = [verdict.grade, verdict.says]
    return found


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: dict[str, Any] = {way: tried(way) for way in WAYS}
    found["whole"] = copy.deepcopy(whole(rank))
    found["refused"] = refused()
    found["failing"] = failing(rank)
    found["unused"] = unused()
    (Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
