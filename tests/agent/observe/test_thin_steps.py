"""Thin steps: of a step of a millisecond only loss, rate and total time, and the program's numbers are its own."""

import math
from collections.abc import Callable

import pytest
import torch

import caboose
from caboose.governor import Cadences, Governor
from caboose_wire import StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


def train(
    monitor: caboose.Monitor | None, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int
) -> list[float]:
    draw = torch.Generator().manual_seed(1)
    losses = []
    for number in range(steps):
        loss = model(torch.randn(16, 4, generator=draw)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if number % 3 == 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if monitor is not None:
            monitor.step(loss)
        for group in optimizer.param_groups:
            group["lr"] *= 0.99
        losses.append(float(loss.detach()))
    return losses


def a_network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def make_thin(monitor: caboose.Monitor, norm_every: int = 8) -> None:
    monitor._governor._now = Cadences(stretch=1, norm_every=norm_every, is_thin=True)
    monitor._governor._place()


def test_every_step_has_its_loss_and_rate_and_what_is_not_measured_is_unknown(
    attach: Attach, listening: Collector
) -> None:
    bare = train(None, *a_network(), 40)
    model, optimizer = a_network()
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(20, overhead_budget=1.0))
    make_thin(monitor)
    watched = train(monitor, model, optimizer, 40)
    reports = listening.wait_for(StepReport, 40)

    assert watched == bare, "the random numbers and the weights are the same"
    assert [report.loss for report in reports] == [float(torch.tensor(loss)) for loss in bare]
    assert [report.lr[0] for report in reports] == pytest.approx([0.01 * 0.99**number for number in range(40)])
    assert {report.phase_every for report in reports} == {8}
    for number, report in enumerate(reports):
        assert report.phases is not None
        assert report.phases.total > 0
        is_thin = number > 0 and number % 8 != 0 and number % 20 != 0
        assert (report.mode is None) is is_thin, number
        assert math.isnan(report.phases.forward) is is_thin, number
        assert ("grad_norm" in report.arrays) is not is_thin, number
        assert (report.clipping is not None) is (number % 3 == 2 and not is_thin), number


def test_with_a_scaler_no_step_is_thin(attach: Attach, listening: Collector) -> None:
    model, optimizer = a_network()
    scaler = torch.amp.GradScaler("cpu")
    monitor = attach(model, optimizer, scaler=scaler, endpoint=listening.endpoint)
    make_thin(monitor)
    train(monitor, model, optimizer, 10)

    assert all(report.mode is not None for report in listening.wait_for(StepReport, 10))


def test_the_governor_is_done_with_short_steps_within_a_second() -> None:
    governor, seconds, step = Governor(100, 0.01), 0.0, 0
    while seconds < 1.0:
        is_sampled, norms, phases = (
            governor.is_sampled(step),
            governor.takes_norms(step),
            governor.takes_phases(step),
        )
        cost = 4e-3 if is_sampled else 60e-6 if norms else 20e-6 if phases else 8e-6
        governor.account(
            cost, 2e-3 + cost, was_sampled=is_sampled, had_norms=norms, had_phases=phases, background_seconds=4e-6
        )
        seconds, step = seconds + 2e-3 + cost, step + 1

    assert governor.share < 0.01
    assert governor.norm_every == 256, "norms are taken once a second, about"
    assert governor.phase_every == 64, "and phases four times"
    assert governor.sample_every > 100
