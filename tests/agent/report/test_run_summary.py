"""The summary at the end: returned by close, and printed by rank 0."""

from collections.abc import Callable

import pytest
import torch

import caboose
from support.collector import Collector


def train(monitor: caboose.Monitor, model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> None:
    torch.manual_seed(0)
    for step in range(20):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4)).square().mean() * (1 + step % 2)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        monitor.step(loss)


def test_close_returns_what_the_steps_add_up_to(
    attach: Callable[..., caboose.Monitor], network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    monitor = attach(network, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(overhead_budget=1.0))
    norms = []
    handle = optimizer.register_step_pre_hook(
        lambda *_: norms.append(torch.nn.utils.get_total_norm([p.grad for p in network.parameters()]).item())
    )
    train(monitor, network, optimizer, max_norm=1e9)
    handle.remove()
    monitor.validation(3.0)
    monitor.validation(2.0, accuracy=0.5)
    monitor.validation(2.5)
    found = monitor.close()

    assert found is not None
    assert (found.num_steps, found.num_counted, found.num_not_finite) == (20, 20, 0)
    assert found.mean_grad_norm == pytest.approx(sum(norms) / 20, rel=1e-4)
    assert found.max_grad_norm == pytest.approx(max(norms), rel=1e-4)
    assert (found.clip_share, found.max_norm, found.best_validation) == (0.0, 1e9, 2.0)
    assert found.first_loss is not None
    assert str(found).startswith("20 steps, loss ")
    assert monitor.close() == found


def test_the_share_of_clipped_steps_is_counted_without_a_daemon(
    attach: Callable[..., caboose.Monitor], network: torch.nn.Module
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    options = {"endpoint": "tcp://127.0.0.1:9", "sampling": caboose.Sampling(overhead_budget=1.0)}
    monitor = attach(network, optimizer, **options)
    network(torch.ones(8, 4)).square().mean().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in network.parameters()]).item()
    network.zero_grad()
    train(monitor, network, optimizer, max_norm=1.5 * norm)
    found = monitor.close()
    assert found is not None
    assert found.clip_share == 0.5, "every second loss is twice as large"
    assert found.health == ""
    assert "50% of the steps clipped to" in str(found)


def test_a_disabled_monitor_has_none(monkeypatch: pytest.MonkeyPatch, network: torch.nn.Module) -> None:
    monkeypatch.setenv("CABOOSE_DISABLED", "1")
    monitor = caboose.attach(network, torch.optim.SGD(network.parameters(), lr=0.1))
    monitor.validation(1.0)
    assert (monitor.close(), monitor.summary(), monitor.findings()) == (None, None, ())
    assert not monitor.should_stop
    assert not monitor.is_best
