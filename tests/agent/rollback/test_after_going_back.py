"""What a rank checks around a rollback: its schedule before, the optimizer's moments after."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from caboose.rollback.moments import TRACE
from caboose.rollback.ring import Ring
from caboose.rollback.training_state import TrainingState
from support.braked import Braked
from support.processes import wait_until


def a_run(jump_at: int = 10**9) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any, Ring]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < jump_at else 50.0)
    ring = Ring(TrainingState(model, [optimizer], schedulers=[scheduler]), every=5, history_seconds=0.0)
    return model, optimizer, scheduler, ring


def train(run: tuple[torch.nn.Module, torch.optim.Optimizer, Any, Ring], steps: range, scale: float = 1.0) -> None:
    model, optimizer, scheduler, ring = run
    for step in steps:
        optimizer.zero_grad()
        (scale * model(torch.randn(8, 4)).square().mean()).backward()
        optimizer.step()
        scheduler.step()
        if not step % 5:
            assert ring.take(step, step)
    assert wait_until(lambda: all(held.is_ready for held in ring.held), 5)


def test_moments_that_carry_the_trace_of_a_spike_are_seen() -> None:
    run = a_run()
    ring = run[3]
    train(run, range(1, 11))
    train(run, range(11, 13), scale=1000.0)
    train(run, range(13, 16))

    assert ring.pin(10) == ""
    assert wait_until(lambda: ring.moments_growth is not None, 5)
    assert ring.moments_growth is not None
    assert ring.moments_growth < TRACE
    ring.unpin()
    assert ring.pin(15) == ""
    assert wait_until(lambda: (ring.moments_growth or 0.0) > TRACE, 5), ring.moments_growth
    ring.close()


def test_the_oldest_snapshot_has_nothing_to_compare_its_moments_with() -> None:
    run = a_run()
    train(run, range(1, 6))
    assert run[3].pin(5) == ""
    assert wait_until(lambda: run[3]._verified is not None, 5)
    assert run[3].moments_growth is None
    run[3].close()


@pytest.mark.parametrize(("lr", "text"), [("keep", "stays there"), ("rewind", "will do so again")])
def test_a_schedule_that_jumped_is_warned_of_before_the_boundary(lr: Any, text: str) -> None:
    run = a_run(jump_at=7)
    train(run, range(1, 11))

    caveat = run[3].caveat(5, lr)

    assert "raised the learning rate from 0.01 to 0.5 since step 5" in caveat
    assert text in caveat
    assert run[3].caveat(10, lr) == ""
    run[3].close()


def test_a_rate_that_left_its_schedule_is_reported_and_one_that_follows_it_is_not() -> None:
    run = a_run(jump_at=7)
    train(run, range(1, 11))
    assert not run[3].is_off_schedule(), "the schedule itself jumped"

    run[1].param_groups[0]["lr"] *= 3.0

    assert run[3].is_off_schedule()
    run[3].close()


@pytest.mark.usefixtures("impatient")
def test_what_a_rollback_is_expected_to_lose_is_logged_once(
    guarded: Callable[..., Braked], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="caboose")
    run = guarded()
    run.train(45)

    lines = [
        record.getMessage() for record in caplog.records if "a rollback after a sudden fault" in record.getMessage()
    ]
    assert len(lines) == 1
    assert re.search(r"snapshots every 5 steps: a rollback after a sudden fault loses about \d+ steps", lines[0])
    assert "no loader is watched" not in lines[0]


@pytest.mark.usefixtures("impatient")
def test_the_outcome_of_a_rollback_names_the_moments(guarded: Callable[..., Braked]) -> None:
    run = guarded()
    run.train(22)
    run.holdings(lambda h: [s.step for s in h.snapshots if s.is_ready] == [5, 10, 15, 20])
    command = run.command(target=15)

    assert run.tell(command) == "done"

    assert "optimizer moments" in run.answers(command.number)[-1].detail
