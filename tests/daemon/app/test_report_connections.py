"""The report port's connections, on real sockets; only the process's memory is made up."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zmq
import zmq.auth.thread

from caboose_daemon.app.report_connections import (
    CHECK_SECONDS,
    ENOUGH,
    GROWTH_BYTES,
    SILENT_SECONDS,
    UNFINISHED_BYTES,
    Reason,
    ReportConnection,
    ReportConnections,
    ResidentBytes,
    raise_descriptor_limit,
)
from caboose_daemon.app.report_port import configure
from caboose_wire import StepReport, decode, encode
from caboose_wire.codec import MAX_ARRAYS, MAX_FRAMES
from support.processes import wait_until
from support.ranks import a_report
from support.zmtp import frame, raw_dealer


class Port:
    """A report port that nobody judges but the test: `tick` is one turn of the loop."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: tuple[bytes, bytes] | None = None) -> None:
        self.router = context.socket(zmq.ROUTER)
        configure(self.router)
        if keys is not None:
            self.router.curve_publickey, self.router.curve_secretkey = keys
            self.router.curve_server = True
        self.memory = 10**8
        self.closed: list[Reason] = []
        self.connections = ReportConnections(
            self.router, self.closed.append, lambda: self.memory, is_encrypted=keys is not None
        )
        self.router.bind("tcp://127.0.0.1:0")
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.now = time.monotonic()
        self.messages: list[list[bytes]] = []
        self.ranks: set[bytes] = set()

    def tick(self, seconds: float = CHECK_SECONDS) -> None:
        self.now += seconds
        with contextlib.suppress(zmq.Again):
            while True:
                received = self.connections.receive()
                if received is not None:
                    self.messages.append(received.frames)
        self.connections.emptied()
        self.connections.note_events(self.now)
        self.connections.check(self.now, self.ranks.__contains__)

    def look(self) -> list[ReportConnection]:
        """Every connection, after a look at it."""
        found = list(self.connections._open.values())
        for known in found:
            known.look(self.now)
        return found

    def wait_for(self, num: int) -> None:
        """Until so many messages were received."""

        def is_there() -> bool:
            self.tick(0.0)
            return len(self.messages) >= num

        assert wait_until(is_there, 10)


def is_closed(peer: socket.socket) -> bool:
    """Whether a connection was closed by the port."""
    with contextlib.suppress(ConnectionResetError):
        while peer.recv(1000):
            pass
    return True


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as context:
        yield context


@contextlib.contextmanager
def opened(context: "zmq.Context[zmq.Socket[bytes]]", keys: tuple[bytes, bytes] | None = None) -> Iterator[Port]:
    port = Port(context, keys)
    try:
        yield port
    finally:
        port.connections.stop()
        port.router.close(linger=0)


@pytest.fixture
def port(context: "zmq.Context[zmq.Socket[bytes]]") -> Iterator[Port]:
    with opened(context) as port:
        yield port


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_what_was_read_is_not_held_to_the_byte(context: "zmq.Context[zmq.Socket[bytes]]", is_encrypted: bool) -> None:
    with contextlib.ExitStack() as stack:
        keys = None
        dealer = stack.enter_context(context.socket(zmq.DEALER))
        if is_encrypted:
            authenticator = zmq.auth.thread.ThreadAuthenticator(context)
            authenticator.start()
            stack.callback(authenticator.stop)
            authenticator.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
            keys = zmq.curve_keypair()
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            dealer.curve_serverkey = keys[0]
        port = stack.enter_context(opened(context, keys))
        dealer.connect(port.endpoint)
        dealer.send(b"first")
        port.wait_for(1)
        (known,) = port.connections._open.values()
        handshake = (known.received.read() or 0) - known.delivered
        assert 0 < handshake < 1024

        sizes = [0, 1, 221, 222, 223, 254, 255, 256, 1000, 70_000]
        for num, size in enumerate(sizes * 5):
            dealer.send_multipart([bytes(size)] * (1 + num % 3))
        port.wait_for(1 + 5 * len(sizes))

        assert (known.received.read() or 0) - known.delivered == handshake
        assert [each.held for each in port.look()] == [0]


