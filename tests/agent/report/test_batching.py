"""Steps of a few milliseconds travel several to a message, to a daemon that takes such messages, and none is late."""

import math
import time
from collections.abc import Callable

import pytest
import torch

import caboose
from caboose.governor import Cadences
from caboose.report.sender import Sender
from caboose_wire import Event, HelloRequest, StepReport, StepReports, Welcome
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def thin(monitor: caboose.Monitor) -> None:
    """As the governor does it where steps are short."""
    monitor._governor._now = Cadences(stretch=64, norm_every=64, is_thin=True)
    monitor._governor._place()


def welcomed(attach: Attach, network: torch.nn.Module, listening: Collector, **options: object) -> caboose.Monitor:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint, **options)
    network(torch.ones(1, 4))  # a model that is never called is introduced again after some steps
    assert wait_until(lambda: listening.hellos, 5)
    listening.say(Welcome(max_reports=64))
    assert monitor._session is not None
    sender = monitor._session.sender
    assert sender is not None
    assert wait_until(lambda: sender._outbox.max_reports == 64, 5)
    return monitor


def sleep_for_long(monkeypatch: pytest.MonkeyPatch, sender: Sender) -> None:
    """From its next turn on the sender does not wake by itself."""
    for name in ("SHORT_POLL_SECONDS", "POLL_SECONDS"):
        monkeypatch.setattr(f"caboose.report.sender.{name}", 30.0)
    sender._poll_seconds = 30.0


def all_reports(listening: Collector) -> list[StepReport]:
    found: list[StepReport] = []
    for message in list(listening.messages):
        found += message.reports if isinstance(message, StepReports) else ()
        found += [message] if isinstance(message, StepReport) else ()
    return found


def test_short_steps_travel_together_in_order_and_without_a_gap(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = welcomed(attach, network, listening)
    for number in range(300):
        monitor.step(float(number))
    assert wait_until(lambda: len(all_reports(listening)) == 300, 5)

    assert [report.seq for report in all_reports(listening)] == list(range(1, 301))
    assert [report.loss for report in all_reports(listening)] == [float(number) for number in range(300)]
    batches = [message for message in listening.messages if isinstance(message, StepReports)]
    assert 5 <= len(batches) < 60
    assert max(len(batch.reports) for batch in batches) <= 64


def test_a_daemon_that_has_not_announced_it_gets_single_reports(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint)
    for _ in range(100):
        monitor.step(1.0)

    assert [report.seq for report in listening.wait_for(StepReport, 100)] == list(range(1, 101))
    assert not any(isinstance(message, StepReports) for message in listening.messages)


def test_after_it_was_asked_for_its_hello_it_sends_single_reports_until_it_is_welcome_again(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = welcomed(attach, network, listening)
    listening.say(HelloRequest())
    assert wait_until(lambda: len(listening.hellos) == 2, 5)
    for _ in range(20):
        monitor.step(1.0)
    listening.wait_for(StepReport, 20)
    listening.say(Welcome(max_reports=4))
    time.sleep(0.3)
    for _ in range(20):
        monitor.step(1.0)
    assert wait_until(lambda: len(all_reports(listening)) == 40, 5)

    sizes = [len(message.reports) for message in listening.messages if isinstance(message, StepReports)]
    assert sizes
    assert max(sizes) <= 4
    assert [report.seq for report in all_reports(listening)] == list(range(1, 41))


def test_steps_that_are_not_short_travel_alone(attach: Attach, network: torch.nn.Module, listening: Collector) -> None:
    monitor = welcomed(attach, network, listening)
    monitor.step(1.0)  # long: it began at attach
    for _ in range(3):
        time.sleep(0.05)
        monitor.step(1.0)
    assert wait_until(lambda: len(all_reports(listening)) == 4, 5)

    assert not any(isinstance(message, StepReports) for message in listening.messages)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e6])
def test_trouble_wakes_the_sender(
    attach: Attach, network: torch.nn.Module, listening: Collector, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    monitor = welcomed(attach, network, listening, sampling=caboose.Sampling(1000, overhead_budget=1.0))
    thin(monitor)
    for _ in range(20):
        monitor.step(torch.tensor(1.0))
    assert wait_until(lambda: len(all_reports(listening)) == 20, 5)
    assert monitor._session is not None
    sender = monitor._session.sender
    assert sender is not None
    time.sleep(0.2)  # it has seen what is usual
    sleep_for_long(monkeypatch, sender)
    time.sleep(0.7)  # its longest turn so far

    monitor.step(torch.tensor(bad))
    assert wait_until(lambda: len(all_reports(listening)) == 21, 2)

    assert str(all_reports(listening)[-1].loss) == str(float(torch.tensor(bad)))


def test_an_event_wakes_the_sender(
    attach: Attach, network: torch.nn.Module, listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = welcomed(attach, network, listening)
    assert monitor._session is not None
    sender = monitor._session.sender
    assert sender is not None
    sleep_for_long(monkeypatch, sender)
    time.sleep(0.7)  # its longest turn so far

    monitor.event("data_switch")

    assert listening.wait_for(Event, timeout=2.0)


def test_a_nan_at_every_step_does_not_wake_the_sender_at_every_step(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = welcomed(attach, network, listening, sampling=caboose.Sampling(1000, overhead_budget=1.0))
    before = len(listening.messages)
    for _ in range(100):
        monitor.step(math.nan)
        time.sleep(0.005)
    assert wait_until(lambda: len(all_reports(listening)) == 100, 5)

    assert len(listening.messages) - before < 40


def test_a_loss_that_is_changed_afterwards_was_reported_as_it_was(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = welcomed(attach, network, listening, sampling=caboose.Sampling(1000, overhead_budget=1.0))
    loss = torch.tensor(0.0)
    for _ in range(150):  # more than one block
        loss += 1
        monitor.step(loss)
    loss.zero_()
    assert wait_until(lambda: len(all_reports(listening)) == 150, 5)

    assert [report.loss for report in all_reports(listening)] == [float(number) for number in range(1, 151)]
