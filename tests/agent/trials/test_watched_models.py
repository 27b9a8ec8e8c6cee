"""A trial of a model that is being watched: the training goes on as without it, and nothing of it is reported."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import caboose
from caboose_wire import StepReport
from support.collector import Collector

LOSS = torch.nn.MSELoss()
TRIALS: dict[str, Callable[..., Any]] = {
    "inspect": lambda model, batch, _optimizer: caboose.inspect(model, LOSS, batch),
    "overfit_one_batch": lambda model, batch, optimizer: caboose.overfit_one_batch(
        model, LOSS, [batch], optimizer, num_steps=5
    ),
    "find_lr": lambda model, batch, optimizer: caboose.find_lr(model, LOSS, [batch], optimizer, num_steps=20),
    "sharpness": lambda model, batch, _optimizer: caboose.sharpness(model, LOSS, [batch], num_iterations=3),
    "preflight": lambda model, batch, optimizer: caboose.preflight(model, LOSS, [batch], optimizer, overfit_steps=3),
}


def a_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 4, generator=generator), torch.randn(16, 1, generator=generator)


def train(attach: Callable[..., caboose.Monitor], trial: str, **options: Any) -> Iterator[list[float]]:
    """Six steps, with a trial after the third; the losses and weights at the end."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    monitor = attach(model, optimizer, sampling=caboose.Sampling(every=1, overhead_budget=1.0), **options)
    inputs, targets = a_batch()
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        loss = LOSS(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        monitor.step(loss)
        losses.append(loss.item())
        if trial and step == 2:
            TRIALS[trial](model, (inputs, targets), optimizer)
    monitor.close()
    yield [*losses, *torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()]


@pytest.mark.parametrize("trial", TRIALS)
def test_the_training_goes_on_as_without_it_and_reports_no_other_step(
    attach: Callable[..., caboose.Monitor], listening: Collector, trial: str
) -> None:
    (plain,) = train(attach, "", endpoint="tcp://127.0.0.1:9")
    (tried,) = train(attach, trial, endpoint=listening.endpoint)
    assert tried == plain
    reports = listening.wait_for(StepReport, 6)
    assert [report.step for report in reports] == [1, 2, 3, 4, 5, 6]
    norms = [report.clipping.max_norm for report in reports if report.clipping is not None]
    assert norms == [1.0] * 6


def test_the_time_of_a_trial_is_no_steps_time(
    attach: Callable[..., caboose.Monitor], listening: Collector, network: torch.nn.Module
) -> None:
    import time

    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    for _ in range(2):
        network(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        with monitor.paused():
            time.sleep(0.3)
        monitor.step(0.5)
    assert all(report.phases.total < 0.25 for report in listening.wait_for(StepReport, 2))