def test_an_unfinished_message_is_held_and_closed_only_once_the_memory_grows(port: Port) -> None:
    with raw_dealer(port.endpoint) as attacker, raw_dealer(port.endpoint) as honest:
        honest.sendall(frame(b"report", has_more=False))
        attacker.sendall(frame(bytes(500_000), has_more=True))
        port.wait_for(1)
        assert wait_until(lambda: max(known.held for known in port.look()) > 490_000, 5)
        for _ in range(20):
            port.tick()
        assert port.closed == []

        port.memory += GROWTH_BYTES + 1
        for _ in range(20):
            port.tick()
        assert port.closed == [], "little memory is held"

        port.memory += UNFINISHED_BYTES
        port.tick(5.0)
        assert port.closed == ["endless"]
        assert is_closed(attacker)
        honest.sendall(frame(b"report", has_more=False))
        port.wait_for(2)


def test_memory_that_grows_while_nothing_is_held_is_nobodys_fault(port: Port) -> None:
    with raw_dealer(port.endpoint) as honest:
        for num in range(1, 50):
            honest.sendall(frame(bytes(50_000), has_more=False))
            port.wait_for(num)
            port.memory += GROWTH_BYTES
            port.tick()
        assert port.closed == []


def test_a_connection_that_never_sends_a_message_is_closed_and_one_that_did_is_kept(port: Port) -> None:
    with raw_dealer(port.endpoint) as silent, raw_dealer(port.endpoint) as idle:
        idle.sendall(frame(b"once", has_more=False))
        port.wait_for(1)
        port.tick(SILENT_SECONDS - 1)
        assert port.closed == []

        port.tick(2.0)
        assert port.closed == ["silent"]
        assert is_closed(silent)
        idle.sendall(frame(b"twice", has_more=False))
        port.wait_for(2)


def test_above_the_limit_the_oldest_that_are_no_ranks_go_first(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        dealers = [stack.enter_context(raw_dealer(port.endpoint)) for _ in range(6)]
        for num, dealer in enumerate(dealers):
            dealer.sendall(frame(b"%d" % num, has_more=False))
            port.wait_for(num + 1)
        known = list(port.connections._open.values())
        port.ranks = {known[0].peer, known[1].peer}
        monkeypatch.setattr("caboose_daemon.app.report_connections.max_connections", lambda: 3)
        port.tick()

        assert port.closed == ["limit"] * 3
        assert all(is_closed(dealer) for dealer in dealers[2:5])
        assert len(port.connections) == 3


def test_a_message_of_too_many_frames_is_cut_and_the_next_is_whole(port: Port) -> None:
    with raw_dealer(port.endpoint) as peer:
        peer.sendall(frame(b"x", has_more=True) * 5000 + frame(b"", has_more=False))
        peer.sendall(frame(b"next", has_more=False))
        port.wait_for(2)
    assert [len(frames) for frames in port.messages] == [MAX_FRAMES + 1, 1]
    assert port.messages[1] == [b"next"]


def test_a_message_of_as_many_frames_as_the_wire_allows_is_whole(port: Port) -> None:
    report = a_report(arrays={str(number): np.ones(1, dtype=np.float32) for number in range(MAX_ARRAYS)})
    first, *others = encode(report)
    with raw_dealer(port.endpoint) as peer:
        peer.sendall(b"".join(frame(part, has_more=True) for part in (first, *others[:-1])))
        peer.sendall(frame(others[-1], has_more=False))
        port.wait_for(1)
    received = decode(port.messages[0])
    assert isinstance(received, StepReport)
    assert list(received.arrays) == list(report.arrays)


def test_the_memory_can_be_read_without_a_free_descriptor() -> None:
    resident = ResidentBytes()
    try:
        assert resident.read() > 10**7
    finally:
        resident.close()
    assert resident.read() == 0


@pytest.mark.parametrize(("soft", "hard", "expected"), [(64, 500, 500), (64, 10**6, ENOUGH), (300_000, 10**6, 300_000)])
def test_the_limit_of_descriptors_is_raised_as_far_as_is_useful(
    soft: int, hard: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: found.append(limits))
    raise_descriptor_limit()

    assert found == ([] if expected == soft else [(expected, hard)])
