"""Norms under a gradient scaler: those of the gradients without its scale, whoever takes it out and whenever."""

import math
from collections.abc import Callable, Iterable

import pytest
import torch

import caboose
from caboose_wire import StepReport
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]


def norm(parameters: Iterable[torch.Tensor]) -> float:
    return math.hypot(*(float(p.grad.norm()) for p in parameters if p.grad is not None))


@pytest.mark.parametrize("is_unscaled", [(True, True), (True, False), (False, False)])
def test_each_of_two_optimizers_is_read_with_its_own_scale_or_without(
    attach: Attach, listening: Collector, is_unscaled: tuple[bool, bool]
) -> None:
    """As in a GAN: the second one's gradients do not exist yet when the first one's are unscaled, clipped and used."""
    models = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = attach(models, optimizers, scaler=scaler, endpoint=listening.endpoint)
    norms = []
    for _ in range(3):
        parts = []
        for model, optimizer, is_taken_out in zip(models, optimizers, is_unscaled, strict=True):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(5, 4)).pow(2).mean()).backward()
            parts.append(norm(model.parameters()) / 1024.0)
            if is_taken_out:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(optimizer)
        scaler.update()
        norms.append(math.hypot(*parts))
        monitor.step(1.0)
    reports = listening.wait_for(StepReport, 3)
    assert [grad_norm(r) for r in reports] == pytest.approx(norms, rel=1e-5)
    assert [r.clipping.is_scaled for r in reports if r.clipping is not None] == [not all(is_unscaled)] * 3


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_scale_that_grows_after_the_step_is_not_in_the_steps_norms(
    attach: Attach, network: torch.nn.Module, listening: Collector, is_fused: bool
) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, fused=is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    monitor = attach(network, optimizer, scaler=scaler, endpoint=listening.endpoint)
    norms = []
    for _ in range(4):
        optimizer.zero_grad()
        scale = scaler.get_scale()
        scaler.scale(network(torch.randn(5, 4)).pow(2).mean()).backward()
        norms.append(norm(network.parameters()) / scale)
        scaler.step(optimizer)
        scaler.update()
        monitor.step(1.0)
    reports = listening.wait_for(StepReport, 4)
    assert [grad_norm(r) for r in reports] == pytest.approx(norms, rel=1e-5)
    assert [r.scaler.scale for r in reports if r.scaler is not None] == [1024.0, 2048.0, 2048.0, 4096.0]


@pytest.mark.parametrize("is_fused", [False, True])
def test_steps_that_are_skipped_for_an_infinity_are_counted(
    attach: Attach, network: torch.nn.Module, listening: Collector, is_fused: bool
) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, fused=is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = attach(network, optimizer, scaler=scaler, endpoint=listening.endpoint)
    for is_bad in (False, True, False, True, False):
        optimizer.zero_grad()
        scaler.scale(network(torch.full((5, 4), math.inf if is_bad else 1.0)).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.step(1.0)
    reports = listening.wait_for(StepReport, 5)
    assert [r.scaler.num_skipped for r in reports if r.scaler is not None] == [0, 1, 1, 2, 2]
