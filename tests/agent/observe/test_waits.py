"""The beginning and the end of the backward are seen, and nothing of torch stays replaced."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import caboose
from caboose.guard import Guard
from caboose.observe.phases import PhaseClock
from caboose.observe.waits import WaitObserver
from caboose_wire import StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


def a_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, monitor: caboose.Monitor) -> float:
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss)
    return float(loss.detach())


def test_waiting_is_known_under_ddp_and_not_for_one_process(
    process_group: None, attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    model = DistributedDataParallel(torch.nn.Sequential(network, torch.nn.BatchNorm1d(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint)
    for _ in range(3):
        a_step(model, optimizer, monitor)
    report = listening.wait_for(StepReport, 3)[-1]
    assert report.phases is not None
    assert report.phases.loss > 0
    assert report.phases.backward > 0


def test_the_functions_of_torch_are_restored(attach: Attach, network: torch.nn.Module) -> None:
    before = torch.autograd.backward, DistributedDataParallel._sync_buffers
    models = [network, torch.nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    monitors = [attach(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
    assert torch.autograd.backward is not before[0]
    a_step(network, optimizers[0], monitors[0])
    monitors[0].close()
    assert torch.autograd.backward is not before[0], "another observer needs it"
    monitors[1].close()
    assert (torch.autograd.backward, DistributedDataParallel._sync_buffers) == before


def test_a_backward_that_fails_raises_as_it_would_and_the_next_is_seen(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    loss = network(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with pytest.raises(RuntimeError, match="scalar outputs"):
        network(torch.randn(5, 4)).backward()
    optimizer.zero_grad()
    a_step(network, optimizer, monitor)
    (report,) = listening.wait_for(StepReport, 1)
    assert report.phases is not None
    assert report.phases.backward > 0
    assert monitor.guard.num_failures == 0


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_backward_within_a_backward_is_one(
    attach: Attach, network: torch.nn.Module, listening: Collector, is_reentrant: bool
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    x = torch.randn(5, 4, requires_grad=True)
    loss = checkpoint(network, x, use_reentrant=is_reentrant).pow(2).mean()
    loss.backward()
    optimizer.step()
    monitor.step(loss)
    (report,) = listening.wait_for(StepReport, 1)
    assert report.phases is not None
    assert report.phases.backward > 0
    assert monitor.guard.num_failures == 0


def test_an_engine_that_takes_no_callback_does_not_stop_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.autograd.Variable._execution_engine

    class Engine:
        run_backward = real.run_backward

        def queue_callback(self, _callback: object) -> None:
            raise RuntimeError("not here")

    guard = Guard()
    observer = WaitObserver(PhaseClock(), guard.protect, is_distributed=True)
    try:
        weight = torch.ones(2, requires_grad=True)
        with monkeypatch.context() as patched:
            patched.setattr(torch.autograd.Variable, "_execution_engine", Engine())
            weight.pow(2).sum().backward()
    finally:
        observer.close()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0]
    assert guard.num_failures == 1


@pytest.mark.parametrize("is_parallel", [False, True])
def test_around_tensor_parallel_layers_no_waiting_is_taken_for_all_of_it(
    process_group: None, attach: Attach, listening: Collector, is_parallel: bool
) -> None:
    """What is not timed would count as the rank's own time."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Tanh())
    if is_parallel:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint)
    for _ in range(3):
        a_step(model, optimizer, monitor)
    phases = listening.wait_for(StepReport, 3)[-1].phases
    assert phases is not None
    assert math.isnan(phases.forward_wait) is is_parallel
    assert math.isnan(phases.backward_wait) is is_parallel
