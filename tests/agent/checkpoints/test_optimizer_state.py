"""What is read of optimizers that are not like SGD: rates that are no numbers, and many groups."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose_wire import StepReport
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]


class Relative(torch.optim.Optimizer):
    """Finds its own rate, as Adafactor with `relative_step` does."""

    def __init__(self, groups: Any, defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's overloads tell nothing here
        """Changes nothing."""


@pytest.mark.parametrize("defaults", [{"lr": None}, {}, {"lr": "auto"}, {"lr": torch.ones(2)}])
def test_an_optimizer_without_a_rate_that_is_a_number_is_reported_without_one(
    attach: Attach, network: torch.nn.Module, listening: Collector, defaults: dict[str, Any]
) -> None:
    optimizer = Relative(network.parameters(), defaults)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    for _ in range(12):
        network(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        monitor.step(1.0)
    reports = listening.wait_for(StepReport, 12)
    assert {report.lr for report in reports} == {()}
    assert all(grad_norm(report) is not None for report in reports)
    assert monitor.guard.num_failures == 0


def test_a_group_without_a_rate_leaves_the_others_in_their_places(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    groups = [
        {"params": network[0].parameters(), "lr": None, "weight_decay": "none"},
        {"params": network[2].parameters(), "lr": 0.5},
    ]
    optimizer = Relative(groups, {"weight_decay": 0.25})
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    optimizer.step()
    monitor.step(1.0)
    report = listening.wait_for(StepReport)[0]
    assert math.isnan(report.lr[0])
    assert report.lr[1] == 0.5
