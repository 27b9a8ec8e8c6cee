"""Ten thousand steps beside a daemon that is hung, gone or mad: the run is as it would have been."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from support.processes import clean_environment, running_daemon
from support.rogue import rogue
from support.training import JOBS

pytestmark = pytest.mark.slow


def train(endpoint: str, **env: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(JOBS / "long.py")],
        env=clean_environment(CABOOSE_ENDPOINT=endpoint, **env),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def bare() -> dict[str, Any]:
    return train("tcp://127.0.0.1:9", CABOOSE_DISABLED="1")


@contextmanager
def hung(directory: Path) -> Iterator[str]:
    """A daemon that was stopped in the middle of its work."""
    with running_daemon(directory) as daemon:
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            yield daemon.endpoint
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)


@contextmanager
def gone(_directory: Path) -> Iterator[str]:
    """A host that does not answer: nobody listens there."""
    yield "tcp://127.0.0.1:9"


@contextmanager
def mad(_directory: Path) -> Iterator[str]:
    """Something that answers every message with garbage."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind("tcp://127.0.0.1:0")
    stopping = threading.Event()

    def answer() -> None:
        while not stopping.is_set():
            if socket.poll(50):
                peer = socket.recv_multipart()[0]
                for frames in ([os.urandom(64)], [b"\x01\x43", os.urandom(200)], [b""] * 7):
                    socket.send_multipart([peer, *frames])

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield socket.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        stopping.set()
        thread.join(5)
        socket.close()
        context.term()


@contextmanager
def flooding(_directory: Path) -> Iterator[str]:
    """Something that sends frames of one message without end."""
    with rogue() as daemon:
        yield daemon.endpoint


@pytest.mark.parametrize("daemon", [hung, gone, mad, flooding])
def test_losses_are_bit_identical_memory_is_flat_and_calls_are_short(
    daemon: Any, bare: dict[str, Any], tmp_path: Path
) -> None:
    with daemon(tmp_path) as endpoint:
        found = train(endpoint)
    assert found["losses"] == bare["losses"]
    half, full = found["sizes"]
    assert full < half * 1.02
    assert found["p99"] < 0.003, "of CPU time"
