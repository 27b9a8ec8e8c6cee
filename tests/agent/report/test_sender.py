"""The sender never makes the loop wait: not for an absent, dead, hung or hostile daemon."""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import zmq

import caboose
from caboose.report import connection
from caboose_wire import HelloRequest, Refused, StepReport
from support.collector import Collector, collector
from support.processes import clean_environment, wait_until
from support.zmtp import GREETING

Attach = Callable[..., caboose.Monitor]


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_an_absent_daemon_costs_nothing_and_the_oldest_reports_are_dropped_and_counted(
    attach: Attach, network: torch.nn.Module
) -> None:
    port = a_free_port()
    monitor = attach(network, sgd(network), endpoint=f"tcp://127.0.0.1:{port}")
    seconds = []
    for _ in range(1500):
        start = time.thread_time()  # what others on this machine take is not the agent's
        monitor.step(1.0)
        seconds.append(time.thread_time() - start)
    assert sorted(seconds)[-3] < 0.005, "the interpreter's own collections of garbage are not the agent's"
    with collector(f"tcp://127.0.0.1:{port}") as late:
        reports = late.wait_for(StepReport, 1000, timeout=15)
        assert [r.seq for r in reports] == list(range(501, 1501)), "the newest thousand, in order"
        assert reports[0].num_dropped == 500


def test_a_daemon_that_stops_reading_does_not_stop_the_loop(attach: Attach, network: torch.nn.Module) -> None:
    context = zmq.Context()
    deaf = context.socket(zmq.ROUTER)
    deaf.setsockopt(zmq.RCVHWM, 10)
    deaf.setsockopt(zmq.LINGER, 0)
    deaf.bind("tcp://127.0.0.1:0")
    try:
        monitor = attach(network, sgd(network), endpoint=deaf.getsockopt_string(zmq.LAST_ENDPOINT))
        loss = torch.tensor(1.0)
        begin = time.perf_counter()
        for _ in range(20_000):
            monitor.step(loss)
        assert time.perf_counter() - begin < 10
        assert monitor._session.sender is not None
        assert wait_until(lambda: monitor._session.sender.num_dropped > 1000, 5)
        assert len(monitor._session.sender._queue) <= 1000
        start = time.perf_counter()
        monitor.close()
        assert time.perf_counter() - start < 1.0
    finally:
        deaf.close()
        context.term()


def test_the_report_of_a_step_longer_than_the_pause_is_sent_at_once(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint)
    wait_until(lambda: listening.hellos, 5)
    seconds = []
    for number in range(1, 8):
        time.sleep(0.6)
        monitor.step(1.0)
        began = time.monotonic()
        assert wait_until(lambda number=number: len(listening.reports) >= number, 5)  # type: ignore[misc]  # a default
        seconds.append(time.monotonic() - began)
    assert max(seconds[2:]) < 0.2, seconds


def test_a_restarted_daemon_that_asks_gets_the_hello_again(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    attach(network, sgd(network), endpoint=listening.endpoint)
    wait_until(lambda: listening.hellos, 5)
    listening.say(HelloRequest())
    assert wait_until(lambda: len(listening.hellos) == 2, 5)
    assert listening.hellos[0] == listening.hellos[1]


def test_an_endpoint_that_broke_the_protocol_is_tried_again(
    attach: Attach, network: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq gives a connection up for good once its peer has broken the protocol."""
    monkeypatch.setattr(connection, "LOST_SECONDS", 0.2, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        monitor = attach(network, sgd(network), endpoint=f"tcp://127.0.0.1:{port}")
        peer, _ = stranger.accept()
        with peer:
            peer.settimeout(10)
            peer.sendall(GREETING + b"\xff" * 64)
            while peer.recv(1000):  # until the agent has closed it
                pass
    monitor.step(1.0)
    with collector(f"tcp://127.0.0.1:{port}") as daemon:
        assert daemon.wait_for(StepReport, 1, timeout=15)


def test_a_refusal_is_logged_once_and_the_agent_goes_quiet(
    attach: Attach, network: torch.nn.Module, listening: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint)
    wait_until(lambda: listening.hellos, 5)
    with caplog.at_level(logging.WARNING, logger="caboose"):
        for _ in range(3):
            listening.say(Refused(reason="duplicate_job", detail="set CABOOSE_JOB"))
        assert wait_until(lambda: "set CABOOSE_JOB" in caplog.text, 5)
        time.sleep(0.2)
    assert caplog.text.count("set CABOOSE_JOB") == 1
    before = len(listening.reports)
    monitor.step(1.0)
    time.sleep(0.3)
    assert len(listening.reports) == before


def test_garbage_from_the_daemon_is_ignored(
    attach: Attach, network: torch.nn.Module, listening: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint)
    wait_until(lambda: listening.hellos, 5)
    for frames in ([b""], [b"\x01\x42", b"\xff" * 100], [b"\x09\x01", b""], [os.urandom(50)] * 5):
        listening.say_raw(frames)
    time.sleep(0.2)
    monitor.step(3.0)
    assert listening.wait_for(StepReport)[0].loss == 3.0


EXIT_SCRIPT = """
import atexit, sys, time
atexit.register(lambda: print(time.monotonic(), flush=True))  # registered first: called last
import torch, caboose
model = torch.nn.Linear(2, 2)
monitor = caboose.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), job="exit")
for _ in range(5000):
    monitor.step(1.0)
print(time.monotonic(), flush=True)
if sys.argv[1] == "raise":
    raise RuntimeError("the user's own error")
"""


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("raise", 1)])
def test_a_script_exits_as_it_would_and_within_a_second(how: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(EXIT_SCRIPT)
    endpoint = f"tcp://127.0.0.1:{a_free_port()}"
    done = subprocess.run(
        [sys.executable, str(script), how],
        env=clean_environment(CABOOSE_ENDPOINT=endpoint),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert ("the user's own error" in done.stderr) == (how == "raise")
    lines = done.stderr.replace("import", "").split("Traceback")[0].splitlines()
    assert [line for line in lines if "caboose" in line and "no daemon answers" not in line] == []
    ended, closed = map(float, done.stdout.split())
    assert closed - ended < 1.5, "nine tenths of a second, and what a busy machine adds"


def test_dataloader_workers_do_not_disturb_the_parents_reports(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for (batch,) in monitor.watch(loader):
            monitor.step(network(batch).sum())
    reports = listening.wait_for(StepReport, 16)
    assert [r.seq for r in reports] == list(range(1, 17))
    assert len(listening.hellos) == 1


def test_a_forked_child_is_silent_and_its_parent_goes_on(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    monitor = attach(network, sgd(network), endpoint=listening.endpoint)
    wait_until(lambda: listening.hellos, 5)
    child = os.fork()
    if child == 0:
        monitor.step(666.0)
        monitor.close()
        os._exit(0 if not monitor.is_active else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    monitor.step(1.0)
    assert [r.loss for r in listening.wait_for(StepReport)] == [1.0]
