"""Checkpoints of real ranks: bit-exact in a new process group, whole or refused, whatever happens meanwhile."""

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose.checkpoints.errors import CheckpointRefused
from support.jobs.checkpointing import DAMAGED, Average, make_model
from support.processes import clean_environment
from support.training import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]
MODES = ("ddp", "fsdp2", "ddp_async", "fsdp2_async", "fsdp1")


@functools.cache
def launched() -> Path:
    """Where a run that saved, and one that resumed from it, left everything."""
    directory = Path(tempfile.mkdtemp(prefix="caboose-checkpoints-"))
    command = [sys.executable, "-W", "error", str(JOBS / "checkpointing.py"), str(directory), *MODES]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, env=clean_environment()
    )
    assert ended.returncode == 0, ended.stdout
    return directory


def ranks_of(verb: str) -> list[dict[str, Any]]:
    """What each rank wrote down."""
    return [json.loads((launched() / f"{verb}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("mode", MODES)
def test_a_new_process_group_continues_bit_exactly(mode: str) -> None:
    for before, after in zip(ranks_of("save"), ranks_of("resume"), strict=True):
        assert before[mode]["state"] == "saved"
        assert after[mode]["losses"] == before[mode]["losses"]
        assert after[mode]["digest"] == before[mode]["digest"]
        assert (after[mode]["step"], after[mode]["model_step"], after[mode]["lost"]) == (4, 3, [])


@pytest.mark.parametrize("mode", MODES)
def test_damage_that_one_rank_sees_is_refused_by_all_and_the_next_best_is_used(mode: str) -> None:
    for rank in ranks_of("resume"):
        assert rank[mode]["refused"] == [f"{name} is damaged: its checksum does not match" for name in DAMAGED.values()]


def test_all_ranks_get_the_plan_of_rank_0() -> None:
    plans = [rank["plan"] for rank in ranks_of("resume")]
    assert plans[0] == plans[1]
    assert f"Resume from {launched()}/ddp/step-4, after step 4." in plans[0]
    assert "step-8: __1_0.distcp is damaged" in plans[0]


def test_a_rank_that_cannot_write_fails_the_checkpoint_on_all_and_leaves_nothing() -> None:
    for rank in ranks_of("save"):
        assert rank["full"]["first"] == "failed"
        assert re.fullmatch(
            r"writing failed on rank 1 \(\d+ MiB free\): \[Errno 27\] File too large", rank["full"]["error"]
        )
        assert rank["full"]["left"] == []
        assert rank["full"]["second"] == "saved", "once there is room again"


def test_optimizers_that_differ_between_ranks_are_not_saved_as_if_they_were_one() -> None:
    for rank in ranks_of("save"):
        assert "are built or set otherwise on rank 1 than on rank 0" in rank["differing"]


def test_a_rank_killed_while_it_writes_leaves_one_that_is_refused_and_the_next_best_is_used() -> None:
    killed = ranks_of("save")[1]["killed"]
    assert killed["state"] == "failed"
    assert killed["error"].startswith("the ranks lost each other while step 2 was saved:")
    assert killed["again"] == "failed", "at once"
    place = launched() / "ddp_killed"
    assert (place / "step-2.incomplete" / "__0_0.distcp").exists()
    with pytest.raises(CheckpointRefused, match="it was interrupted while it was written"):
        caboose.load_checkpoint(place / "step-2.incomplete", torch.nn.Linear(1, 1), [])
    plan = caboose.resume_plan(place, endpoint="tcp://127.0.0.1:9", timeout=0.01)
    assert plan.checkpoint == str(place / "step-1")
    assert plan.rejected == ((str(place / "step-2.incomplete"), "it was interrupted while it was written"),)


def a_run() -> tuple[torch.nn.Module, dict[str, Any]]:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6])
    return model, {"optimizer": optimizer, "scheduler": scheduler, "extra": {"average": Average(model)}}


@pytest.mark.parametrize("mode", ["ddp", "fsdp2", "fsdp1"])
def test_another_number_of_ranks_is_refused_unless_the_loss_is_accepted(mode: str) -> None:
    path = launched() / mode / "step-4"
    model, others = a_run()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(
        CheckpointRefused, match=r"2 ranks wrote it and 1 would load it: each rank's own state .*extra\.position"
    ):
        caboose.load_checkpoint(path, model, **others)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "nothing was touched"

    loaded = caboose.load_checkpoint(path, model, **others, allow_other_world=True, strict=False)

    assert loaded is not None
    own = ["extra.average"] * (mode == "fsdp1")  # whose pieces have no names
    assert loaded.lost == (*own, "extra.position", "random numbers")
    sums = [p.detach().double().sum().item() for p in model.parameters()]
    assert sums == pytest.approx(
        [float.fromhex(text) for text in ranks_of("save")[0]["ddp"]["sums"]], rel=1e-5, abs=1e-6
    )
    buffers = [buffer.double().sum().item().hex() for buffer in model.buffers()]
    assert buffers == ranks_of("save")[0][mode]["buffers"], "rank 0's, though each rank had its own"
    assert others["optimizer"].state[model[0].weight]["step"] == 4  # type: ignore[index]  # a Sequential
    assert others["scheduler"].last_epoch == 4
