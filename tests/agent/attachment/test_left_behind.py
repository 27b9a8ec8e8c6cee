"""Nothing of the agent stays behind: not after an interrupt, not in a loop without boundaries, not in an export."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose.report import live_monitors
from caboose_wire import Bye, StepReport
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Interrupted(torch.nn.Sequential):
    """Ctrl-C comes in its forward, once."""

    is_due = True

    def forward(self, x: torch.Tensor) -> Any:
        x = super().forward(x)
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt
        return x


class Quiet(torch.overrides.TorchFunctionMode):
    """A user's own mode, which changes nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("then", ["forward", "evaluation", "boundary", "close"])
@pytest.mark.parametrize("inside_a_mode", [False, True])
def test_what_an_interrupt_leaves_behind_goes_with_the_next_thing_done(
    inside_a_mode: bool, then: str, attach: Attach, listening: Collector
) -> None:
    model = Interrupted(torch.nn.Linear(4, 4), torch.nn.ReLU())
    monitor = attach(model, sgd(model), endpoint=listening.endpoint, sampling=1)
    with pytest.raises(KeyboardInterrupt), Quiet() if inside_a_mode else contextlib.nullcontext():
        model(torch.randn(2, 4))
    if then == "forward":
        model(torch.randn(2, 4))
    elif then == "evaluation":
        with torch.no_grad():
            model(torch.randn(2, 4))
    elif then == "boundary":
        monitor.step(1.0)
    else:
        monitor.close()
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert torch._C._len_torch_function_stack() == 0
    assert monitor.guard.num_failures == 0


def test_a_mode_entered_after_an_interrupt_stays(attach: Attach, listening: Collector) -> None:
    model = Interrupted(torch.nn.Linear(4, 4), torch.nn.ReLU())
    attach(model, sgd(model), endpoint=listening.endpoint, sampling=1)
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(2, 4))
    with Quiet() as own:
        model(torch.randn(2, 4))
        assert torch.overrides._get_current_function_mode() is own  # type: ignore[no-untyped-call]  # torch gives none
    assert torch._C._len_torch_function_stack() == 0


def test_a_loop_without_boundaries_holds_no_more_with_each_step(attach: Attach, network: torch.nn.Module) -> None:
    optimizer = sgd(network)
    observer = attach(network, optimizer)._observer
    assert observer is not None
    held = []
    for _ in range(4):
        network(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        held.append(len(observer._vector._values))
    assert held == held[:1] * 4


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # still used, if deprecated
def test_a_trace_of_an_attached_model_is_as_without_it(attach: Attach, network: torch.nn.Module) -> None:
    x = torch.randn(2, 4)
    bare = torch.jit.trace(network, x).code
    monitor = attach(network, sgd(network), sampling=1)
    assert torch.jit.trace(network, x).code == bare
    assert monitor.guard.num_failures == 0


@pytest.mark.parametrize("is_handled_later", [False, True])
def test_a_model_is_free_once_its_monitor_is_closed(listening: Collector, is_handled_later: bool) -> None:
    """The next one, of a batch size that fits, needs its memory; the last message may still wait then."""
    held: list[weakref.ref[Any]] = []

    def train() -> caboose.Monitor:
        model = torch.nn.Linear(4, 4)
        optimizer = sgd(model)
        held.extend([weakref.ref(model), weakref.ref(optimizer)])
        monitor = caboose.attach(model, optimizer, job="freed", endpoint=listening.endpoint)
        try:
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            monitor.step(1.0)
            if is_handled_later:
                raise MemoryError("too large")
        finally:
            monitor.close()
        return monitor

    monitor = None
    with contextlib.suppress(MemoryError):
        monitor = train()
    listening.wait_for(StepReport)
    assert wait_until(lambda: gc.collect() >= 0 and [each() for each in held] == [None, None], 5)
    assert bool([m for m in listening.messages if isinstance(m, Bye)]) is not is_handled_later
    if is_handled_later:
        live_monitors.settle()
    assert listening.wait_for(Bye)[0].error == ""
    assert monitor is None or not monitor.is_active
