"""Trains, takes a snapshot, trains on, goes back and trains on again, in many ways; each rank writes its losses down.

    torchrun --nproc-per-node N replayed.py OUT MODE...

The steps after the snapshot see the same data twice. OUT/rank<N>.json holds, for each mode, the losses of both
passes, and whether memory and fingerprint stayed what they were. Modes that begin with skip_ are those of `skipped`:
ranks take a while to start, so one launch does both.
"""

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from caboose.rollback.ring import Ring
from caboose.rollback.training_state import TrainingState
from support.jobs.skipped import skip
from support.processes import wait_until

WIDTH, BATCH = 16, 8
TAKEN, LAST = 4, 9


def make_model(*, has_batch_norm: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    norm: torch.nn.Module = torch.nn.BatchNorm1d(WIDTH) if has_batch_norm else torch.nn.LayerNorm(WIDTH)
    return torch.nn.Sequential(
        torch.nn.Linear(8, WIDTH),
        norm,
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Dropout(0.3)),
        torch.nn.Linear(WIDTH, 1),
    )


def wrap(model: Any, mode: str) -> torch.nn.Module:
    if mode == "ddp_compiled":
        return torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="aot_eager")
    if mode.startswith("ddp"):
        return torch.nn.parallel.DistributedDataParallel(model)
    if mode.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": mode != "fsdp1_flat"}
        model[2] = FullyShardedDataParallel(model[2], **options)
        return FullyShardedDataParallel(model, **options)
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=mode != "fsdp2_whole")
    return model


class Run:
    """One model in training, with everything that could go back."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.rank = dist.get_rank()
        inner = make_model(has_batch_norm=mode.startswith("ddp"))
        self.model = wrap(inner, mode)
        if mode in ("ddp_sgd", "fsdp1_flat"):
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.05, total_steps=40)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3) if mode == "ddp" else None
        self.ema = AveragedModel(inner, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if mode == "ddp" else None
        torch.manual_seed(100 + self.rank)  # from here on every rank draws its own dropout
        extra = [] if self.ema is None else [self.ema]
        self.state = TrainingState(
            self.model,
            [self.optimizer],
            schedulers=[self.scheduler],
            scaler=self.scaler,
            extra=extra,
            world=dist.get_world_size(),
        )
        self.ring = Ring(self.state, every=TAKEN, dedupe=mode in ("ddp_dedupe", "ddp_compiled"))

    def step(self, number: int) -> str:
        """One step on the data of this number; the loss with all its bits."""
        draw = torch.Generator().manual_seed(1000 * number + self.rank)
        x = torch.randn(BATCH, 8, generator=draw)
        loss = ((self.model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model.module)  # type: ignore[arg-type]  # DDP's
        if self.mode == "fsdp2_whole":  # an evaluation leaves the parameters whole
            with torch.no_grad():
                self.model(x)
        self.ring.passed(number, 0.1)
        return loss.item().hex()

    def pointers(self) -> list[int]:
        """Where everything lies."""
        tensors = self.state.capture().parts.tensors
        return [tensor.data_ptr() for name, tensor in sorted(tensors.items()) if not name.startswith("scheduler")]

    def contents(self) -> list[Any]:
        """All numbers that should be the same again."""
        tensors = self.state.capture().parts.tensors
        return [(name, tensor.tolist()) for name, tensor in sorted(tensors.items())]

    def ema_output(self) -> list[float]:
        """What the averaged model says."""
        if self.ema is None:
            return []
        self.ema.eval()
        with torch.no_grad():
            return [float(value) for value in self.ema(torch.ones(2, 8)).flatten()]


def replay(mode: str) -> dict[str, Any]:
    run = Run(mode)
    steps = range(TAKEN + 1, LAST + 1)
    for number in range(1, TAKEN + 1):
        run.step(number)
    taken = run.ring.take(TAKEN, TAKEN)
    at_snapshot, print_at_snapshot = run.contents(), run.ring.fingerprint()
    first = [run.step(number) for number in steps]
    ema, end = run.ema_output(), run.contents()
    print_at_end, pointers = run.ring.fingerprint(), run.pointers()
    wait_until(lambda: not run.ring.why_not(TAKEN), 10)
    pinned = run.ring.pin(TAKEN)
    age = run.ring.restore(TAKEN, lr="rewind", replay=True)
    result = {
        "taken": taken,
        "pinned": pinned,
        "age": age,
        "is_back": run.contents() == at_snapshot,
        "is_print_back": run.ring.fingerprint() == print_at_snapshot and print_at_end != print_at_snapshot,
        "fingerprint": run.ring.fingerprint(),
        "num_bytes": run.ring.num_bytes,
        "is_in_place": run.pointers() == pointers,
        "first": first,
        "again": [run.step(number) for number in steps],
    }
    result |= {"is_end_equal": run.contents() == end, "is_ema_equal": run.ema_output() == ema}
    run.ring.close()
    return result


@contextlib.contextmanager
def group() -> Iterator[None]:
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("modes", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with group():
        found = {mode: (skip if mode.startswith("skip_") else replay)(mode) for mode in options.modes}
        (options.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
