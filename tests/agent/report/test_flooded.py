"""What a daemon sends stays small in the training process, also if it never ends a message."""

import logging
import os
import resource
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import zmq

import caboose
from caboose.checkpoints.plan_request import NoAnswer, ask
from caboose.report import connection, sender
from caboose.report.connection import MAX_FRAMES, Connection, Flooded
from caboose_wire import HelloRequest, PlanRequest, StepReport, WireError
from support.collector import Collector
from support.processes import wait_until
from support.rogue import rogue

Attach = Callable[..., caboose.Monitor]
MEGABYTE = 2**20


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as made:
        yield made


@pytest.mark.parametrize("frame_bytes", [0, 100, 60_000])
def test_frames_without_end_are_noticed_before_they_take_memory(
    frame_bytes: int, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    with rogue(frame_bytes) as daemon:
        before = resident()
        with Connection(context, daemon.endpoint, None) as made, pytest.raises(Flooded):
            wait_until(lambda: made.wait(0.5), 20)
        assert resident() - before < 40 * MEGABYTE, "without the check it is 300 MB a second"


def test_a_run_beside_a_flooding_daemon_stays_small_and_logs_it_once(
    attach: Attach, network: torch.nn.Module, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "REFUSED_SECONDS", 0.2)
    with rogue(0) as daemon, caplog.at_level(logging.WARNING, logger="caboose"):
        monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=daemon.endpoint)
        before = resident()
        assert wait_until(lambda: daemon.num_connections >= 5, 20), "it tries again, and again"
        monitor.step(1.0)
        assert resident() - before < 60 * MEGABYTE
        began = time.monotonic()
        monitor.close()
        assert time.monotonic() - began < 1.5
    assert [record.getMessage() for record in caplog.records] == [
        "caboose: the connection is closed for 0.2 s: the daemon sent more than 512 KiB without a message"
    ]


def test_bytes_that_took_an_hour_only_renew_the_connection(
    attach: Attach, network: torch.nn.Module, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats are such bytes."""
    monkeypatch.setattr(connection, "SLOW_SECONDS", -1.0)
    with rogue() as daemon, caplog.at_level(logging.WARNING, logger="caboose"):
        attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=daemon.endpoint)
        assert wait_until(lambda: daemon.num_connections >= 3, 20)
    assert not caplog.records


def test_messages_of_many_frames_are_refused_and_the_next_one_is_read(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    wait_until(lambda: listening.hellos, 5)
    listening.say_raw([os.urandom(10)] * 10_000)
    listening.say(HelloRequest())
    assert wait_until(lambda: len(listening.hellos) == 2, 10)
    monitor.step(3.0)
    assert listening.wait_for(StepReport)[0].loss == 3.0


def test_messages_that_come_faster_than_turns_are_read_to_the_end(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    """What is not read waits in libzmq, without a limit."""
    monitor = attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
    wait_until(lambda: listening.hellos, 5)
    for _ in range(4000):
        listening.say_raw([os.urandom(64)])
    time.sleep(1.0)  # two turns
    listening.say(HelloRequest())
    assert wait_until(lambda: len(listening.hellos) == 2, 3)
    monitor.step(3.0)
    assert listening.wait_for(StepReport)[0].loss == 3.0


def test_messages_without_end_close_the_connection(
    attach: Attach,
    network: torch.nn.Module,
    listening: Collector,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "MAX_WAITING", 1000)
    with caplog.at_level(logging.WARNING, logger="caboose"):
        attach(network, torch.optim.SGD(network.parameters(), lr=0.1), endpoint=listening.endpoint)
        wait_until(lambda: listening.hellos, 5)
        for _ in range(3000):
            listening.say_raw([b"x"])
        assert wait_until(lambda: "more than 1000 messages at once" in caplog.text, 5)
    assert "the connection is closed for 60 s" in caplog.text


@pytest.mark.parametrize(("num", "is_kept"), [(MAX_FRAMES, True), (MAX_FRAMES + 1, False)])
def test_so_many_frames_and_no_more(num: int, is_kept: bool, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    frames = [bytes([number]) for number in range(num)]
    router = context.socket(zmq.ROUTER)
    router.bind("tcp://127.0.0.1:0")
    with router, Connection(context, router.getsockopt_string(zmq.LAST_ENDPOINT), None) as made:
        assert wait_until(lambda: made.send([b"here"]), 5)
        peer = router.recv_multipart()[0]
        router.send_multipart([peer, *frames])
        if is_kept:
            assert wait_until(made.receive, 5) == frames
        else:
            with pytest.raises(WireError, match="oversize"):
                wait_until(made.receive, 5)
        assert made.receive() is None


def test_a_daemon_that_floods_a_request_for_a_plan_gives_none() -> None:
    with rogue() as daemon, pytest.raises(NoAnswer, match="without a message"):
        ask(daemon.endpoint, None, PlanRequest(job="train"), timeout_seconds=20.0)
