"""Writes one checkpoint: all ranks together, under its final name only when it is complete.

Design
------
Runs on the training thread, or on the checkpointer's own while training continues; never on two at once. The ranks meet
four times, all on the checkpointer's own group: each has captured its state and the directory exists; torch's save; all
files are on disk; the checkpoint has its name. A rank that cannot do its part reports that there (see `exchange`), and
all give up together. A rank that dies breaks the group, which the others notice.
"""

import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from caboose.checkpoints import layout, manifest
from caboose.checkpoints.errors import CheckpointFailed
from caboose.checkpoints.exchange import Exchange
from caboose.checkpoints.run_state import BUFFERS, RANDOM, Captured
from caboose.checkpoints.storage import ShardWriter

logger = logging.getLogger("caboose")


def write(
    directory: Path,
    exchange: Exchange,
    capture: Callable[[], Captured],
    *,
    step: int,
    model_step: int,
    wrapper: str,
    keep: int,
) -> int:
    """Writes the state as the checkpoint of this step, removes superseded ones, and returns its bytes on disk.

    CheckpointFailed on all ranks if one could not; any other exception means that a rank is gone.
    """
    path = layout.path_of(directory, step)
    here = layout.aside(path)
    state: list[Captured] = []

    def begin() -> dict[str, Any]:
        state.append(capture())  # first, since FSDP1's is a collective
        if exchange.rank == 0:
            layout.give_names_back(directory)
            for leftover in layout.leftovers_in(directory):
                layout.remove(leftover)
            here.mkdir(parents=True)
        digests = {name: part.digest() for name, part in state[0].parts.items()}
        structure = zlib.crc32(json.dumps([state[0].model, state[0].optimizers], sort_keys=True).encode())
        return {"digests": digests, "structure": structure}

    try:
        answers = exchange.agree("beginning", begin)
        captured = state[0]
        local = sorted(_differing(answers) | {RANDOM})
        shared = [name for name in captured.parts if name not in local and name != BUFFERS]
        tensors = dict(captured.tensors)
        for name in shared:
            tensors.update(captured.parts[name].tensors)
        _save_tensors(tensors, here, exchange)

        own = exchange.agree("writing", lambda: _write_own(here, exchange.rank, captured, shared, local))
        files = {name: manifest.File(*size_and_sum) for rank in own for name, size_and_sum in rank.items()}
        described = manifest.Manifest(
            format=manifest.FORMAT,
            step=step,
            model_step=model_step,
            world=exchange.world,
            time=time.time(),
            torch=str(torch.__version__),
            wrapper=wrapper,
            parts=tuple(name for name in captured.parts if name not in (BUFFERS, RANDOM)),
            local=tuple(name for name in local if name != BUFFERS),
            files=files,
        )
        exchange.agree(
            "giving it its name", lambda: _finish(here, path, described, keep) if exchange.rank == 0 else None
        )
    except BaseException:
        if exchange.rank == 0:
            _give_up(here)
        raise
    return described.num_bytes


def _differing(answers: list[dict[str, Any]]) -> set[str]:
    """The parts that differ between ranks. Model and optimizers must not: rank 0's plan is for all."""
    first = answers[0]
    for rank, answer in enumerate(answers):
        if answer["structure"] != first["structure"]:
            raise CheckpointFailed(
                f"the optimizers (or the model) are built or set otherwise on rank {rank} than on rank 0, and cannot "
                "be saved as one"
            )
    names = {name for answer in answers for name in answer["digests"]}
    return {name for name in names if len({answer["digests"].get(name) for answer in answers}) > 1}


def _save_tensors(tensors: dict[str, Any], here: Path, exchange: Exchange) -> None:
    try:
        save_tensors(
            tensors,
            storage_writer=ShardWriter(here),
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=exchange.group,
            no_dist=exchange.group is None,
        )
    except CheckpointException as error:  # which torch raises on all ranks
        first = min(error.failures)
        free = shutil.disk_usage(here.parent).free // 2**20  # torch does not always report a full disk
        raise CheckpointFailed(
            f"writing failed on rank {first} ({free} MiB free): {error.failures[first][0]}"
        ) from None


def _write_own(here: Path, rank: int, captured: Captured, shared: list[str], local: list[str]) -> dict[str, list[int]]:
    """Writes this rank's own files (on rank 0 also the shared ones); size and checksum of all its files."""
    names = [path.name for path in here.glob(f"__{rank}_*.distcp")]
    if rank == 0:
        values = {
            "model": captured.model,
            "optimizers": captured.optimizers,
            "parts": {name: captured.parts[name].tree for name in shared},
        }
        layout.write_durably(here / layout.SHARED, json.dumps(values).encode())
        names += [layout.SHARED, layout.INDEX, ".metadata"]
    values = {name: captured.parts[name].tree for name in local}
    layout.write_durably(here / f"rank-{rank}.json", json.dumps(values).encode())
    own = {key: tensor.cpu() for name in local for key, tensor in captured.parts[name].tensors.items()}
    with (here / f"rank-{rank}.pt").open("wb") as file:
        torch.save(own, file)
        file.flush()
        os.fsync(file.fileno())
    names += [f"rank-{rank}.json", f"rank-{rank}.pt"]
    described = {name: manifest.described(here / name) for name in names}
    return {name: [file.size, file.crc32] for name, file in described.items()}


def _finish(here: Path, path: Path, described: manifest.Manifest, keep: int) -> None:
    for name in described.files:
        if not (here / name).exists():
            raise CheckpointFailed(f"{name} is not visible in {here}: all ranks must write to one shared directory")
    manifest.write(here, described)
    layout.sync_directory(here)
    layout.put_in_place(here, path)  # it may replace one of an earlier attempt
    try:
        layout.give_names_back(path.parent)
        _retire(path.parent, keep, described.step)
    except OSError as error:  # this one is complete anyway
        logger.warning("caboose: a superseded checkpoint could not be removed: %s", error)


def _retire(directory: Path, keep: int, step: int) -> None:
    steps = layout.steps_in(directory)

    def marked(mark: layout.Mark) -> list[int]:
        return [s for s, path in steps.items() if layout.is_marked(path, mark)]

    by_age = sorted(steps, key=lambda s: manifest.saved_at(steps[s]))
    wanted = [*marked("best"), *marked("healthy"), *marked("pinned"), step]
    gone = superseded(by_age, keep=keep, wanted=wanted, tainted=marked("tainted"))
    for old in gone:
        layout.remove(steps[old])


def _give_up(here: Path) -> None:
    try:
        if here.exists():
            layout.remove(here)
    except OSError:
        pass  # the next save tries again, and it does not look complete


def superseded(
    steps: Sequence[int],
    *,
    keep: int,
    wanted: Collection[int] = (),
    tainted: Collection[int] = (),
) -> list[int]:
    """Steps whose checkpoints are no longer needed; `steps` are in the order in which they were saved.

    That order counts, not the number: a run that resumed from an old checkpoint saves lower numbers than it left
    behind.

    Kept are the `keep` newest, the `wanted` (the best, the newest that is proven healthy, the pinned), and always the
    newest that is not tainted: a run that diverged some time ago fills the newest places with checkpoints that are of
    no use.
    """
    newest_first = list(reversed(steps))
    kept = {*newest_first[:keep], *wanted}
    kept.update([step for step in newest_first if step not in tainted][:1])
    return [step for step in steps if step not in kept]
