"""A limit of the gradient norm that a command sets: as a line in the loop would, and only until it is taken away."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from caboose.rollback.applied_clip import AppliedClip
from caboose_wire import StepReport
from support.braked import Braked
from support.processes import wait_until

pytestmark = pytest.mark.usefixtures("impatient")


def model_and_optimizer() -> tuple[torch.nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def applied(model: torch.nn.Module, *optimizers: torch.optim.Optimizer, scaler: Any = None) -> AppliedClip:
    return AppliedClip(model, optimizers, scaler=scaler, world=1)


def norm(model: torch.nn.Module) -> float:
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def backward(model: torch.nn.Module) -> torch.Tensor:
    model.zero_grad()
    loss = 100 * model(torch.ones(2, 4)).square().sum()
    loss.backward()
    return loss


def test_the_gradient_has_the_limit_when_the_optimizer_steps_and_no_longer_when_it_is_taken_away() -> None:
    model, optimizer = model_and_optimizer()
    clip = applied(model, optimizer)
    assert clip.set(0.5) == "gradient norm limited to 0.5, was none"
    backward(model)
    optimizer.step()
    assert norm(model) == pytest.approx(0.5, rel=1e-4)

    assert clip.set(0.0) == "gradient norm limited to none, was 0.5"
    backward(model)
    before = norm(model)
    optimizer.step()
    assert norm(model) == before > 1


def test_a_gradient_that_a_closure_makes_is_clipped_after_it() -> None:
    model, optimizer = model_and_optimizer()
    applied(model, optimizer).set(0.5)
    optimizer.step(lambda: backward(model).item())
    assert norm(model) == pytest.approx(0.5, rel=1e-4)


def test_the_optimizer_of_another_model_is_left_alone() -> None:
    model, optimizer = model_and_optimizer()
    other, others = model_and_optimizer()
    applied(model, optimizer).set(0.5)
    backward(other)
    before = norm(other)
    others.step()
    assert norm(other) == before


def test_a_fused_optimizer_with_a_scaler_refuses() -> None:
    model, _ = model_and_optimizer()
    fused = torch.optim.AdamW(model.parameters(), fused=True)
    assert "scaler.unscale_(optimizer)" in applied(model, fused, scaler=torch.amp.GradScaler("cpu")).why_not
    assert applied(model, fused).why_not == ""


def test_a_command_clips_all_later_steps_and_the_monitor_sees_the_norm_before(guarded: Callable[..., Braked]) -> None:
    run = guarded(limits={"cooldown_steps": 20})
    run.train(5)
    assert run.holdings().can_clip
    assert run.tell(run.command(kind="clip", max_norm=0.01)) == "done"
    began = run.monitor.current_step
    run.train(5)
    assert norm(run.model) == pytest.approx(0.01, rel=1e-3)

    def limits() -> list[float | None]:
        found = [m for m in run.daemon.messages if isinstance(m, StepReport) and m.step > began]
        return [m.clipping.max_norm for m in found if m.clipping is not None]

    assert wait_until(limits, 10)[0] == pytest.approx(0.01)

    hasty = run.command(kind="clip", max_norm=0.02)
    assert run.tell(hasty) == "refused"
    assert "cools down until step" in run.answers(hasty.number)[-1].detail
    assert run.tell(run.command(kind="clip")) == "done", "a limit may be taken away at once"
    run.train(1)
    assert norm(run.model) > 0.02


@pytest.mark.parametrize("limit", [1e-9, 1e9, float("nan"), float("inf"), -1.0])
def test_a_limit_that_can_only_be_a_mistake_is_refused(guarded: Callable[..., Braked], limit: float) -> None:
    run = guarded()
    run.train(5)
    command = run.command(kind="clip", max_norm=limit)
    assert run.tell(command) == "refused"
    assert "0.001 to 10000 is allowed" in run.answers(command.number)[-1].detail
