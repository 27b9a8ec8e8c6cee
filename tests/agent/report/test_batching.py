"""Steps of a few milliseconds travel several to a message, to a daemon that takes such messages, and none is late."""

import math
import time
from collections.abc import Callable

import pytest
import torch

import caboose
from caboose.governor import Cadences
from caboose.report.sender import Sender
from caboose_wire import Event, HelloRequest, StepReport, StepReports, StepRun, Welcome, reports_of
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def thin(monitor: caboose.Monitor) -> None:
    """As the governor does it where steps are short."""
    monitor._governor._now = Cadences(stretch=64, norm_every=64, is_thin=True)
    monitor._governor._place()


def welcomed(
    attach: Attach, network: torch.nn.Module, listening: Collector, *, max_run: int = 0, **options: object
) -> caboose.Monitor:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint, **options)
    network(torch.ones(1, 4))  # a model that is never called is introduced again after some steps
    assert wait_until(lambda: listening.hellos, 5)
    listening.say(Welcome(max_reports=64, max_run=max_run))
    assert monitor._session is not None
    sender = monitor._session.sender
    assert sender is not None
    assert wait_until(lambda: sender._outbox.is_batching, 5)
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
        found += reports_of(message) if isinstance(message, StepRun) else ()
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


@pytest.mark.parametrize("max_run", [0, 5, 256])
def test_thin_steps_are_the_same_however_they_travel(attach: Attach, listening: Collector, max_run: int) -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 1)
    loader = [torch.ones(2 + number % 3, 4) for number in range(200)]
    optimizer = sgd(network)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 25, 0.5)
    options = {"sampling": caboose.Sampling(1000, overhead_budget=1.0), "scheduler": scheduler}
    monitor = attach(network, optimizer, endpoint=listening.endpoint, **options)
    assert monitor._session is not None
    sender = monitor._session.sender
    assert sender is not None
    thin(monitor)
    for number, batch in enumerate(monitor.watch(loader)):
        if number == 10:
            assert wait_until(lambda: len(all_reports(listening)) == 10, 5)  # and the Hello of a watched loader
            listening.say(Welcome(max_reports=64, max_run=max_run))
            assert wait_until(lambda: sender._outbox.is_batching, 5)
        loss = network(batch).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        monitor.step(loss if number % 7 else None, num_samples=len(batch), num_tokens=4 * len(batch))
        if number == 120:
            monitor.event("data_switch")
    assert wait_until(lambda: len(all_reports(listening)) == 200, 5)

    reports = all_reports(listening)
    assert [(report.seq, report.step, report.model_step) for report in reports] == [(n, n, n) for n in range(1, 201)]
    assert [report.loss is None for report in reports] == [number % 7 == 0 for number in range(200)]
    assert [report.lr for report in reports] == [(0.01 * 0.5 ** (number // 25),) for number in range(200)]
    assert [report.num_scheduler_steps for report in reports] == list(range(1, 201))
    assert [(report.num_samples, report.num_tokens) for report in reports] == [
        (2 + number % 3, 8 + 4 * (number % 3)) for number in range(200)
    ]
    assert all(report.batch is not None and report.batch.index == n for n, report in enumerate(reports))
    times = [report.time for report in reports]
    assert times == sorted(times)
    assert max(abs(time.time() - at) for at in times) < 30
    assert all(report.phases is not None and 0 < report.phases.total < 5 for report in reports)
    assert reports[-1].agent_seconds > 0
    runs = [message for message in listening.messages if isinstance(message, StepRun)]
    assert bool(runs) is bool(max_run)
    assert all(len(message.steps) <= max_run for message in runs)


def test_a_run_of_thin_steps_ends_where_more_is_to_be_reported(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = welcomed(attach, network, listening, max_run=256, sampling=caboose.Sampling(1000, overhead_budget=1.0))
    thin(monitor)
    for number in range(1, 100):
        metrics = {"accuracy": 0.5} if number == 30 else None
        loss = torch.tensor(math.nan if number == 50 else 1.0)
        monitor.step(loss, metrics=metrics, step=number if number < 70 else number + 10)
        if number == 60:
            time.sleep(0.3)  # by now the sender has seen the NaN
    assert wait_until(lambda: len(all_reports(listening)) == 99, 5)

    reports = all_reports(listening)
    assert [report.seq for report in reports] == list(range(1, 100))
    assert [report.step for report in reports] == [n if n < 70 else n + 10 for n in range(1, 100)]
    assert [report.seq for report in reports if report.metrics] == [30]
    assert [report.seq for report in reports if str(report.loss) == "nan"] == [50]
    assert any(report.is_sampled for report in reports[50:]), "the first step after the NaN that could be"


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
