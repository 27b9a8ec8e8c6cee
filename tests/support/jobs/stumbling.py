"""Lets one rank raise where the others go on, in every tool for before the run; each rank writes down what it got.

    torchrun --nproc-per-node 2 stumbling.py OUT

The process group has a short time-out: a rank that waits for one that is gone ends in an error of its own.
"""

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import caboose

PATIENCE = datetime.timedelta(seconds=10)
MARK = 99.0


def main() -> None:
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank = dist.get_rank()
    found = {name: attempt(scenario, rank) for name, scenario in SCENARIOS.items()}
    (Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def attempt(scenario: Callable[[int], Any], rank: int) -> Any:
    try:
        return scenario(rank)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the rank got
        return f"{type(error).__name__}: {error}"


def a_model(way: str) -> Any:
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    if way == "ddp":
        return torch.nn.parallel.DistributedDataParallel(inner)
    from torch.distributed.fsdp import fully_shard

    fully_shard(inner, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    return inner


def batches(rank: int, marked: int) -> list[Any]:
    """Eight of them; the marked one of rank 1 is the one that its loss cannot take."""
    generator = torch.Generator().manual_seed(rank)
    made = []
    for place in range(8):
        inputs = torch.randn(8, 8, generator=generator)
        targets = inputs[:, :3].argmax(1)
        if rank == 1 and place == marked:
            inputs[0, 0] = MARK
        made.append((inputs, targets))
    return made


def raising(*, is_early: bool) -> Callable[[Any, Any], torch.Tensor]:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        if is_early and inputs[0, 0] == MARK:
            raise KeyError("labels")
        outputs = model(inputs)
        if inputs[0, 0] == MARK:
            raise KeyError("labels")
        return torch.nn.functional.cross_entropy(outputs, targets)

    return loss


def checked(way: str, marked: int, *, is_early: bool = False) -> Callable[[int], Any]:
    def scenario(rank: int) -> Any:
        model = a_model(way)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loss_fn = raising(is_early=is_early)
        report = caboose.preflight(model, loss_fn, batches(rank, marked), optimizer, overfit_steps=10)
        return {line.name: (line.verdict.grade, line.verdict.says) for line in report.lines}

    return scenario


class Breaking:
    """On rank 1 the data end in an error."""

    def __init__(self, rank: int, after: int) -> None:
        self._rank, self._after = rank, after

    def __iter__(self) -> Iterator[Any]:
        for place, batch in enumerate(batches(0, -1) * 4):
            if self._rank == 1 and place == self._after:
                raise OSError("disk is gone")
            yield batch


def read(tool: str, after: int) -> Callable[[int], Any]:
    def scenario(rank: int) -> Any:
        model = a_model("ddp")
        loss_fn, loader = raising(is_early=False), Breaking(rank, after)
        if tool == "sharpness":
            return str(caboose.sharpness(model, loss_fn, loader))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return str(getattr(caboose, tool)(model, loss_fn, loader, optimizer))

    return scenario


SCENARIOS: dict[str, Callable[[int], Any]] = {
    "third batch": checked("ddp", 2),
    "fsdp2, behind the model": checked("fsdp2", 0),
    "fsdp2, before the model": checked("fsdp2", 0, is_early=True),
    "fsdp2, third batch": checked("fsdp2", 2, is_early=True),
    "overfit_one_batch": read("overfit_one_batch", 0),
    "find_lr": read("find_lr", 5),
    "sharpness": read("sharpness", 0),
}


if __name__ == "__main__":
    main()
