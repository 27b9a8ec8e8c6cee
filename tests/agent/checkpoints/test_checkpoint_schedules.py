"""Schedules of a run that resumes from a checkpoint: where they were, and scaled for good where the plan says so."""

from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose.checkpoints import manifest
from caboose.checkpoints.checkpointer import Checkpointer


def test_several_schedulers_come_back_each_to_its_own_place_and_a_scaled_rate_stays_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def a_run() -> tuple[torch.nn.Module, list[torch.optim.Optimizer], list[Any]]:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(part.parameters(), lr=1.0) for part in model]
        return model, optimizers, [torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)) for o in optimizers]

    model, optimizers, schedulers = a_run()
    for number, (optimizer, scheduler) in enumerate(zip(optimizers, schedulers, strict=True), start=1):
        for _ in range(number):
            optimizer.step()
            scheduler.step()
    Checkpointer(tmp_path, model, optimizers, schedulers).save(1, 1, raise_errors=True)
    assert manifest.read(tmp_path / "step-1").parts == ("scheduler.0", "scheduler.1")

    plan = caboose.ResumePlan(checkpoint=str(tmp_path / "step-1"), step=1, lr_scale=0.5)
    model, optimizers, schedulers = a_run()
    caboose.load_checkpoint(plan, model, optimizers, scheduler=schedulers)
    assert [scheduler.last_epoch for scheduler in schedulers] == [1, 2]
    assert "may not stay" not in caplog.text
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        optimizer.step()
        scheduler.step()
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == pytest.approx([0.5 / 3, 0.5 / 4])

    caboose.load_checkpoint(plan, model, optimizers, scheduler=schedulers[:1], strict=False)
    assert "the learning rate may not stay scaled by 0.5: a scheduler that is not known here" in caplog.text
