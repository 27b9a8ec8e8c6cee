"""Parameters that DDP was asked to ignore: each rank has its own, and nothing is compared or summed that holds them."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import caboose
from caboose_wire import Hello, StepReport
from support.collector import Collector


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one, which is enough for DDP."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_ignored_parameters_are_in_no_fingerprint_and_no_norm_and_that_is_said(
    attach: Callable[..., caboose.Monitor], network: torch.nn.Module, listening: Collector
) -> None:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(network, ["0.weight", "0.bias"])
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    monitor = attach(
        model,
        optimizer,
        endpoint=listening.endpoint,
        rank=0,
        world_size=2,
        sampling=caboose.Sampling(1, overhead_budget=1.0),
    )
    for own in (1.0, 2.0):
        with torch.no_grad():
            network[0].weight.fill_(own)  # as on another rank
        optimizer.zero_grad()
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        monitor.step(1.0)
    first, second = listening.wait_for(StepReport, 2)
    assert first.fingerprint is not None
    assert first.fingerprint == second.fingerprint, "the weights of 0 are no part of it"
    assert first.arrays["layer_fingerprint"][:2].tolist() == [-1, -1]
    assert (first.arrays["layer_fingerprint"][2:] >= 0).all()
    assert first.arrays["local_grad_norm"][:2].tolist() == [-1, -1]
    assert (first.arrays["local_grad_norm"][2:] > 0).all()
    hello = listening.wait_for(Hello)[0]
    assert [layer.placement for layer in hello.layers] == ["unknown", "unknown", "replicated", "replicated"]
    assert hello.blind["gradients"].startswith("2 parameters are ignored by DDP")
    assert monitor.guard.num_failures == 0


@pytest.mark.usefixtures("alone")
def test_an_average_of_the_weights_beside_ddp_is_no_blindness(
    attach: Callable[..., caboose.Monitor], network: torch.nn.Module, listening: Collector
) -> None:
    """A module that holds the DDP model and a copy which no optimizer updates, as a trainer's task does."""

    class Task(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.average = DistributedDataParallel(network), copy.deepcopy(network)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.model(x))

    task = Task()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(task, optimizer, endpoint=listening.endpoint, rank=0, world_size=2)
    for _ in range(2):
        optimizer.zero_grad()
        task(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        monitor.step(1.0)
    listening.wait_for(StepReport, 2)
    for hello in listening.hellos:
        assert "gradients" not in hello.blind
        assert "gradients" in hello.visible
