"""A daemon's end of the wire that only listens: collects what real agents send, and says what a test tells it to."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import zmq

from caboose_wire import Command, Hello, Message, StepReport, decode, encode, sign
from caboose_wire.private_files import read_or_make, user_secret_path

M = TypeVar("M")


def user_secret() -> bytes:
    """The secret that a daemon of this user signs with."""
    path = user_secret_path(os.environ)
    assert path is not None, "tests set XDG_STATE_HOME"
    return read_or_make(path)


class Collector:
    """A bound ROUTER on a thread of its own."""

    def __init__(self, endpoint: str = "tcp://127.0.0.1:0") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.messages: list[Message] = []
        self.by_peer: list[tuple[bytes, Message]] = []
        self._peers: set[bytes] = set()
        self._outbox: list[list[bytes]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            while self._outbox:
                frames = self._outbox.pop(0)
                for peer in self._peers:
                    self._socket.send_multipart([peer, *frames])
            if self._socket.poll(10):
                peer, *frames = self._socket.recv_multipart()
                self._peers.add(peer)
                message = decode(frames)
                self.messages.append(message)
                self.by_peer.append((peer, message))

    def say(self, message: Message) -> None:
        """Sends a message to every agent that has spoken; a command is signed as this user's daemon signs it."""
        if isinstance(message, Command) and not message.mac:
            message = sign(message, user_secret())
        self._outbox.append(encode(message))

    def say_raw(self, frames: list[bytes]) -> None:
        """Sends whatever bytes to every agent that has spoken."""
        self._outbox.append(frames)

    def wait_for(self, kind: type[M], count: int = 1, timeout: float = 10.0) -> list[M]:
        """The messages of a kind, once there are so many."""
        deadline = time.monotonic() + timeout
        while len(found := [m for m in self.messages if isinstance(m, kind)]) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} {kind.__name__} came: {self.messages[-3:]}"
            time.sleep(0.01)
        return found

    @property
    def reports(self) -> list[StepReport]:
        """The step reports so far."""
        return [m for m in self.messages if isinstance(m, StepReport)]

    @property
    def hellos(self) -> list[Hello]:
        """The introductions so far."""
        return [m for m in self.messages if isinstance(m, Hello)]

    def close(self) -> None:
        """Ends the thread and the socket."""
        self._stopping.set()
        self._thread.join(5)
        self._socket.close()
        self._context.term()


@contextlib.contextmanager
def collector(endpoint: str = "tcp://127.0.0.1:0") -> Iterator[Collector]:
    """A collector, closed with the block."""
    made = Collector(endpoint)
    try:
        yield made
    finally:
        made.close()
