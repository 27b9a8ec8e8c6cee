"""Runs of thin steps: what a step costs in calls, what ends a run, what may overtake it, and what bounds its memory."""

import math
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import caboose
from caboose.governor import Cadences
from caboose.report import sender as sender_module
from caboose.report.sender import Sender
from caboose_wire import Event, StepReport, StepReports, StepRun, Welcome, reports_of
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]
NOBODY = "tcp://127.0.0.1:9"
SELDOM = caboose.Sampling(1000, overhead_budget=1.0)


def in_runs(attach: Attach, model: torch.nn.Module, endpoint: str, **options: Any) -> tuple[caboose.Monitor, Any]:
    """A monitor whose next steps are thin."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = attach(model, optimizer, endpoint=endpoint, sampling=SELDOM, **options)
    model(torch.ones(1, 4))
    monitor._governor._now = Cadences(stretch=64, norm_every=64, is_thin=True)
    monitor._governor._place()
    monitor._governor._judge = lambda: None
    while not monitor._reporter.thin.is_open:
        monitor.step(1.0)
    return monitor, optimizer


def the_sender(monitor: caboose.Monitor) -> Sender:
    assert monitor._session is not None
    assert monitor._session.sender is not None
    return monitor._session.sender


def all_reports(listening: Collector) -> list[StepReport]:
    found: list[StepReport] = []
    for message in list(listening.messages):
        found += message.reports if isinstance(message, StepReports) else ()
        found += reports_of(message) if isinstance(message, StepRun) else ()
        found += [message] if isinstance(message, StepReport) else ()
    return found


def welcomed(monitor: caboose.Monitor, listening: Collector) -> None:
    assert wait_until(lambda: listening.hellos, 5)
    listening.say(Welcome(max_reports=64, max_run=256))
    assert wait_until(lambda: the_sender(monitor)._outbox.is_batching, 5)


def a_step(model: torch.nn.Module, optimizer: Any, monitor: caboose.Monitor) -> None:
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss)


def test_on_a_thin_step_seven_functions_of_the_agent_are_called_and_backward_is_torchs_own(
    attach: Attach, network: torch.nn.Module
) -> None:
    own = torch.autograd.backward
    monitor, optimizer = in_runs(attach, network, NOBODY)
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/caboose/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)

    # Hooks of no-code mode stay in torch's lists for the life of a process, which other tests share.
    hooks_of_others = "AutoAttach.install."
    a_step(network, optimizer, monitor)
    assert monitor._reporter is not None
    assert monitor._reporter.thin.is_open
    assert torch.autograd.backward is own
    sys.setprofile(note)
    a_step(network, optimizer, monitor)
    sys.setprofile(None)

    own_calls = [name for name in calls if not name.startswith(hooks_of_others)]
    assert len(own_calls) <= 7, own_calls


def test_after_thin_steps_the_backward_of_a_measured_step_is_seen_again(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor, optimizer = in_runs(attach, network, listening.endpoint)
    for _ in range(70):
        a_step(network, optimizer, monitor)
    num = monitor.current_step
    assert wait_until(lambda: len(all_reports(listening)) == num, 5)
    monitor.close()

    measured = [report for report in all_reports(listening)[10:] if report.mode is not None]
    assert measured
    assert all(report.phases is not None and report.phases.backward > 0 for report in measured)
    assert "caboose" not in torch.autograd.backward.__code__.co_filename


def test_an_event_does_not_wait_for_the_run_that_it_falls_into(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor, _ = in_runs(attach, network, listening.endpoint)
    welcomed(monitor, listening)
    monitor.step(1.0)
    monitor.event("data_switch")

    assert listening.wait_for(Event, timeout=5.0)
    assert monitor._reporter is not None
    assert monitor._reporter.thin.is_open, "the run goes on"
    for _ in range(20):
        monitor.step(1.0)
    num = monitor.current_step
    assert wait_until(lambda: len(all_reports(listening)) == num, 5)
    assert [report.seq for report in all_reports(listening)] == list(range(1, num + 1))


def test_after_a_pause_the_first_step_wakes_the_sender(
    attach: Attach, network: torch.nn.Module, listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "IDLE_SECONDS", 0.2)
    monitor, _ = in_runs(attach, network, listening.endpoint)
    welcomed(monitor, listening)
    for _ in range(5):
        monitor.step(1.0)
    sender = the_sender(monitor)
    monkeypatch.setattr(sender_module, "POLL_SECONDS", 30.0)
    assert wait_until(lambda: sender._is_dozing, 5)
    num = len(all_reports(listening))

    monitor.step(1.0)
    assert wait_until(lambda: len(all_reports(listening)) == num + 1, 2)


def test_without_a_daemon_the_rows_are_bounded_and_what_is_dropped_is_counted(
    attach: Attach, network: torch.nn.Module
) -> None:
    monitor, _ = in_runs(attach, network, NOBODY)
    for _ in range(3 * sender_module.MAX_QUEUED_ROWS):
        monitor.step(1.0)
    sender = the_sender(monitor)

    assert sender.num_queued <= sender_module.MAX_QUEUED_ROWS
    assert sender.num_queued > sender_module.MAX_QUEUED_ROWS - 3000
    assert sender.num_dropped + sender.num_queued == monitor.current_step


def test_a_run_ends_when_the_agent_switches_itself_off(attach: Attach, network: torch.nn.Module) -> None:
    monitor, optimizer = in_runs(attach, network, NOBODY)
    a_step(network, optimizer, monitor)
    for _ in range(10):
        monitor.guard.failed("a hook", RuntimeError("broken"))
    before = the_sender(monitor).num_queued
    for _ in range(5):
        a_step(network, optimizer, monitor)

    assert not monitor.is_active
    assert the_sender(monitor).num_queued == before
    assert not optimizer._optimizer_step_pre_hooks


def test_a_loss_that_cannot_be_read_in_a_run_does_not_raise_and_loses_no_step(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor, _ = in_runs(attach, network, listening.endpoint)
    welcomed(monitor, listening)
    first = monitor.current_step
    odd: list[Any] = [torch.ones(3), torch.tensor([2.0]), torch.tensor(3), 4, None, "five", torch.tensor(6j), math.inf]
    for loss in odd:
        monitor.step(loss)
        monitor.step(1.0)
    num = monitor.current_step
    assert wait_until(lambda: len(all_reports(listening)) == num, 5)

    reports = all_reports(listening)[first::2]
    assert [report.loss for report in reports] == [1.0, 2.0, 3.0, 4.0, None, None, None, math.inf]
    assert [report.seq for report in all_reports(listening)] == list(range(1, num + 1))


def test_the_rates_of_thin_steps_are_those_of_their_update_wherever_the_schedule_steps(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor, optimizer = in_runs(attach, network, listening.endpoint)
    first, used = monitor.current_step, []
    for number in range(40):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)  # before the update, and once more behind it
        network(torch.ones(1, 4)).sum().backward()
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 7.0
        monitor.step(1.0)
    num = monitor.current_step
    assert wait_until(lambda: len(all_reports(listening)) == num, 5)

    assert [report.lr for report in all_reports(listening)[first:]] == [(rate,) for rate in used]


def test_a_long_step_among_short_ones_makes_no_row_wait_for_more_than_a_tenth_of_a_second(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor, _ = in_runs(attach, network, listening.endpoint)
    welcomed(monitor, listening)
    time.sleep(0.05)
    monitor.step(1.0, metrics={"accuracy": 0.5})
    assert wait_until(lambda: len(all_reports(listening)) == monitor.current_step, 5)

    assert the_sender(monitor)._poll_seconds == sender_module.SHORT_POLL_SECONDS


def test_the_input_of_a_thin_step_whose_loss_is_bad_is_looked_at_though_no_loader_is_watched(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor, optimizer = in_runs(attach, network, listening.endpoint)
    a_step(network, optimizer, monitor)
    spoiled = torch.ones(2, 4)
    spoiled[1, 3] = math.nan
    monitor.step(network(spoiled).square().mean())

    def bad() -> list[StepReport]:
        return [report for report in all_reports(listening) if report.batch is not None and report.batch.num_bad]

    assert wait_until(bad, 5)
    batch = bad()[0].batch
    assert batch is not None
    assert (batch.index, batch.shape, batch.num_bad) == (None, (2, 4), 1)
