"""Drives the receiver: the thread that owns the ROUTER socket, and the only writer of the state.

Design
------
One turn: take the messages that arrived (bounded, so that timers also run under load), run the timers, commit the
journal, post the live updates, and only then send commands, so every sent command is in the journal. The socket is
MANDATORY, so a reply to a peer that is gone is an error here and not a silent loss; a reply that cannot be sent is
dropped, and the peer asks again. A rank that a command could not be sent to is recorded; it gets the command from the
other ranks.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq
import zmq.auth.thread

from caboose_daemon.app.flood_watch import Connection, FloodWatch
from caboose_daemon.app.key_watch import KeyWatch
from caboose_daemon.app.keys import DaemonKeys
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.ingest.receiver import Receiver
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.live import Broker
from caboose_daemon.out.export.exports import Exports
from caboose_daemon.rollback.commander import QueuedCommand
from caboose_daemon.rollback.policy import Policy
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.store.journal import Journal
from caboose_wire import Event, Message, encode
from caboose_wire.codec import MAX_FRAME_BYTES

logger = logging.getLogger("caboose.daemon")

POLL_MS = 100
MAX_PER_TURN = 500
FAILED_SECONDS = 0.1
"""Pause after a turn that failed as a whole."""


class DaemonSink(Sink):
    """The pipeline's sink in a running daemon: forwards to the journal, open pages and the exports."""

    def __init__(self, journal: Journal, broker: Broker, exports: Exports | None = None) -> None:
        self._journal = journal
        self._broker = broker
        self._exports = exports or Exports()
        self._updates: list[tuple[str, str, Any]] = []

    def attempt_began(self, job: Job) -> None:
        self._journal.attempt_began(job)
        self._exports.attempt_began(job)
        self._updates.append((job.name, "attempt", {"attempt": job.num_attempts}))

    def member_changed(self, job: Job, member: Member) -> None:
        """Journal only; pages get ranks from the regular status."""
        self._journal.member_changed(job, member)

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        self._journal.step_closed(job, summary)
        self._exports.step_closed(job, summary)
        if self._broker.has_listeners:
            self._updates.append((job.name, "step", json_shapes.step(summary)))
            if job.meters.sample is not None:
                self._updates.append((job.name, "sample", {"attempt": summary.attempt, "step": summary.step}))

    def episode_changed(self, job: Job, episode: Episode) -> None:
        self._journal.episode_changed(job, episode)
        if self._broker.has_listeners:
            self._updates.append((job.name, "finding", json_shapes.episode(episode)))

    def incident_changed(self, job: Job, incident: Incident) -> None:
        self._journal.incident_changed(job, incident)
        self._exports.incident_changed(job, incident)
        if self._broker.has_listeners:
            self._updates.append((job.name, "incident", json_shapes.incident(incident)))

    def event_declared(self, job: Job, event: Event) -> None:
        self._journal.event_declared(job, event)
        self._exports.event_declared(job, event)
        self._updates.append((job.name, "event", json_shapes.event(event)))

    def decision_changed(self, job: Job, decision: Decision) -> None:
        self._journal.decision_changed(job, decision)
        self._exports.decision_changed(job, decision)
        self._updates.append((job.name, "decision", json_shapes.decision(decision)))

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        self._journal.ledger_changed(job, entry)
        self._updates.append((job.name, "ledger", json_shapes.entry(entry)))

    def flush(self, now: float) -> None:
        """Ends a turn: commits the journal and posts live updates."""
        self._journal.commit(now)
        updates, self._updates = self._updates, []
        self._broker.post(updates)


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
    ) -> None:
        self._state = state
        self._receiver = receiver
        self._pipeline = pipeline
        self._policy = policy
        self._sink = sink
        self._clock = clock
        self._context = zmq.Context()
        self._authenticator: zmq.auth.thread.ThreadAuthenticator | None = None
        self._keys: KeyWatch | None = None
        self._port = 0
        self._socket = self._context.socket(zmq.ROUTER)
        self._configure(keys)
        self._floods = FloodWatch(self._closed_endless)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caboose-loop")
        self.failure: BaseException | None = None

    def _configure(self, keys: DaemonKeys | None) -> None:
        socket = self._socket
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RCVHWM, 1_000)
        socket.setsockopt(zmq.SNDHWM, 1_000)
        socket.setsockopt(zmq.BACKLOG, 4096)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6_000)
        if keys is not None:
            self._authenticator = zmq.auth.thread.ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._keys = KeyWatch(keys.agents_dir)
            self._authenticator.configure_curve_callback(domain="*", credentials_provider=self._keys)
            socket.curve_publickey = keys.public
            socket.curve_secretkey = keys.secret
            socket.curve_server = True

    def bind(self, endpoint: str) -> str:
        """Binds and returns the real endpoint (port 0 becomes a free one)."""
        if endpoint.startswith("tcp://["):
            self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.bind(endpoint)
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = int(bound.rpartition(":")[2])
        self._floods.listen_on(self._port)
        return bound

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

    def _turn(self) -> None:
        has_messages = self._socket.poll(POLL_MS)
        start = time.perf_counter()
        if not has_messages:
            self._floods.emptied()
        else:
            with self._state.lock:
                self._take(self._clock())
        with self._state.lock:
            now = self._clock()
            self._floods.check(now)
            if self._keys is not None:
                self._receiver.forget(self._keys.check(now, self._port), now)
            for peer, message in self._receiver.advance(now):
                self._send(peer, message, now)
            self._pipeline.advance(now)
            for job, terms in self._policy.advance(now):
                with self._state.guard.watch("send", job, now):
                    self._send_all(job, encode(terms))
            self._sink.flush(now)
            for item in self._policy.commander.take(is_journaled=not self._state.journal_error):
                with self._state.guard.watch("send", item.job, now):
                    self._command(item)
            self._state.turn_seconds = time.perf_counter() - start

    def _take(self, now: float) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                (peer, *frames), key = self._receive()
            except zmq.Again:
                self._floods.emptied()
                return
            for to, message in self._receiver.handle(peer, frames, now, key):
                self._send(to, message, now)

    def _receive(self) -> tuple[list[bytes], str]:
        """The next message, with its peer in front, and the key of its connection; empty without keys."""
        if self._keys is not None:
            return self._keys.receive(self._socket, self._floods.delivered if self._floods.is_searching else None)
        if self._floods.is_searching:
            return self._floods.receive(self._socket), ""
        return self._socket.recv_multipart(flags=zmq.NOBLOCK), ""

    def _closed_endless(self, connection: Connection) -> None:
        self._state.num_refused["endless"] += 1
        logger.warning(
            "closed the connection of %s: it sent %d MB without the end of a message",
            connection.peer,
            connection.received // 1_000_000,
        )

    def _send(self, peer: bytes, message: Message, now: float) -> None:
        """Sends a reply; one that cannot be encoded is dropped and counted."""
        with self._state.guard.watch("encode", None, now):
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

    def _reply(self, peer: bytes, frames: list[bytes]) -> bool:
        """Whether it was sent; a peer that is gone or not reading asks again."""
        try:
            self._socket.send_multipart([peer, *frames], flags=zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._receiver.unreachable(peer)
            return False
        return True

    def stop(self) -> None:
        """Ends the thread after its current turn and closes the socket."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._socket.close(linger=0)
        self._context.term()
