"""Drives the receiver: the thread that owns the ROUTER socket, and the only writer of the state.

Design
------
One turn: HTTP writes, the messages that arrived (bounded, so that timers also run under load), the timers, then the
live updates, and only then commands, so every sent command is in the journal, on disk. After it the loop rests for two
to ten milliseconds, unless messages wait: a turn costs as much as several reports, and many ranks report one by one.
While messages wait, time stands still for deadlines and silent ranks. The loop holds the state's lock while it changes
the state and commits before it releases it, so that nobody reads what a kill would lose. Between two messages or jobs
it lets those in who wait (`_step_aside`): a reader or an HTTP write waits for one of them at most.
Updates that could not be committed (a full disk) are posted with `"is_committed": false`: watching goes on.

The socket is MANDATORY, so a reply to a peer that is gone is an error here and not a silent loss; a reply that cannot
be sent is dropped, and the peer asks again. A rank that a command could not be sent to is recorded; it gets the command
from the other ranks.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from socket import socketpair

import zmq

from caboose_daemon.app.keys import DaemonKeys
from caboose_daemon.app.report_connections import Reason, Received
from caboose_daemon.app.report_port import ReportPort
from caboose_daemon.app.sinks import DaemonSink
from caboose_daemon.ingest.receiver import MAX_DETAIL, Receiver, Reply
from caboose_daemon.ingest.relays import Relays
from caboose_daemon.ingest.verdicts import Verdicts
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.out.web.writes import Write, Writes
from caboose_daemon.rollback.commander import QueuedCommand
from caboose_daemon.rollback.policy import Policy
from caboose_wire import Message, Refused, Welcome, WireError, encode
from caboose_wire.bundles import UP_START

logger = logging.getLogger("caboose.daemon")

POLL_MS = 100
MAX_PER_TURN = 500
"""Messages, each report of a message counted."""
REST_SECONDS = 0.002
"""Pause after a turn that read all messages: the ranks then share a turn, and what it costs."""
REST_PER_RANK = 20e-6
MAX_REST_SECONDS = 0.01
"""Of 500 ranks and more that report one by one: a turn costs as much as the reports of several."""
MAX_BEHIND_SECONDS = 60.0
"""Messages that wait for longer than this do not keep ranks from being found late or silent."""
LATE_SECONDS = 5.0
"""Messages that wait for this long are logged."""
LOG_SECONDS = 60.0
FAILED_SECONDS = 0.1
"""Pause after a turn that failed as a whole."""


class Loop:
    """The receiving thread."""

    def __init__(
        self,
        state: State,
        receiver: Receiver,
        pipeline: Pipeline,
        policy: Policy,
        sink: DaemonSink,
        *,
        keys: DaemonKeys | None = None,
        clock: Callable[[], float],
        writes: Writes | None = None,
    ) -> None:
        self._state = state
        self._receiver = receiver
        self._relays = Relays(state.relays)
        self._pipeline = pipeline
        self._policy = policy
        self._verdicts = Verdicts(state)
        self._sink = sink
        self._clock = clock
        self._context = zmq.Context()
        self._port = ReportPort(self._context, keys, self._closed)
        self._socket, self._connections, self._keys = self._port.socket, self._port.connections, self._port.keys
        self._writes = writes or Writes()
        self._bell, self._rope = socketpair()
        """Rung by the HTTP thread: the loop wakes."""
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._writes.wake = self._ring
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell.fileno(), zmq.POLLIN)
        self._poller.register(self._connections.monitor, zmq.POLLIN)
        self._read_until = 0.0
        """When no message was left to read for the last time."""
        self._judging_seconds = 0.0
        """Of the last turn. While a job has more steps waiting than its share, messages are read for as long: the
        verdicts on its neighbours wait for the end of the turn."""
        self._next_log = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caboose-loop")
        self.failure: BaseException | None = None

    def bind(self, endpoint: str) -> str:
        """Binds and returns the real endpoint (port 0 becomes a free one)."""
        return self._port.bind(endpoint)

    def start(self) -> None:
        self._thread.start()

    def reload_keys(self) -> None:
        """Reads the authorised keys again at the next turn."""
        if self._keys is not None:
            self._keys.ask()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._guarded_turn()
        except BaseException as error:
            logger.exception("the receiving loop failed")
            self.failure = error

    def _guarded_turn(self) -> None:
        """One turn; a failure outside of any job's guard is counted, and the loop pauses before it goes on."""
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - see jobs/job_guard
            with self._state.lock:
                self._state.guard.failed("loop", None, error, self._clock())
            self._stopping.wait(FAILED_SECONDS)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it is ringing; closed: the daemon ends
            self._rope.send(b"\0")

    def _turn(self) -> None:
        ready = dict(self._poller.poll(0 if self._pipeline.is_crowded else POLL_MS))
        start = time.perf_counter()
        if self._bell.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(4096)
        if self._connections.monitor in ready:
            self._connections.note_events(time.monotonic())
        self._perform_writes()
        began_to_read = self._clock()
        if self._socket in ready:
            with self._holding():
                self._take(began_to_read)
        with self._holding():
            now = self._clock()
            if self._socket not in ready:
                self._note_empty(now)
            read_until = self._note_behind(now)
            self._connections.check(time.monotonic(), self._knows)  # the state's clock may be set
            if self._keys is not None:
                revoked = self._keys.check(now, self._connections)
                self._receiver.forget([rank for peer in revoked for rank in (peer, *self._relays.closed(peer))], now)
            for peer, message in self._receiver.advance(now):
                self._send(peer, message, now)
            began = time.perf_counter()
            self._pipeline.advance(now, self._step_aside, read_until=read_until)
            self._judging_seconds = time.perf_counter() - began
            for job, terms in self._policy.advance(now, self._step_aside):
                with self._state.guard.watch("send", job, now):
                    self._send_all(job, encode(terms))
            for job, verdict in self._verdicts.changed(now):
                with self._state.guard.watch("send", job, now):
                    self._send_to_first(job, verdict)
        self._sink.post(now)
        with self._holding():
            for item in self._policy.commander.take(is_journaled=not self._state.journal_error):
                with self._state.guard.watch("send", item.job, now):
                    self._command(item)
            self._send_bundles()
            self._state.turn_seconds = time.perf_counter() - start
        if self._socket in ready and self._read_until >= began_to_read and not self._pipeline.is_crowded:
            self._stopping.wait(self._rest_seconds)

    @property
    def _rest_seconds(self) -> float:
        """Relays bring the reports of many ranks together already."""
        num_ranks = self._state.num_peers - self._state.relays.num_ranks
        return min(MAX_REST_SECONDS, max(REST_SECONDS, REST_PER_RANK * num_ranks))

    def _note_behind(self, now: float) -> float:
        """The time until which all messages have been read; a daemon that cannot keep up is logged as such."""
        if not self._read_until:
            self._read_until = now
        behind = self._state.behind_seconds = max(0.0, now - self._read_until)
        if behind > LATE_SECONDS and now >= self._next_log:
            self._next_log = now + LOG_SECONDS
            logger.warning(
                "this daemon cannot keep up: messages have been waiting for %.0f s, so verdicts are late; give it more "
                "CPU time, or split the jobs over several daemons",
                behind,
            )
        return min(now, max(self._read_until, now - MAX_BEHIND_SECONDS))

    @contextlib.contextmanager
    def _holding(self) -> Iterator[None]:
        """Holds the state's lock, and commits before it is released."""
        with self._state.lock:
            try:
                yield
            finally:
                self._sink.flush(self._clock())

    def _step_aside(self) -> None:
        """Lets readers and HTTP writes in, where some wait; called with the lock held, between two items."""
        if not (self._state.lock.is_wanted or self._writes.is_waiting):
            return
        self._sink.flush(self._clock())
        self._state.lock.release()
        try:
            self._perform_writes()
        finally:
            self._state.lock.acquire()

    def _perform_writes(self) -> None:
        while (write := self._writes.take()) is not None:
            if not write.begin():
                continue  # it was withdrawn
            try:
                self._perform(write)
            except Exception as error:
                logger.exception("an HTTP write failed")
                write.answered.set_exception(error)

    def _perform(self, write: Write) -> None:
        """Commits a write, then makes its change, then answers it."""
        now = self._clock()
        if self._state.journal_error:
            self._sink.flush(now, is_forced=True)  # so that it is not refused for a reason that is gone
        with self._state.lock:
            prepared = write.prepare()
        if prepared.change is not None:
            problem = self._sink.write(prepared.change, now) if prepared.is_journaled else ""
            if problem:
                write.refuse(problem)
                return
            with self._holding():
                prepared.change.apply()
        write.answered.set_result(prepared.answer)

    def _note_empty(self, now: float) -> None:
        """No message is left to read, so who closed its connection is gone."""
        self._read_until = now
        for peer in self._connections.emptied():
            self._closed_by_peer(peer)

    def _closed_by_peer(self, peer: bytes) -> None:
        self._receiver.unreachable(peer)
        for rank in self._relays.closed(peer):
            self._receiver.unreachable(rank)

    def _knows(self, peer: bytes) -> bool:
        return self._receiver.knows(peer) or self._relays.knows(peer)

    def _take(self, now: float) -> None:
        last = self._receiver.num_applied + MAX_PER_TURN
        until = time.perf_counter() + (self._judging_seconds if self._pipeline.is_crowded else math.inf)
        for _ in range(MAX_PER_TURN):
            if self._receiver.num_applied >= last or time.perf_counter() >= until:
                return
            try:
                received = self._connections.receive()
            except zmq.Again:
                self._note_empty(now)
                return
            if received is not None:
                self._handle(received, now)
            self._step_aside()

    def _handle(self, received: Received, now: float) -> None:
        key = self._port.key_of(received)
        if key is None:
            return  # it was revoked
        if received.frames[:1] == [UP_START]:
            self._handle_bundle(received, now, key)
        else:
            self._answer(self._receiver.handle(received.peer, received.frames, now, key), now)

    def _handle_bundle(self, received: Received, now: float, key: str) -> None:
        """What a relay sends, each message as if it had come alone."""
        self._state.num_bytes += sum(map(len, received.frames))
        try:
            arrivals = self._relays.receive(received.peer, received.frames, key, now)
        except WireError as error:
            self._state.num_refused[error.reason] += 1
            self._send(received.peer, Refused(reason=error.reason, detail=error.detail[:MAX_DETAIL]), now)
            return
        self._state.num_frames["Bundle"] += 1
        for one in arrivals:
            if one.frames:
                replies = self._receiver.handle_whole(one.peer, one.frames, one.size, now, one.key, one.tables)
                self._answer(replies, now)
            else:
                self._receiver.unreachable(one.peer)

    def _answer(self, replies: Sequence[Reply], now: float) -> None:
        for to, message in replies:
            self._send(to, message, now)
            if isinstance(message, Welcome):
                self._verdicts.hurry()

    def _closed(self, reason: Reason) -> None:
        self._state.num_refused[reason] += 1

    def _send(self, peer: bytes, message: Message, now: float) -> None:
        """Sends a reply; one that cannot be encoded is dropped and counted."""
        with self._state.guard.watch("encode", None, now):
            self._reply(peer, encode(message))

    def _send_to_first(self, job: Job, message: Message) -> None:
        """Sends to rank 0."""
        member = None if job.attempt is None else job.attempt.members.get(0)
        peer = None if member is None else self._receiver.peer_of(member)
        if peer is not None:
            self._reply(peer, encode(message))

    def _command(self, item: QueuedCommand) -> None:
        command = item.command
        logger.info(
            "command %d to %s: %s at step %d (decision %d)",
            command.number,
            item.job.name,
            command.kind,
            command.boundary,
            item.decision,
        )
        unreached = self._send_all(item.job, encode(command))
        if unreached:
            self._policy.commander.unreached(item, unreached)

    def _send_all(self, job: Job, frames: list[bytes]) -> list[int]:
        """Sends to every rank whose rollback mode is not off; returns the ranks that could not be reached."""
        members = job.attempt.members if job.attempt is not None else {}
        unreached = []
        for rank, member in members.items():
            if member.hello.rollback == "off":
                continue
            peer = self._receiver.peer_of(member)
            if peer is None or not self._reply(peer, frames):
                unreached.append(rank)
        return unreached

    def _send_bundles(self) -> None:
        """Sends what was collected for the ranks behind relays; a relay that is gone takes its ranks with it."""
        for peer, frames in list(self._relays.take()):
            self._reply(peer, frames)

    def _reply(self, peer: bytes, frames: list[bytes]) -> bool:
        """Whether it was sent; a peer that is gone or not reading asks again. To relayed ranks at the turn's end."""
        if self._relays.is_relayed(peer):
            return self._relays.put(peer, frames)
        try:
            self._socket.send_multipart([peer, *frames], flags=zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._closed_by_peer(peer)
            return False
        return True

    def stop(self) -> None:
        """Ends the thread after its current turn and closes the socket."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        self._port.close()
        self._context.term()
        self._bell.close()
        self._rope.close()
