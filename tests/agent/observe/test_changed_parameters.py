"""What changes after attach: parameters that are unfrozen, replaced or new, and another optimizer."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import caboose
from caboose_wire import Hello, StepReport
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, monitor: caboose.Monitor) -> float:
    model.zero_grad()
    model(torch.randn(5, 4)).pow(2).mean().backward()
    norm = math.hypot(*(float(p.grad.norm()) for p in model.parameters() if p.grad is not None))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    monitor.step(1.0)
    return norm


def norms_of(listening: Collector, num: int) -> list[float | None]:
    return [grad_norm(report) for report in listening.wait_for(StepReport, num)]


def test_layers_that_are_unfrozen_into_a_new_group_are_read_from_their_first_step(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    network[0].requires_grad_(False)
    optimizer = torch.optim.SGD(network[2].parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    listening.wait_for(Hello)
    norms = [one_step(network, optimizer, monitor) for _ in range(2)]
    network[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(network[0].parameters()), "lr": 0.05})
    norms += [one_step(network, optimizer, monitor) for _ in range(2)]
    assert norms_of(listening, 4) == pytest.approx(norms, rel=1e-5)
    assert listening.reports[-1].lr == (0.1, 0.05)
    before, after = listening.wait_for(Hello, 2)
    assert [layer.held for layer in before.layers] == [False, False, True, True]
    assert [layer.group for layer in before.layers] == [-1, -1, 0, 0]
    assert [layer.group for layer in after.layers] == [1, 1, 0, 0]
    assert all(layer.held and layer.trainable for layer in after.layers)
    sizes = [sum(parameter.numel() for parameter in network[num].parameters()) for num in (2, 0)]
    assert [group.num_parameters for group in before.groups] == sizes[:1]
    assert [group.num_parameters for group in after.groups] == sizes
    assert after.blind == before.blind
    assert monitor.guard.num_failures == 0


def test_layers_that_an_optimizer_held_all_along_are_told_as_unfrozen_on_the_next_sampled_step(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    network[0].requires_grad_(False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(1, overhead_budget=1.0))
    listening.wait_for(Hello)
    one_step(network, optimizer, monitor)
    network[0].requires_grad_(True)
    norm = one_step(network, optimizer, monitor)
    assert norms_of(listening, 2)[1] == pytest.approx(norm, rel=1e-5)
    before, after = listening.wait_for(Hello, 2)
    assert [layer.trainable for layer in before.layers] == [False, False, True, True]
    assert all(layer.trainable for layer in after.layers)


@pytest.mark.parametrize("sample_every", [1, 100])
def test_a_head_that_is_replaced_by_its_like_is_read_as_the_same_layer(
    attach: Attach, network: torch.nn.Module, listening: Collector, sample_every: int
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(
        network, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(sample_every, overhead_budget=1.0)
    )
    norms = [one_step(network, optimizer, monitor) for _ in range(2)]
    network[2] = torch.nn.Linear(8, 1)
    optimizer.param_groups[0]["params"] = list(network.parameters())
    norms += [one_step(network, optimizer, monitor) for _ in range(2)]
    assert norms_of(listening, 4) == pytest.approx(norms, rel=1e-5)
    if sample_every == 1:
        assert (listening.reports[-1].arrays["activation_std"] != -1).all(), "those of the new head too"
        np.testing.assert_array_less(-1, listening.reports[-1].arrays["weight_norm"])
    assert monitor.guard.num_failures == 0


def test_a_head_of_another_shape_is_told_as_blindness(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    listening.wait_for(Hello)
    one_step(network, optimizer, monitor)
    network[2] = torch.nn.Linear(8, 3)
    optimizer.param_groups[0]["params"] = list(network.parameters())
    one_step(network, optimizer, monitor)
    before, after = listening.wait_for(Hello, 2)
    assert "parameters" not in before.blind
    assert after.blind["parameters"] == "they changed after attach, and not all are watched: call attach again"
    assert after.layers == before.layers, "which is what the reports are of"
    assert monitor.guard.num_failures == 0


def test_attaching_with_a_new_optimizer_begins_anew_with_it(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    first = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, first, endpoint=listening.endpoint)
    assert attach(network, [first], endpoint=listening.endpoint) is monitor
    norms = [one_step(network, first, monitor)]
    second = torch.optim.Adam(network.parameters(), lr=0.001)
    successor = attach(network, second, endpoint=listening.endpoint, start_step=1)
    assert successor is not monitor
    assert not monitor.is_active
    norms += [one_step(network, second, successor)]
    assert norms_of(listening, 2) == pytest.approx(norms, rel=1e-5)
    assert [report.lr for report in listening.reports] == [(0.1,), (0.001,)]
    assert [hello.groups[0].optimizer for hello in listening.hellos] == ["SGD", "Adam"]
