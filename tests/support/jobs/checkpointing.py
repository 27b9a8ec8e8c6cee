"""A job that saves checkpoints, and a second one that resumes from them: new processes, a new process group.

    python checkpointing.py OUT MODE...

The ranks are forked, so torch is imported once. `save`: in each mode, trains four steps, saves, trains four more; then
a checkpoint of which one rank can write no more than a few bytes, and at last one during which rank 0 is killed.
`resume`: another model, from other random numbers, is loaded from the checkpoint and takes the last four steps again;
newer checkpoints were damaged meanwhile, each in another file. OUT/<verb>-<rank>.json holds the losses and digests.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import caboose
from caboose.checkpoints.checkpointer import Checkpointer
from caboose.checkpoints.errors import CheckpointRefused

STEPS, SAVED_AT, WORLD = 8, 4, 2
DAMAGED = {8: "__1_0.distcp", 7: "rank-0.pt", 6: "rank-1.pt"}


def named(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters by the names they have without DDP."""
    return [(name.removeprefix("module."), p) for name, p in model.named_parameters()]


class Average:
    """Averaged parameters: replicated, sharded or a rank's own, as the parameters are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.values = {name: p.detach().clone() for name, p in named(model)}

    def update(self, model: torch.nn.Module) -> None:
        for name, p in named(model):
            if p.numel():
                self.values[name].lerp_(p.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self.values[name].copy_(value)


class Position:
    """Where a rank's own data stands."""

    def __init__(self, rank: int) -> None:
        self.rank, self.count = rank, 0

    def state_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "count": self.count, "history": {3: (1.5, float("inf"))}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["rank"] == self.rank
        assert state["history"] == {3: (1.5, float("inf"))}
        self.count = state["count"]


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 12),
        torch.nn.BatchNorm1d(12),
        torch.nn.Dropout(0.1),
        torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.ReLU()),
        torch.nn.Linear(12, 1),
    )


def wrap(model: torch.nn.Module, mode: str) -> torch.nn.Module:
    if mode.startswith("ddp"):
        return torch.nn.parallel.DistributedDataParallel(model)
    if mode.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": True}
        model[3] = FullyShardedDataParallel(model[3], **options)  # type: ignore[operator]  # a Sequential
        return FullyShardedDataParallel(model, **options)
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[3], mesh=mesh)  # type: ignore[index]  # a Sequential
    fully_shard(model, mesh=mesh)
    return model


