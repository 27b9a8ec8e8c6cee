"""Reports travel whatever the loop hands over: many groups or metrics, counts that are tensors, graphs."""

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import caboose
from caboose.tensors.scalars import kept_count, whole
from caboose_wire import Hello, StepReport
from caboose_wire.fields import MAX_GROUPS, MAX_SCALARS
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]


def test_of_too_many_parameter_groups_the_first_are_told_and_that_is_said(attach: Attach, listening: Collector) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(150)])
    optimizer = torch.optim.SGD([{"params": [p], "lr": float(i)} for i, p in enumerate(model.parameters())])
    monitor = attach(model, optimizer, endpoint=listening.endpoint)
    optimizer.step()
    monitor.step(1.0)
    report, hello = listening.wait_for(StepReport)[0], listening.wait_for(Hello)[0]
    assert len(hello.groups) == len(report.lr) == MAX_GROUPS
    assert report.lr[-1] == MAX_GROUPS - 1
    assert hello.blind["groups"] == "300 parameter groups, the first 256 are reported"


def test_of_too_many_metrics_the_first_travel_and_that_is_logged_once(
    attach: Attach, network: torch.nn.Module, listening: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    with caplog.at_level(logging.WARNING, "caboose"):
        for _ in range(2):
            monitor.step(1.0, metrics={f"{i:010}" + "m" * (250 if i < 3 else 3): i for i in range(307)})
        reports = listening.wait_for(StepReport, 2)
    assert [len(report.metrics) for report in reports] == [MAX_SCALARS, MAX_SCALARS]
    assert len([r for r in caplog.records if "beyond the first 256" in r.getMessage()]) == 1


@pytest.mark.parametrize("given", [torch.tensor(5), torch.tensor([5]), np.int64(5), np.float32(5), 5.0, 5])
def test_counts_may_be_tensors_or_of_numpy(
    attach: Attach, network: torch.nn.Module, listening: Collector, given: Any
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    monitor.step(1.0, num_samples=given, num_tokens=given)
    report = listening.wait_for(StepReport)[0]
    assert (report.num_samples, report.num_tokens) == (5, 5)


@pytest.mark.parametrize("given", [torch.ones(3), "many", math.nan, math.inf, -1, 2**60, torch.ones(1, device="meta")])
def test_what_is_no_count_is_left_out(
    attach: Attach, network: torch.nn.Module, listening: Collector, given: Any
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    monitor.step(1.0, num_samples=given, num_tokens=given)
    report = listening.wait_for(StepReport)[0]
    assert (report.num_samples, report.num_tokens) == (None, None)


def test_a_count_is_that_of_its_step_even_if_its_tensor_is_used_again() -> None:
    counter = torch.tensor(7)
    kept = kept_count(counter)
    counter.zero_()
    assert whole(kept) == 7
    assert kept_count(torch.ones((), device="meta")).device.type == "meta", "not read on the training thread"


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("sample_every", [1, 100])
def test_gradients_with_a_graph_behind_them_are_read_without_it(
    attach: Attach, network: torch.nn.Module, listening: Collector, sample_every: int
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(
        network, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(sample_every, overhead_budget=1.0)
    )
    norms = []
    for _ in range(3):
        loss = network(torch.randn(5, 4)).pow(2).mean()
        loss.backward(create_graph=True)
        assert all(p.grad.requires_grad for p in network.parameters())
        norms.append(math.hypot(*(float(p.grad.detach().norm()) for p in network.parameters())))
        optimizer.step()
        network.zero_grad()
        monitor.step(loss)
    assert [grad_norm(r) for r in listening.wait_for(StepReport, 3)] == pytest.approx(norms, rel=1e-6)
    assert monitor.guard.num_failures == 0


@pytest.mark.parametrize(("epoch", "expected"), [(1.5, 1), (torch.tensor(2), 2), (-1, None)])
def test_a_scheduler_that_counts_parts_of_epochs_is_counted_in_whole_ones(
    attach: Attach, network: torch.nn.Module, listening: Collector, epoch: Any, expected: int | None
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    monitor = attach(network, optimizer, scheduler=scheduler, endpoint=listening.endpoint)
    scheduler.last_epoch = epoch
    monitor.step(1.0)
    assert listening.wait_for(StepReport)[0].num_scheduler_steps == expected
