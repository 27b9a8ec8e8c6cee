"""A network between the ranks and the daemon that can be cut, stalled, made to lose messages, or to forge them.

Design
------
A TCP proxy with one thread per direction of each connection. It reads ZMTP far enough to know where a message begins
and ends, so that it can lose or insert whole messages, and recognises what a test needs to see: Hellos and answers on
their way up, commands on their way down. Bytes that are not a complete message are never held back but in a stall. The
daemon may be gone or restarted at any time: each new connection of a rank is connected to where the daemon is now.

Commands can be held until a condition holds. The thread of that connection waits, so what the daemon sends afterwards
stays behind it, as on a slow network.
"""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from caboose_wire import Ack, Command, Hello, Message, WireError, decode
from support.zmtp import LONG, MORE, frame

GREETING_BYTES = 64
ZMTP_COMMAND = 4
WATCHED = (Hello, Ack, Command)
HELD_SECONDS = 10.0
AFTER_SECONDS = 0.7
"""What comes after a held message comes later, also the end of the connection: a rank reads twice a second, and libzmq
drops what was not read when a connection ends."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a closed connection is reset, not ended."""


class Framing:
    """Cuts a byte stream into whole messages: yields (raw bytes, frames); frames are empty for ZMTP's own commands."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._raw = bytearray()
        self._frames: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
        self._buffer += data
        while (size := self._head()) is not None:
            flags, start, length = size
            if len(self._buffer) < start + length:
                return
            self._raw += self._buffer[: start + length]
            body = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            if not flags & ZMTP_COMMAND:
                self._frames.append(body)
            if not flags & MORE:
                yield bytes(self._raw), self._frames
                self._raw, self._frames = bytearray(), []

    def _head(self) -> tuple[int, int, int] | None:
        """Flags, bytes of the head, bytes of the body."""
        if len(self._buffer) < 2:
            return None
        flags = self._buffer[0]
        if not flags & LONG:
            return flags, 2, self._buffer[1]
        if len(self._buffer) < 9:
            return None
        return flags, 9, struct.unpack_from(">Q", self._buffer, 1)[0]


class Link:
    """One connection of a rank, and its other half to the daemon."""

    def __init__(self, proxy: "Proxy", rank: socket.socket, daemon: socket.socket) -> None:
        self._proxy = proxy
        self._rank, self._daemon = rank, daemon
        self._sending = threading.Lock()
        self.is_ready = False
        """Whether the daemon's handshake went through, so that messages may be inserted."""
        self._threads = [
            threading.Thread(target=self._pump, args=(rank, daemon, True), daemon=True),
            threading.Thread(target=self._pump, args=(daemon, rank, False), daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        framing, greeting = Framing(), GREETING_BYTES
        try:
            while data := source.recv(65_536):
                self._proxy.wait_for_flow()
                if greeting:
                    self._send(sink, data[:greeting], is_up)
                    data, greeting = data[greeting:], max(0, greeting - len(data))
                for raw, frames in framing.feed(data):
                    if self._proxy.passes(frames, is_up):
                        self._send(sink, raw, is_up)
                    if self._proxy.is_holding and frames and not is_up:
                        time.sleep(AFTER_SECONDS)
                    self.is_ready |= not is_up
        except OSError:
            pass
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR if is_up else socket.SHUT_RDWR)
        if not is_up:
            with contextlib.suppress(OSError):
                source.shutdown(socket.SHUT_RDWR)
            self._proxy.forget(self)

    def _send(self, sink: socket.socket, data: bytes, is_up: bool) -> None:
        if is_up:
            sink.sendall(data)
            return
        with self._sending:
            sink.sendall(data)

    def insert(self, data: bytes) -> None:
        """Bytes to the rank that the daemon never sent, between two messages."""
        if self.is_ready:
            with contextlib.suppress(OSError), self._sending:
                self._rank.sendall(data)

    def cut(self, *, is_reset: bool) -> None:
        for each in (self._rank, self._daemon):
            with contextlib.suppress(OSError):
                if is_reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(5)
        self._rank.close()
        self._daemon.close()


class Proxy:
    """The network. `target` is the daemon's endpoint; None while there is none."""

    def __init__(self, seed: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.target: str | None = None
        self.seen: list[tuple[float, Message]] = []
        """Hellos, answers and commands that passed, with the monotonic time."""
        self.loss = 0.0
        """The share of messages that are lost, both ways."""
        self._random = random.Random(seed)
        self._links: list[Link] = []
        self._old: list[Link] = []
        self._is_cut = False
        self._is_closed = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._may_pass: Callable[[Command], bool] | None = None
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    # What a fault does

    def cut(self, *, is_reset: bool) -> None:
        """Ends every connection; new ones end at once until `mend`."""
        self._is_cut = True
        for link in list(self._links):
            link.cut(is_reset=is_reset)

    def mend(self) -> None:
        self._is_cut = False

    def stall(self) -> None:
        """Nothing passes until `flow`; connections stay."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def hold_commands(self, until: Callable[[Command], bool] | None) -> None:
        """From now on a command waits until its condition holds, at most some seconds; None: no more."""
        self._may_pass = until

    def insert(self, frames: list[bytes]) -> None:
        """A whole message to every rank, as if the daemon had sent it."""
        last = len(frames) - 1
        raw = b"".join(frame(body, has_more=index < last) for index, body in enumerate(frames))
        self.insert_raw(raw)

    def insert_raw(self, data: bytes) -> None:
        """Bytes to every rank, whatever they are."""
        for link in list(self._links):
            link.insert(data)

    @property
    def is_holding(self) -> bool:
        return self._may_pass is not None

    # What was seen

    def commands(self) -> list[Command]:
        """The daemon's own commands, each once."""
        found = {(m.group, m.number): m for _, m in list(self.seen) if isinstance(m, Command)}
        return list(found.values())

    def hellos(self) -> list[Hello]:
        return [m for _, m in list(self.seen) if isinstance(m, Hello)]

    # Called by the links

    def wait_for_flow(self) -> None:
        while not self._flowing.wait(0.1):
            if self._is_closed:
                return

    def passes(self, frames: list[bytes], is_up: bool) -> bool:
        """Whether a message goes on; keeps what is of interest, and waits with a command that is held."""
        if not frames:
            return True
        is_lost = self.loss > 0 and self._random.random() < self.loss
        try:
            message = decode(frames) if frames[0][1:2] in _CODES else None
        except WireError:
            message = None
        if isinstance(message, WATCHED) and not is_lost:
            self.seen.append((time.monotonic(), message))
        if isinstance(message, Command) and self._may_pass is not None:
            self._hold(message, self._may_pass)
        return not is_lost

    def _hold(self, command: Command, may_pass: Callable[[Command], bool]) -> None:
        deadline = time.monotonic() + HELD_SECONDS
        while not (self._is_closed or self._is_cut or may_pass(command)) and time.monotonic() < deadline:
            time.sleep(0.005)

    def forget(self, link: Link) -> None:
        with contextlib.suppress(ValueError):
            self._links.remove(link)
            self._old.append(link)

    # Its own

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                daemon = None if self._is_cut else self._reach()
                if daemon is None:
                    connection.close()
                    continue
                link = Link(self, connection, daemon)
                self._links.append(link)
                link.start()

    def _reach(self) -> socket.socket | None:
        target = self.target
        if target is None:
            return None
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        try:
            return socket.create_connection((host, int(port)), timeout=None)
        except OSError:
            return None

    def close(self) -> None:
        self._is_closed = True
        self._flowing.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut(is_reset=True)
        self._thread.join(5)
        for link in (*self._links, *self._old):
            link.close()


_CODES = {bytes((code,)) for code in (1, 6, 65)}
"""Hello, Ack and Command: all others pass undecoded."""


@contextlib.contextmanager
def network(seed: int) -> Iterator[Proxy]:
    """A proxy, closed with the block."""
    made = Proxy(seed)
    try:
        yield made
    finally:
        made.close()