class Run:
    """A small run in one mode, whose batches come from the random numbers that are saved with it."""

    def __init__(self, directory: Path, mode: str, seed: int) -> None:
        rank = dist.get_rank()
        torch.manual_seed(seed)
        self.model = wrap(make_model(), mode)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6])
        self.average, self.position = Average(self.model), Position(rank)
        torch.manual_seed(seed + 1 + rank)
        random.seed(seed + rank)
        np.random.seed(seed + rank)
        self.losses: list[str] = []
        self.checkpointer = Checkpointer(
            directory / mode,
            self.model,
            [self.optimizer],
            [self.scheduler],
            extra={"average": self.average, "position": self.position},
            rank=rank,
            world=dist.get_world_size(),
            is_async=mode.endswith("async"),
            timeout_seconds=20,
        )

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            shift = random.random() + float(np.random.rand())
            loss = (self.model(torch.randn(16, 8) + shift) - shift).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.average.update(self.model)
            self.position.count += 1
            self.losses.append(loss.item().hex())

    def digest(self) -> list[str]:
        """Of everything, exactly."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *self.average.values.values()]
        for p in self.optimizer.state:
            tensors += self.optimizer.state[p].values()
        found = []
        for tensor in tensors:
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found.append(local.detach().double().sum().item().hex())
        rate = self.optimizer.param_groups[0]["lr"]
        return [*found, float(rate).hex(), str(self.position.count), str(self.scheduler.last_epoch)]


def save(directory: Path, modes: list[str], out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mode in modes:
        run = Run(directory, mode, seed=1)
        run.train(SAVED_AT)
        sums = [p.detach().double().sum().item().hex() for p in run.model.parameters()]
        buffers = [buffer.double().sum().item().hex() for buffer in run.model.buffers()]
        with slow_disk() if mode.endswith("async") else contextlib.nullcontext() as disk:
            saved = run.checkpointer.save(SAVED_AT, SAVED_AT - 1)
            run.train(STEPS - SAVED_AT)
            if disk is not None:
                assert saved.state == "writing"
                assert run.checkpointer.poll() is None, "all steps were taken while nothing could be written"
                disk.set()
                run.checkpointer.wait(30)
                later = run.checkpointer.poll()
                assert later is not None
                saved = later
        found[mode] = {"state": saved.state, "error": saved.error, "sums": sums, "buffers": buffers}
        found[mode] |= {"losses": run.losses[SAVED_AT:], "digest": run.digest()}
    run = Run(directory, "ddp_full", seed=1)
    run.train(1)
    found["full"] = full_disk(run)
    run.optimizer.param_groups[0]["weight_decay"] = 0.1 * dist.get_rank()
    found["differing"] = run.checkpointer.save(2, 2).error
    write(out, found)
    killed = Run(directory, "ddp_killed", seed=1)
    killed.train(1)
    assert killed.checkpointer.save(1, 1).state == "saved"
    killed.train(1)
    if dist.get_rank() == 0:
        torch.save = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # while torch writes its tensors
    saved = killed.checkpointer.save(2, 2)
    found["killed"] = {"state": saved.state, "error": saved.error, "again": killed.checkpointer.save(3, 3).state}
    return found


@contextlib.contextmanager
def slow_disk() -> Iterator[threading.Event]:
    """Nothing is written until the event is set."""
    usual, disk = torch.save, threading.Event()

    def save_later(*args: Any, **kwargs: Any) -> None:
        assert disk.wait(30)
        usual(*args, **kwargs)

    torch.save = save_later
    yield disk
    torch.save = usual


def full_disk(run: Run) -> dict[str, Any]:
    """Rank 1 may write no more than a few bytes, as on a full disk, then as much as it likes again."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, usual[1]))
    failed = run.checkpointer.save(1, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    dist.barrier()
    left = sorted(path.name for path in run.checkpointer.directory.iterdir())
    dist.barrier()
    saved = run.checkpointer.save(1, 1)
    return {"first": failed.state, "error": failed.error, "left": left, "second": saved.state}


def resume(directory: Path, modes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mode in modes:
        run = Run(directory, mode, seed=99)
        refused = []
        for step in (*DAMAGED, SAVED_AT):
            try:
                loaded = run.checkpointer.load(directory / mode / f"step-{step}")
                break
            except CheckpointRefused as error:
                refused.append(error.reason)
        run.train(STEPS - SAVED_AT)
        found[mode] = {"losses": run.losses, "digest": run.digest(), "refused": refused}
        found[mode] |= {"step": loaded.step, "model_step": loaded.model_step, "lost": loaded.lost}
    place = directory / "ddp" if dist.get_rank() == 0 else directory / "elsewhere"
    found["plan"] = caboose.resume_plan(place, endpoint="tcp://127.0.0.1:9", timeout=0.05).explain()
    return found


def write(out: Path, found: dict[str, Any]) -> None:
    out.write_text(json.dumps(found))


def rank_of(directory: Path, verb: str, modes: list[str], rank: int) -> None:
    """One rank, to its end."""
    dist.init_process_group("gloo", f"file://{directory}/{verb}.rendezvous", rank=rank, world_size=WORLD)
    out = directory / f"{verb}-{rank}.json"
    write(out, save(directory, modes, out) if verb == "save" else resume(directory, modes))
    with contextlib.suppress(RuntimeError):  # the killed one cannot take part
        dist.destroy_process_group()


def launch(directory: Path, verb: str, modes: list[str]) -> list[int]:
    """Runs all ranks and returns how each of them ended."""
    ranks = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rank_of(directory, verb, modes, rank)
                code = 0
            except BaseException:  # noqa: BLE001 - it ends here, and not in what the parent was doing
                traceback.print_exc()
            finally:
                os._exit(code)
        ranks.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]


def damage(directory: Path, mode: str) -> None:
    """Puts newer checkpoints there, of which some bytes of a file are others."""
    for step, name in DAMAGED.items():
        newer = directory / mode / f"step-{step}"
        shutil.copytree(directory / mode / f"step-{SAVED_AT}", newer)
        content = bytearray((newer / name).read_bytes())
        for place in range(20, len(content), 100):
            content[place] ^= 1
        (newer / name).write_bytes(content)


def main() -> None:
    directory, modes = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    codes = launch(directory, "save", modes)
    assert codes == [-signal.SIGKILL, 0], codes
    for mode in modes:
        damage(directory, mode)
    codes = launch(directory, "resume", modes)
    assert codes == [0, 0], codes


if __name__ == "__main__":
    main()
