"""A daemon fills nobody's log: its lines are few, short, and cannot control a terminal."""

import logging
from collections.abc import Callable

import pytest
import torch

import caboose
from caboose.report import sender
from caboose.report.daemon_log import MAX_LINES, MAX_PER_MINUTE, DaemonLog, printable
from caboose.rollback import brake
from caboose.rollback.errors import RunStopped
from caboose_wire import Ack, Command, Refused, Terms
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]
ESCAPES = "\x1b[2J\x1b]0;owned\x07 fake\nWARNING:root:all is well\r\u202e"


@pytest.fixture
def clean_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's own log, as in a new process."""
    fresh = DaemonLog()
    for module in (brake, sender):
        monkeypatch.setattr(module, "daemon_log", fresh)


def num_acks(listening: Collector) -> int:
    return sum(isinstance(message, Ack) for message in listening.messages)


@pytest.mark.usefixtures("clean_log")
def test_a_rogue_daemon_cannot_flood_the_log_or_write_escapes(
    attach: Attach, network: torch.nn.Module, listening: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with caplog.at_level(logging.INFO, logger="caboose"):
        monitor = attach(network, optimizer, endpoint=listening.endpoint, rollback="auto")
        wait_until(lambda: listening.hellos, 5)
        caplog.clear()
        for number in range(200):
            listening.say(Terms(rollback="auto" if number % 2 else "advise"))
            listening.say(Refused(reason="malformed", detail=f"{number} {ESCAPES}"))
            listening.say(Command(number=number + 1, kind="stop", group="0" * 32, reason=ESCAPES))
            if number % 50 == 49:  # no more than 64 wait for the helper thread
                assert wait_until(lambda n=number: num_acks(listening) > n, 20)
        network(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        monitor.step(1.0)
        assert monitor.is_active
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == MAX_PER_MINUTE + 1, "and one line that says so"
    assert sum("too many lines" in line for line in lines) == 1
    for line in lines:
        assert line.isprintable()
        assert len(line) < 300


def test_lines_are_limited_by_the_minute_and_in_all(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = DaemonLog(clock=lambda: now)
    counts = []
    with caplog.at_level(logging.INFO, logger="caboose"):
        for _ in range(15):
            caplog.clear()
            for number in range(50):
                log.log(logging.INFO, "caboose: %d", number)
            counts.append(len(caplog.records))
            now += 60.0
    assert counts == [MAX_PER_MINUTE + 1, *[MAX_PER_MINUTE] * (MAX_LINES // MAX_PER_MINUTE - 1), 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lr is 0.1, übergroß", "lr is 0.1, übergroß"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\u202eabc\u2028\x85", "\\u202eabc\\u2028\\x85"),
        ("\ud800", "\\ud800"),
        ("x" * 201, "x" * 200 + "..."),
        ("\x00" * 100, "\\x00" * 50 + "..."),
    ],
)
def test_what_does_not_print_is_escaped_and_what_is_long_is_cut(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_reason_of_a_stop_is_printable_in_the_exception() -> None:
    command = Command(number=1, kind="stop", group="0" * 32, reason=ESCAPES)
    with pytest.raises(RunStopped, match="stopped after step 7") as caught:
        brake.Brake._stop(None, command, 7)  # type: ignore[arg-type]  # it needs nothing of the brake
    assert str(caught.value).isprintable()
