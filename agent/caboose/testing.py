"""For tests of programs that use Caboose: a stand-in for the daemon that keeps the messages.

    with caboose.testing.recording() as record:
        train()                                    # attaches as it always does
    assert [step.loss for step in record.steps] == ...

Needs no daemon and no torch. A thread reads a ROUTER socket on a free loopback port; within the block the environment
directs every agent of this process and its children there. An agent gives its last reports only a moment, which a busy
machine may miss; in this process, within the block, they get `PATIENCE_SECONDS`.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import zmq

from caboose.report import sender
from caboose_wire import Bye, Event, Hello, Message, StepReport, WireError, decode

__all__ = ["Recording", "recording"]

PATIENCE_SECONDS = 5.0
"""How long the end of the block waits for agents to finish."""
QUIET_SECONDS = 0.5
"""Agents that sent something, but nothing for so long, are not waited for: nothing closes them."""
OVERRULED = ("CABOOSE_DISABLED", "CABOOSE_SERVER_KEY", "CABOOSE_AGENT_KEY")


class Recording:
    """The messages received so far; made by `recording`."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:0")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The address; `CABOOSE_ENDPOINT` is set to it."""
        self._received: list[tuple[bytes, Message]] = []
        self._arrived = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="caboose-recording", daemon=True)
        self._thread.start()

    @property
    def steps(self) -> list[StepReport]:
        """Every step report, in the order of arrival."""
        return [message for _, message in list(self._received) if isinstance(message, StepReport)]

    def steps_of(self, rank: int) -> list[StepReport]:
        """The step reports of one rank."""
        received = list(self._received)
        peers = {peer for peer, message in received if isinstance(message, Hello) and message.rank == rank}
        return [message for peer, message in received if peer in peers and isinstance(message, StepReport)]

    @property
    def hello(self) -> Hello:
        """The first agent's Hello: job, rank, layers, parameter groups; LookupError if there is none yet."""
        for _, message in list(self._received):
            if isinstance(message, Hello):
                return message
        raise LookupError("no agent has sent a Hello; was caboose.attach called inside the recording?")

    @property
    def hellos(self) -> list[Hello]:
        """Every Hello."""
        return [message for _, message in list(self._received) if isinstance(message, Hello)]

    @property
    def events(self) -> list[Event]:
        """Every event: validations, checkpoints, and the program's own."""
        return [message for _, message in list(self._received) if isinstance(message, Event)]

    @property
    def byes(self) -> list[Bye]:
        """Every Bye; its `error` names the exception that ended the run, if one did."""
        return [message for _, message in list(self._received) if isinstance(message, Bye)]

    def wait_for_steps(self, count: int, timeout: float = 10.0) -> list[StepReport]:
        """The step reports, once there are `count` of them; TimeoutError after `timeout` seconds."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.steps) >= count, timeout):
                raise TimeoutError(f"{len(self.steps)} of {count} step reports came within {timeout:g} s")
        return self.steps

    def _listen(self) -> None:
        while not self._stopping.is_set():
            if not self._socket.poll(20):
                continue
            peer, *frames = self._socket.recv_multipart()
            try:
                message = decode(frames)
            except WireError:  # a daemon drops such a frame too
                continue
            with self._arrived:
                self._received.append((peer, message))
                self._arrived.notify_all()

    def _close(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._arrived:
            while not self._is_complete() and time.monotonic() < deadline:
                heard = len(self._received)
                self._arrived.wait(QUIET_SECONDS)
                if 0 < heard == len(self._received):
                    break
        self._stopping.set()
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _is_complete(self) -> bool:
        is_sending = any(thread.name == "caboose-sender" for thread in threading.enumerate())
        return len(self.byes) >= len(self.hellos) and (bool(self.hellos) or not is_sending)


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Receives in the daemon's place within the block; the result can be read during it and after it."""
    record = Recording()
    names = ("CABOOSE_ENDPOINT", *OVERRULED)
    before = {name: os.environ.get(name) for name in names}
    for name in OVERRULED:
        os.environ.pop(name, None)
    os.environ["CABOOSE_ENDPOINT"] = record.endpoint
    usual, sender.FLUSH_SECONDS = sender.FLUSH_SECONDS, PATIENCE_SECONDS
    try:
        yield record
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        record._close()  # noqa: SLF001 - only the block that opened it closes it
        sender.FLUSH_SECONDS = usual
