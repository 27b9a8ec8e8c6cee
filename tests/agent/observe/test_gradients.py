"""Which gradients a rank reads when the work is divided among ranks and the model among optimizers."""

from collections.abc import Callable, Sequence

import pytest
import torch

import caboose
from caboose.observe.gradients import GradientReader
from caboose.observe.layers import Division, LayerTable
from caboose.observe.step_vector import StepVector
from caboose_wire import StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


def rows_read(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], world: int) -> list[int]:
    """The layers that all ranks together read in one step."""
    model(torch.randn(2, 4)).sum().backward()
    table = LayerTable(model, optimizers, world)
    sizes = [layer.numel for layer in table.layers]
    found: list[int] = []
    for rank in range(world):
        pieces = StepVector()
        reader = GradientReader(table, optimizers, Division(sizes, rank, world, is_divided=True), torch.float32)
        reader.begin(0, pieces, is_sampled=True, takes_norms=True)
        for number in range(len(optimizers)):
            reader.read(number)
        vector = pieces.pack()
        found += vector.read()["grad_norm"][0] if vector is not None else []
    return sorted(found)


def layers(num: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(num)])


def sgd(*models: torch.nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]


@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_every_layer_is_read_once_by_however_many_ranks(world: int) -> None:
    model = layers(8)
    assert rows_read(model, sgd(model), world) == list(range(8))


@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_an_optimizer_with_nothing_in_a_ranks_part_is_no_failure(world: int) -> None:
    model = layers(8)
    assert rows_read(model, sgd(model[:3], model[3:]), world) == list(range(8))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_a_frozen_backbone_leaves_the_head_to_be_read(world: int) -> None:
    model = layers(8)
    model[:6].requires_grad_(False)
    assert rows_read(model, sgd(model[6:]), world) == [6, 7]


class Spectral(torch.nn.Module):
    """A layer with complex weights, as in models that work on frequencies."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, bias=False)
        self.weight = torch.nn.Parameter(torch.randn(4, 4, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x).to(self.weight.dtype) @ self.weight).abs()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parameters_are_watched_as_any_others(attach: Attach, listening: Collector, dtype: torch.dtype) -> None:
    model = Spectral(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(1, overhead_budget=1.0))
    loss = model(torch.randn(2, 4)).square().mean()
    loss.backward()
    norms = [float(torch.linalg.vector_norm(p.grad)) for p in model.parameters()]
    optimizer.step()
    monitor.step(loss)

    (report,) = listening.wait_for(StepReport, 1)
    assert report.arrays["grad_norm"].tolist() == pytest.approx(norms)
    assert monitor.guard.num_failures == 0
