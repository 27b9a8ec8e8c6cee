"""DDP is found inside other modules, and what lies outside of it belongs to each rank."""

from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

import caboose
from caboose_wire import Hello, StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


class Task(torch.nn.Module):
    """A module around the wrapped model, as frameworks have them; `own` is a part that DDP does not reduce."""

    def __init__(self, wrapped: torch.nn.Module, own: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.wrapped(x)
        return y if self.own is None else self.own(y)


def seen(attach: Attach, listening: Collector, model: torch.nn.Module) -> tuple[Hello, StepReport]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, rank=0, world_size=2)
    loss = model(torch.randn(6, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    monitor.step(loss)
    (report,) = listening.wait_for(StepReport, 1)
    return listening.hellos[0], report


def test_a_module_around_ddp_is_compared_across_ranks(
    process_group: None, attach: Attach, listening: Collector
) -> None:
    hello, report = seen(attach, listening, Task(DistributedDataParallel(torch.nn.Linear(4, 1))))
    assert hello.blind == {}
    assert {"local_gradients", "fingerprint"} <= set(hello.visible)
    assert {layer.placement for layer in hello.layers} == {"replicated"}
    assert "local_grad_norm" in report.arrays
    assert report.fingerprint is not None


def test_parts_in_ddp_each_are_one_model(process_group: None, attach: Attach, listening: Collector) -> None:
    first, second = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
    both = Task(DistributedDataParallel(first), DistributedDataParallel(second))
    hello, _ = seen(attach, listening, both)
    assert hello.blind == {}
    assert {layer.placement for layer in hello.layers} == {"replicated"}


def test_a_trained_part_outside_of_ddp_is_not_compared(
    process_group: None, attach: Attach, listening: Collector
) -> None:
    hello, _ = seen(attach, listening, Task(DistributedDataParallel(torch.nn.Linear(4, 3)), torch.nn.Linear(3, 1)))
    assert "2 parameters" in hello.blind["gradients"]
    assert {layer.name: layer.placement for layer in hello.layers} == {
        "wrapped.module.weight": "replicated",
        "wrapped.module.bias": "replicated",
        "own.weight": "unknown",
        "own.bias": "unknown",
    }


def test_a_model_without_ddp_is_not_compared(process_group: None, attach: Attach, listening: Collector) -> None:
    hello, _ = seen(attach, listening, Task(torch.nn.Linear(4, 1)))
    assert "local_gradients" in hello.blind
