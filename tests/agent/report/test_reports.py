"""What a step report holds, against numbers computed by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import caboose
from caboose.observe.parts import Outline, TrainedPart
from caboose_wire import Bye, Event, Heartbeat, Hello, StepReport
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]


def one_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, monitor: caboose.Monitor
) -> tuple[float, list[float]]:
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    norms = [float(p.grad.norm()) for p in model.parameters() if p.grad is not None]
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss)
    return loss.item(), norms


def test_loss_norms_and_learning_rates_are_the_ones_torch_has(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(
        [{"params": network[0].parameters(), "lr": 0.1}, {"params": network[2].parameters(), "lr": 0.2}]
    )
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    seen = [one_step(network, optimizer, monitor) for _ in range(3)]
    reports = listening.wait_for(StepReport, 3)
    assert [(r.step, r.seq, r.model_step) for r in reports] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    for report, (loss, norms) in zip(reports, seen, strict=True):
        assert report.loss == pytest.approx(loss, rel=1e-6)
        assert report.lr == (0.1, 0.2)
        assert grad_norm(report) == pytest.approx(math.hypot(*norms), rel=1e-6)
        np.testing.assert_allclose(report.arrays["grad_norm"], norms, rtol=1e-6)
        assert report.agent_seconds >= 0
        phases = report.phases
        assert phases is not None
        assert phases.total >= phases.forward + phases.backward + phases.optimizer > 0
        assert math.isnan(phases.data), "no loader was watched"


def test_a_layer_without_a_gradient_is_told_from_one_with_a_nan(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    network[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    network(torch.randn(5, 4)).sum().backward()
    network[2].weight.grad.fill_(float("nan"))
    optimizer.step()
    monitor.step(float("inf"))
    report = listening.wait_for(StepReport)[0]
    norms = report.arrays["grad_norm"]
    assert norms[1] == -1
    assert math.isnan(norms[2])
    assert math.isfinite(norms[3])
    assert grad_norm(report) is not None
    assert math.isnan(grad_norm(report))
    assert report.loss == float("inf")


def test_a_step_the_optimizer_never_took_has_no_norms(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    monitor.step(None)
    report = listening.wait_for(StepReport)[0]
    assert report.loss is None
    assert grad_norm(report) is None
    assert "grad_norm" not in report.arrays


def test_several_optimizers_make_one_report(attach: Attach, network: torch.nn.Module, listening: Collector) -> None:
    optimizers = [torch.optim.SGD(network[i].parameters(), lr=0.1 * (i + 1)) for i in (0, 2)]
    monitor = attach(network, optimizers, endpoint=listening.endpoint)
    network(torch.randn(5, 4)).sum().backward()
    norms = [float(p.grad.norm()) for p in network.parameters()]
    for optimizer in optimizers:
        optimizer.step()
    monitor.step(1.5, metrics={"accuracy": 0.5}, num_samples=5)
    report = listening.wait_for(StepReport)[0]
    np.testing.assert_allclose(report.arrays["grad_norm"], norms, rtol=1e-6)
    assert report.lr == pytest.approx((0.1, 0.3))
    assert (report.metrics, report.num_samples) == ({"accuracy": 0.5}, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_norms_are_taken_in_float32_whatever_the_model_is_in(
    attach: Attach, network: torch.nn.Module, listening: Collector, dtype: torch.dtype
) -> None:
    network.to(dtype)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    loss = network(torch.randn(5, 4, dtype=dtype)).sum()
    loss.backward()
    norms = [float(p.grad.to(torch.float64).norm()) for p in network.parameters()]
    optimizer.step()
    monitor.step(loss)
    report = listening.wait_for(StepReport)[0]
    np.testing.assert_allclose(report.arrays["grad_norm"], norms, rtol=1e-5)


def test_the_users_own_count_of_steps_is_kept_and_never_goes_back(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(
        network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint, start_step=100
    )
    monitor.step(1.0)
    monitor.step(1.0, step=200)
    monitor.step(1.0, step=150)
    monitor.step(1.0)
    assert [r.step for r in listening.wait_for(StepReport, 4)] == [101, 200, 200, 201]


def test_the_wait_for_data_is_timed_and_the_loader_stays_itself(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 4)), batch_size=4)
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    watched = monitor.watch(loader)
    assert len(watched) == 3
    assert watched.batch_size == 4
    for _ in range(2):  # two epochs
        for (_batch,) in watched:
            monitor.step(1.0)
    reports = listening.wait_for(StepReport, 6)
    for report in reports:
        assert report.phases is not None
        assert report.phases.data > 0


def test_validation_and_events_keep_their_place_among_the_steps(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    monitor.step(1.0)
    monitor.validation(torch.tensor(0.5), accuracy=0.75)
    monitor.event("data_switch", source="web", weight=np.float32(0.5), kind="kept")
    monitor.step(1.0)
    listening.wait_for(StepReport, 2)
    order = [m for m in listening.messages if isinstance(m, StepReport | Event)]
    assert [type(m).__name__ for m in order] == ["StepReport", "Event", "Event", "StepReport"]
    validation, switch = order[1], order[2]
    assert isinstance(validation, Event)
    assert (validation.kind, validation.step, validation.fields) == ("validation", 1, {"loss": 0.5, "accuracy": 0.75})
    assert isinstance(switch, Event)
    assert switch.fields == {"source": "web", "weight": 0.5, "kind": "kept"}


def test_heartbeats_come_without_steps_and_a_bye_at_the_end(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    beat = listening.wait_for(Heartbeat)[0]
    assert (beat.step, beat.state) == (0, "training")
    monitor.step(1.0)
    monitor.close()
    bye = listening.wait_for(Bye)[0]
    assert (bye.step, bye.error) == (1, "")
    assert len(listening.reports) == 1, "what was queued left before the good-bye"


@pytest.mark.parametrize("how", ["positional", "keyword"])
def test_gradients_made_by_a_closure_are_read_after_it(
    attach: Attach, network: torch.nn.Module, listening: Collector, how: str
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    norms = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = network(torch.randn(5, 4)).pow(2).mean()
        loss.backward()
        norms.append(math.hypot(*(float(p.grad.norm()) for p in network.parameters())))
        return loss

    for _ in range(3):
        loss = optimizer.step(closure) if how == "positional" else optimizer.step(closure=closure)
        monitor.step(loss)
    assert [grad_norm(r) for r in listening.wait_for(StepReport, 3)] == pytest.approx(norms, rel=1e-6)


def test_the_learning_rate_is_the_one_the_step_was_taken_with(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    for _ in range(3):
        network(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        monitor.step(1.0)
    assert [r.lr for r in listening.wait_for(StepReport, 3)] == [(1.0,), (0.5,), (0.25,)]


def test_the_last_hello_is_the_newest_one_and_comes_behind_the_reports_that_earlier_ones_describe(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    """Another model joins, and a fact changes, before the sender's next turn."""
    optimizer, other = torch.optim.SGD(network.parameters(), lr=0.1), torch.nn.Linear(2, 1)
    monitor = attach(network, optimizer, endpoint=listening.endpoint)
    listening.wait_for(Heartbeat)
    one_step(network, optimizer, monitor)
    parts = [
        TrainedPart("a", (network,), (optimizer,)),
        TrainedPart("b", (other,), (torch.optim.SGD(other.parameters(), lr=0.1),)),
    ]
    monitor.train(Outline.of_parts(parts))
    monitor.step({"a": 1.0, "b": 2.0})
    monitor.describe(blind={}, facts={"objective": "adversarial"})
    monitor.step({"a": 1.0, "b": 2.0})
    listening.wait_for(StepReport, 3)
    came = [message for message in listening.messages if isinstance(message, Hello | StepReport)]
    hellos = [place for place, message in enumerate(came) if isinstance(message, Hello)]
    last = listening.hellos[-1]
    assert [part.name for part in last.parts] == ["a", "b"]
    assert last.facts["objective"] == "adversarial"
    assert [len(r.part_losses) for r in came[: hellos[1]] if isinstance(r, StepReport)] == [0]
    assert [len(r.part_losses) for r in came[hellos[1] :] if isinstance(r, StepReport)] == [2, 2]
