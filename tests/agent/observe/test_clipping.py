"""Norms in loops that clip: those before clipping, of the step that was taken, each layer once."""

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import caboose
from caboose_wire import Hello, StepReport
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]


def norm(parameters: Iterable[torch.Tensor]) -> float:
    return math.hypot(*(float(p.grad.norm()) for p in parameters if p.grad is not None))


def backward(model: torch.nn.Module, by: float = 1.0) -> float:
    model.zero_grad()
    model(torch.randn(5, 4) * by).pow(2).mean().backward()
    return norm(model.parameters())


def total(report: StepReport) -> float | None:
    assert report.clipping is not None
    return report.clipping.total_norm


@pytest.mark.parametrize("sample_every", [1, 100])
def test_a_step_that_is_left_out_after_clipping_leaves_nothing_to_the_next(
    attach: Attach, network: torch.nn.Module, listening: Collector, sample_every: int
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(
        network, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(sample_every, overhead_budget=1.0)
    )
    norms = []
    for by in (1.0, math.nan, math.nan, 1.0, 1.0):
        size = backward(network, by)
        if not torch.isfinite(clip_grad_norm_(network.parameters(), 0.01)):
            continue
        optimizer.step()
        monitor.step(1.0)
        norms.append(size)
    reports = listening.wait_for(StepReport, 3)
    assert [grad_norm(r) for r in reports] == pytest.approx(norms, rel=1e-5)
    assert [total(r) for r in reports] == pytest.approx(norms, rel=1e-5)
    assert monitor.guard.num_failures == 0


def test_clipping_twice_before_one_step_is_told_by_what_was_there_first(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    size = backward(network)
    clip_grad_norm_(network.parameters(), 0.1)
    clip_grad_norm_(network[0].parameters(), 0.01)
    clip_grad_value_(network.parameters(), 0.001)
    optimizer.step()
    monitor.step(1.0)
    report = listening.wait_for(StepReport)[0]
    assert grad_norm(report) == pytest.approx(size, rel=1e-5)
    assert total(report) == pytest.approx(size, rel=1e-5)


def test_a_forward_between_clipping_and_step_changes_nothing(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    """As where two parts of a model are clipped in turn, and both optimizers step at the end."""
    optimizers = [torch.optim.SGD(network[i].parameters(), lr=0.1) for i in (0, 2)]
    monitor = attach(network, optimizers, endpoint=listening.endpoint)
    sizes = []
    for i in (0, 2):
        network[i].zero_grad()
        network(torch.randn(5, 4)).pow(2).mean().backward(inputs=list(network[i].parameters()))
        sizes.append(norm(network[i].parameters()))
        clip_grad_norm_(network[i].parameters(), 0.01)
    for optimizer in optimizers:
        optimizer.step()
    monitor.step(1.0)
    report = listening.wait_for(StepReport)[0]
    assert grad_norm(report) == pytest.approx(math.hypot(*sizes), rel=1e-5)
    assert total(report) == pytest.approx(math.hypot(*sizes), rel=1e-5)


def test_parameters_of_others_in_the_clipped_list_hide_none_of_the_models(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    before = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    network(before(torch.randn(5, 4))).pow(2).mean().backward()
    size = norm(network.parameters())
    clip_grad_norm_([*before.parameters(), *network.parameters()], 0.01)
    optimizer.step()
    monitor.step(1.0)
    assert grad_norm(listening.wait_for(StepReport)[0]) == pytest.approx(size, rel=1e-5)


@pytest.mark.parametrize("is_clipped", [True, False])
def test_parameters_that_two_optimizers_hold_are_counted_once(
    attach: Attach, network: torch.nn.Module, listening: Collector, is_clipped: bool
) -> None:
    optimizers = [
        torch.optim.SGD(network.parameters(), lr=0.1),
        torch.optim.SGD(network[0].parameters(), lr=0.1),
    ]
    monitor = attach(network, optimizers, endpoint=listening.endpoint)
    size = backward(network)
    if is_clipped:
        clip_grad_norm_(network.parameters(), 0.01)
    for optimizer in optimizers:
        optimizer.step()
    monitor.step(1.0)
    assert grad_norm(listening.wait_for(StepReport)[0]) == pytest.approx(size, rel=1e-5)


def test_clipping_each_parameter_by_itself_gives_the_norm_of_all(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    size = backward(network)
    for parameter in network.parameters():
        clip_grad_norm_(parameter, 0.01)
    optimizer.step()
    monitor.step(1.0)
    report = listening.wait_for(StepReport)[0]
    assert grad_norm(report) == pytest.approx(size, rel=1e-5)
    assert total(report) == pytest.approx(size, rel=1e-5)


def test_a_total_of_which_a_part_is_another_kind_of_norm_is_not_known(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    backward(network)
    clip_grad_norm_(network[0].parameters(), 0.01)
    clip_grad_norm_(network[2].parameters(), 0.01, norm_type=math.inf)
    optimizer.step()
    monitor.step(1.0)
    assert total(listening.wait_for(StepReport)[0]) is None


def test_sparse_gradients_are_told_as_blindness(attach: Attach, listening: Collector) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 1))
    optimizers = [
        torch.optim.SparseAdam(model[0].parameters(), lr=0.1),
        torch.optim.SGD(model[1].parameters(), lr=0.1),
    ]
    monitor = attach(model, optimizers, endpoint=listening.endpoint)
    listening.wait_for(Hello)
    for _ in range(3):
        model.zero_grad()
        model(torch.randint(10, (5,))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        monitor.step(1.0)
    listening.wait_for(StepReport, 3)
    first, *others = listening.wait_for(Hello, 2)
    assert "sparse_gradients" not in first.blind
    assert [hello.blind["sparse_gradients"] for hello in others] == ["1 parameters, whose norms are not taken"]
    assert monitor.guard.num_failures == 0
