"""Nothing the agent does raises into the loop, whatever fails inside it."""

import logging
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose.guard import MAX_FAILURES, Guard
from caboose.observe.model_calls import num_watches
from caboose_wire import Heartbeat, StepReport
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]


class Broken(RuntimeError):
    """What a test makes the agent's own code raise."""


def broken(*_: Any, **__: Any) -> Any:
    raise Broken("injected")


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, monitor: caboose.Monitor, steps: int) -> list[str]:
    torch.manual_seed(1)
    losses = []
    for batch in monitor.watch([torch.randn(5, 4) for _ in range(steps)]):
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss)
        losses.append(loss.item().hex())
    monitor.validation(0.1)
    monitor.event("data_switch")
    return losses


class Preempted(Exception):
    """What a program's own handler of a signal raises."""


def preempted(_number: int, _frame: Any) -> None:
    raise Preempted


class Handler:
    def __call__(self, *_: Any) -> None:
        raise Preempted


@pytest.mark.parametrize("handler", [preempted, Handler(), lambda *given: preempted(*given)])
def test_what_a_signal_handler_raises_passes_though_it_runs_inside(handler: Any) -> None:
    guard = Guard()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Preempted):
            guard.protect("here", lambda: signal.raise_signal(signal.SIGUSR1))()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert guard.num_failures == 0


PLACES = {
    "forward pre-hook": ("caboose.observe.observer.Observer._before_forward", "model"),
    "forward hook": ("caboose.observe.observer.Observer._after_forward", "model"),
    "gradient norms": ("torch._foreach_norm", "late"),
    "optimizer post-hook": ("caboose.observe.samples.update_ratio", "late"),
    "local sample": ("caboose.observe.gradients.sample", "late"),
    "weights": ("caboose.observe.samples.sample_weights", "late"),
    "histogram": ("caboose.observe.samples.histogram", "late"),
    "activations go in": ("caboose.observe.activations.Activations.arm", "late"),
    "an activation": ("caboose.observe.activations.sample_row", "late"),
    "activations come out": ("caboose.observe.activations.Activations.take", "late"),
    "modes": ("caboose.observe.forward.Modes.read", "late"),
    "batches": ("caboose.observe.batches.BatchCounter.see", "late"),
    "learning rates": ("caboose.observe.optimizers.OptimizerState.learning_rates", "late"),
    "governor": ("caboose.governor.Governor.account", "late"),
    "boundary": ("caboose.observe.observer.Observer.take", "late"),
    "clock": ("caboose.observe.phases.PhaseClock.mark", "model"),
    "clock at the boundary": ("caboose.observe.phases.PhaseClock.take_times", "late"),
    "readback": ("caboose.observe.step_vector.Readback", "late"),
    "queue": ("caboose.report.sender.Sender.put", "late"),
    "event": ("caboose.report.session.Note", "late"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_failure_in_any_hook_leaves_the_run_as_it_would_have_been(
    place: str, attach: Attach, network: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, listening: Collector
) -> None:
    bare = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    undisturbed = train(network, optimizer, caboose.Monitor(None), 2 * MAX_FAILURES)
    network.load_state_dict(bare)

    target, when = PLACES[place]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    if when == "model":  # bound when the hooks are made
        monkeypatch.setattr(target, broken)
    monitor = attach(network, optimizer, endpoint=listening.endpoint, sampling=1)
    monkeypatch.setattr(target, broken)
    disturbed = train(network, optimizer, monitor, 2 * MAX_FAILURES)
    monkeypatch.undo()
    assert disturbed == undisturbed
    assert monitor.guard.num_failures > 0


def test_a_guard_that_tripped_takes_its_hooks_out_and_the_daemon_is_told(
    attach: Attach,
    network: torch.nn.Module,
    monkeypatch: pytest.MonkeyPatch,
    listening: Collector,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("caboose.report.sender.HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(torch, "_foreach_norm", broken)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    with caplog.at_level(logging.WARNING, logger="caboose"):
        train(network, optimizer, monitor, MAX_FAILURES + 5)
    assert not monitor.is_active
    assert not num_watches(network)
    assert not optimizer._optimizer_step_pre_hooks
    said = [record.getMessage() for record in caplog.records]
    failures = [text for text in said if "injected" in text]
    assert failures, "it is reported"
    assert len(failures) == len(set(failures)), "once per kind, not once per step"
    assert len([text for text in said if "switched itself off" in text]) == 1
    assert wait_until(lambda: listening.wait_for(Heartbeat)[-1].state == "disabled", 5)


@pytest.mark.parametrize("rollback", ["advise", caboose.Rollback("advise", skip_step="nonfinite")])
def test_hooks_that_go_during_an_optimizers_step_do_not_disturb_the_users_own(
    rollback: Any, attach: Attach, network: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, listening: Collector
) -> None:
    """The guard trips inside the optimizer's hook; skip_step, which finds no clipper, switches itself off there."""
    if rollback == "advise":
        monkeypatch.setattr(torch, "_foreach_norm", broken)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    calls: list[str] = []
    monitor = attach(network, optimizer, endpoint=listening.endpoint, rollback=rollback)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    losses = train(network, optimizer, monitor, MAX_FAILURES + 5)
    assert len(losses) == MAX_FAILURES + 5
    assert calls == ["before", "after"] * len(losses)
    if rollback == "advise":
        assert not monitor.is_active
        assert (len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)) == (1, 1)
    else:
        assert monitor.is_active
        assert len(optimizer._optimizer_step_pre_hooks) == 2, "the observer's and the user's"


def test_nonsense_at_the_boundary_is_survived(attach: Attach, network: torch.nn.Module, listening: Collector) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    monitor.step("not a number")  # type: ignore[arg-type]  # that is the point
    monitor.step(1.0, metrics={"accuracy": "high"})  # type: ignore[dict-item]  # that is the point
    monitor.step(1.0, step="many")  # type: ignore[arg-type]  # that is the point
    monitor.event("x" * 1000, **{"y" * 1000: object()})
    monitor.step(2.0)
    found = listening.wait_for(StepReport, 4)
    seen = [(report.step, report.loss) for report in found]
    assert seen == [(1, None), (2, 1.0), (3, 1.0), (4, 2.0)], "a step counts in any case, and its rest is reported"
    assert monitor.guard.num_failures == 1, "a step that is no number; what cannot be read is no failure"


def test_an_interrupt_is_the_users_own_and_passes() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    guard = Guard(on_trip=lambda: None)
    with pytest.raises(KeyboardInterrupt):
        guard.protect("anything", interrupted)()
    assert guard.num_failures == 0
