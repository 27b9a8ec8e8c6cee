"""Decodes a frame and applies it to the state: all that agents can do to the daemon.

Design
------
No socket and no loop in here: `handle` takes the bytes a peer sent and the time, and returns the replies, so every case
can be tested by calling it. Nothing is raised, whatever a peer sends: a message that is refused is counted under a
reason from a closed set, and the peer stays connected.

A peer without a Hello (the daemon was restarted, or the Hello is on its way) is asked for one. What it sends meanwhile
is held back, within bounds, and applied afterwards. A peer whose Hello claims the name of a job that other processes
report waits in the same way (see `admission`), and so do ranks that rolled back, until all have reported it. While it
waits, the ranks of that job are sent their terms every `PROBE_SECONDS`: a connection that is closed shows by that. If
they are alive for `RENAME_SECONDS`, the peer is of another run, and its job is `NAME-2`. A process that is about to
resume may ask for a plan without a Hello.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from caboose_daemon.ingest import admission
from caboose_daemon.ingest.rates import Introductions
from caboose_daemon.ingest.strangers import Stranger, Strangers
from caboose_daemon.jobs.job import Attempt, Job, Member, proof_digest
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.rollback.policy import Policy
from caboose_daemon.steps.bounds import bounded
from caboose_wire import (
    Ack,
    Bye,
    Event,
    Heartbeat,
    Hello,
    HelloRequest,
    Holdings,
    Message,
    PlanRequest,
    Refused,
    StepReport,
    StepReports,
    StepRun,
    Terms,
    Welcome,
    WireError,
    decode,
    reports_of,
)
from caboose_wire.codec import HELLO_START, REPORT_STARTS
from caboose_wire.hello_tables import Tables, put_together
from caboose_wire.messages import MAX_REPORTS, MAX_RUN
from caboose_wire.shapes import check_shapes

logger = logging.getLogger("caboose.daemon")

Reply = tuple[bytes, Message]

MAX_JOBS = 1000
MAX_PEERS = 131_072
"""Ranks, behind relays too; the connections have a limit of their own (`app.report_connections`)."""
ASK_AGAIN_SECONDS = 2.0
FORGET_SECONDS = 600.0
PROBE_SECONDS = 1.0
DECIDE_SECONDS = 0.05
"""Between two looks at the peers that wait, unless something has changed for them: there may be thousands."""
SPEAKS_SECONDS = 6.0
"""Three heartbeats: who is silent for longer and has reported nothing does not get the name it waited for."""
RENAME_SECONDS = 10.0
"""A run whose name another live run has for so long is another run, and gets a name of its own."""
MAX_OF_A_NAME = 99
MAX_JOB_LENGTH = 128
MAX_DETAIL = 500
"""Characters of a refusal's detail; it may repeat what the peer sent."""


@dataclass
class _Peer:
    job: Job
    attempt: Attempt
    member: Member
    asked: float = -math.inf
    """When it was last asked for a new Hello."""


class Receiver:
    """Knows which peer is which rank, and applies its messages."""

    def __init__(self, state: State, pipeline: Pipeline, policy: Policy) -> None:
        self._state = state
        self._pipeline = pipeline
        self._policy = policy
        self._peers: dict[bytes, _Peer] = {}
        self._peer_of: dict[tuple[str, str], bytes] = {}
        """The connection of each rank, by its job and incarnation."""
        self._strangers = Strangers(MAX_PEERS)
        self._rolled_back: dict[str, dict[int, bytes]] = {}
        """Peers that wait until the other ranks of their job report the rollback too, by job and rank."""
        self._introductions = Introductions(MAX_PEERS)
        self._next_sweep = 0.0
        self._next_probe = 0.0
        self._next_decision = 0.0
        """For the peers that wait; 0 after a change that may admit one."""
        self.num_applied = 0
        """Messages so far, each report of a message counted."""

    def handle(self, peer: bytes, frames: Sequence[bytes], now: float, key: str = "") -> list[Reply]:
        """Applies one message; returns the replies. `key` is the key of its connection, where keys are used."""
        size = sum(map(len, frames))
        self._state.num_bytes += size
        return self.handle_whole(peer, frames, size, now, key)

    def handle_whole(
        self,
        peer: bytes,
        frames: Sequence[bytes],
        size: int,
        now: float,
        key: str = "",
        tables: Sequence[Tables] | None = None,
    ) -> list[Reply]:
        """As `handle`, of a message whose bytes are counted; `tables` are what a relay took out of a Hello."""
        known = self._peers.get(peer)
        if known is not None and known.job.load.is_throttled and frames and frames[0] in REPORT_STARTS:
            known.job.load.num_throttled += 1
            known.member.last_seen = now
            self.num_applied += 1
            return []
        try:
            if frames and frames[0] == HELLO_START and not self._introductions.allow_hello(peer, now):
                raise WireError("rate", "too many Hellos from one connection; wait a second before the next")
            message = decode(frames)
            if tables is not None and isinstance(message, Hello):
                message = put_together(message, tables)
            if isinstance(message, StepReports):
                return self._apply_each(peer, message.reports, size, now, key)
            if isinstance(message, StepRun):
                return self._apply_each(peer, reports_of(message), size, now, key)
            self.num_applied += 1
            return self._apply(peer, message, size, now, key)
        except WireError as error:
            return self._refuse(peer, error)
        except Exception as error:  # noqa: BLE001 - see jobs/job_guard: no message may end the loop
            return self._failed(peer, error, now)

    def _apply_each(self, peer: bytes, reports: Sequence[StepReport], size: int, now: float, key: str) -> list[Reply]:
        """Several reports in one message: each is applied, held or refused as if it had come alone."""
        replies: list[Reply] = []
        for report in reports:
            self.num_applied += 1
            try:
                found = self._apply(peer, report, -(-size // len(reports)), now, key)
            except WireError as error:
                found = self._refuse(peer, error)
            except Exception as error:  # noqa: BLE001 - as in `handle`
                found = self._failed(peer, error, now)
            replies += [reply for reply in found if reply not in replies]  # one refusal for all
        return replies

    def _failed(self, peer: bytes, error: Exception, now: float) -> list[Reply]:
        """A message could not be applied, by a fault of ours: it is dropped and counted."""
        known = self._peers.get(peer)
        self._state.guard.failed("receive", None if known is None else known.job, error, now)
        self._state.num_refused["internal"] += 1
        return []

    def _refuse(self, peer: bytes, error: WireError) -> list[Reply]:
        self._state.num_refused[error.reason] += 1
        if error.reason == "unknown_peer":
            return []
        return [(peer, Refused(reason=error.reason, detail=error.detail[:MAX_DETAIL]))]

    def _apply(self, peer: bytes, message: Message, size: int, now: float, key: str) -> list[Reply]:
        if isinstance(message, Hello):
            return self._introduce(peer, message, now, key)
        if isinstance(message, PlanRequest):
            self._state.num_frames["PlanRequest"] += 1
            return [(peer, self._policy.plan(message))]
        known = self._peers.get(peer)
        if known is None:
            return self._hold(peer, message, size, now)
        if known.job.attempt is not known.attempt and _was_left_behind(known):
            return self._drop_late(peer, known, message, now)
        self._accept(known, message, now)
        return []

    def _drop_late(self, peer: bytes, known: _Peer, message: Message, now: float) -> list[Reply]:
        """A rank still reports the attempt before a rollback: its message is dropped, and it is asked for its Hello."""
        attempt = known.job.attempt
        assert attempt is not None, "only a newer attempt leaves a peer behind"
        if isinstance(message, StepReport):
            attempt.aligner.num_late += 1
        elif isinstance(message, Ack):
            self._policy.answered(known.job, known.member.hello.rank, message, now)
        if now - known.asked < ASK_AGAIN_SECONDS:
            return []
        known.asked = now
        return [(peer, HelloRequest())]

    def _introduce(self, peer: bytes, hello: Hello, now: float, key: str) -> list[Reply]:
        if hello.rank >= hello.world:
            raise WireError("malformed", f"rank {hello.rank} in a world of {hello.world}")
        if len(self._peers) >= MAX_PEERS and peer not in self._peers:
            raise WireError("capacity", f"this daemon serves {MAX_PEERS} ranks already")
        job = self._state.jobs.get(hello.job)
        if job is None:
            if not self._introductions.allow_job(now):
                raise WireError("rate", "too many new jobs at once; this one is asked for its Hello again")
            self._make_room_for_a_job(now)
            job = self._state.jobs[hello.job] = Job(name=hello.job, created=now)
        if job.key != key and job.attempt is not None and admission.is_alive(job.attempt, now):
            raise WireError("identity", f"job {hello.job!r} is reported with another key; rename one with CABOOSE_JOB")
        verdict = admission.judge(job, hello, now, is_own=self._is_own(peer, job, hello))
        if verdict == "waits" and (renamed := self._as_renamed(hello)) is not None:
            job, hello = renamed
            verdict = admission.judge(job, hello, now, is_own=self._is_own(peer, job, hello))
        if verdict in ("waits", "rolled_back"):
            stranger = self._strangers.add(peer, now)
            if verdict == "rolled_back":
                self._peers.pop(peer, None)  # its next messages belong to the next attempt
                self._rolled_back.setdefault(job.name, {})[hello.rank] = peer
                stranger.has_rolled_back = True
            self._next_decision = 0.0
            stranger.hello, stranger.since, stranger.key = hello, now, key
            stranger.last_seen = now
            return []
        job.key = key
        if verdict == "begins":
            self._pipeline.begin_attempt(job, hello, now)
        return self._admit(peer, job, hello, now)

    def _as_renamed(self, hello: Hello) -> tuple[Job, Hello] | None:
        """The job that this very rank was admitted to under another name, because its own was in use."""
        for name in _other_names(hello.job):
            job = self._state.jobs.get(name)
            member = None if job is None or job.attempt is None else job.attempt.members.get(hello.rank)
            if job is not None and member is not None and member.hello.incarnation == hello.incarnation:
                return job, msgspec.structs.replace(hello, job=name)
        return None

    def _is_own(self, peer: bytes, job: Job, hello: Hello) -> bool:
        known = self._peers.get(peer)
        if known is None or job.attempt is None or known.attempt is not job.attempt:
            return False
        return known.member is job.attempt.members.get(hello.rank)

    def _admit(self, peer: bytes, job: Job, hello: Hello, now: float) -> list[Reply]:
        self._state.num_frames["Hello"] += 1
        assert job.attempt is not None, "a judged Hello has an attempt to join"
        if job.attempt.proof is None:
            job.attempt.proof = proof_digest(hello)
        hello = msgspec.structs.replace(hello, proof="")  # it is nobody else's business, and not the journal's
        member = self._pipeline.admit(job, hello, now)
        name = (job.name, hello.incarnation)
        self._peers.pop(self._peer_of.get(name, b""), None)  # its connection before this one
        self._peer_of[name] = peer
        self._peers[peer] = _Peer(job, job.attempt, member)
        self._state.num_peers = len(self._peers)
        self._release(peer, now)
        terms = self._policy.welcome(job, hello)
        replies: list[Reply] = [] if terms is None else [(peer, terms)]
        if hello.is_batching:  # an agent of an earlier version does not know the message
            replies.append((peer, Welcome(max_reports=MAX_REPORTS, max_run=MAX_RUN)))
        return replies

    def knows(self, peer: bytes) -> bool:
        """Whether a connection has introduced itself as a rank."""
        if peer in self._peers:
            return True
        stranger = self._strangers.get(peer)
        return stranger is not None and stranger.hello is not None

    def unreachable(self, peer: bytes) -> None:
        """This peer's connection is closed; it may come back with another."""
        known = self._peers.get(peer)
        if known is not None:
            known.member.is_gone = True
            self._next_decision = 0.0

    def peer_of(self, member: Member) -> bytes | None:
        """The connection of a rank, if it has one."""
        return self._peer_of.get((member.hello.job, member.hello.incarnation))

    def _make_room_for_a_job(self, now: float) -> None:
        """Beyond the limit, the job that was silent for the longest is dropped from memory; the journal keeps it."""
        jobs = self._state.jobs
        if len(jobs) < MAX_JOBS:
            return
        idle = [job for job in jobs.values() if job.attempt is None or not admission.is_alive(job.attempt, now)]
        if not idle:
            raise WireError("capacity", f"this daemon watches {MAX_JOBS} running jobs already")
        gone = min(idle, key=lambda job: job.last_seen)
        del jobs[gone.name]
        self._forget([peer for peer, known in self._peers.items() if known.job is gone])

    def forget(self, peers: Sequence[bytes], now: float) -> None:
        """These connections are closed: nothing more is sent to them, and what they wait with is dropped."""
        self._forget([peer for peer in peers if peer in self._peers])
        for peer in peers:
            self._release(peer, now)

    def _forget(self, peers: Sequence[bytes]) -> None:
        for peer in peers:
            hello = self._peers.pop(peer).member.hello
            if self._peer_of.get((hello.job, hello.incarnation)) == peer:
                del self._peer_of[hello.job, hello.incarnation]
        self._state.num_peers = len(self._peers)

    def _hold(self, peer: bytes, message: Message, size: int, now: float) -> list[Reply]:
        stranger = self._strangers.add(peer, now)
        stranger.last_seen = now
        is_kept = isinstance(message, StepReport | Event | Bye | Holdings | Ack)
        if is_kept and self._strangers.hold(stranger, message, size):
            self._state.num_refused["unknown_peer"] += 1
        if stranger.hello is None and now - stranger.asked >= ASK_AGAIN_SECONDS:
            stranger.asked = now
            return [(peer, HelloRequest())]
        return []

    def _release(self, peer: bytes, now: float) -> None:
        stranger = self._strangers.pop(peer)
        if stranger is None:
            return
        known = self._peers.get(peer)
        for message, _ in stranger.held:
            try:
                if known is None:
                    raise WireError("unknown_peer", "it was never admitted")
                self._accept(known, message, now)
            except WireError as error:
                self._state.num_refused[error.reason] += 1
            except Exception as error:  # noqa: BLE001 - as in `handle`
                self._failed(peer, error, now)

    def _accept(self, known: _Peer, message: Message, now: float) -> None:
        member = known.member
        if known.job.attempt is not known.attempt:
            raise WireError("duplicate_job", f"a newer launch of {known.job.name!r} has replaced this one")
        if isinstance(message, StepReport):
            self._accept_report(known, message, now)
        elif isinstance(message, Heartbeat):
            member.since_step_seconds = message.since_step_seconds
            member.num_dropped = message.num_dropped
            member.num_failures = message.num_failures
            member.agent_state = message.state
            member.phase = message.phase
            member.numbers.take_heartbeat(message)
            member.step = max(member.step, message.step)
        elif isinstance(message, Event):
            event = msgspec.structs.replace(message, attempt=known.attempt.number)
            if not known.job.has_declared(event):
                self._pipeline.declare(known.job, event)
        elif isinstance(message, Bye):
            member.step = max(member.step, message.step)
            self._pipeline.leave(known.job, member, message)
            self._next_decision = 0.0
        elif isinstance(message, Holdings):
            self._policy.held(known.job, member.hello.rank, message)
        elif isinstance(message, Ack):
            self._policy.answered(known.job, member.hello.rank, message, now)
        else:
            raise WireError("type", f"only the daemon sends {type(message).__name__}")
        member.last_seen = now
        member.is_gone = False
        self._state.num_frames[type(message).__name__] += 1

    def _accept_report(self, known: _Peer, report: StepReport, now: float) -> None:
        member = known.member
        check_shapes(report, len(known.job.layers), len(member.hello.modules))
        report = bounded(report)
        if report.attempt < member.hello.attempt:  # sent before the rollback that its Hello announced
            known.attempt.aligner.num_late += 1
            return
        if member.last_seq and report.seq > member.last_seq + 1:
            member.num_missed += report.seq - member.last_seq - 1
        member.last_seq = max(member.last_seq, report.seq)
        member.step = max(member.step, report.step)
        member.num_dropped = report.num_dropped
        member.since_step_seconds = 0.0
        member.phase = ""
        member.numbers.take_report(report)
        if known.job.faults.is_quarantined:
            known.job.faults.num_unjudged += 1
            return
        known.attempt.aligner.add(member.hello.rank, report, now)

    def advance(self, now: float) -> list[Reply]:
        """Lets time pass: waiting peers are admitted or refused, and those that stay silent are dropped."""
        replies: list[Reply] = []
        if now >= self._next_sweep:
            self._next_sweep = now + FORGET_SECONDS
            self._sweep(now)
        if now >= self._next_probe and self._strangers:
            self._next_probe = now + PROBE_SECONDS
            replies += self._probes()
        if now >= self._next_decision:
            self._next_decision = now + DECIDE_SECONDS
            for name in list(self._rolled_back):
                with self._state.guard.watch("admission", self._state.jobs.get(name), now):
                    replies += self._go_on_together(name, now)
            replies += self._decide_on_strangers(now)
        return replies

    def _decide_on_strangers(self, now: float) -> list[Reply]:
        replies: list[Reply] = []
        names = admission.Names(now)
        for peer, stranger in self._strangers.items():
            if stranger.has_rolled_back:
                continue
            if now - stranger.last_seen > FORGET_SECONDS:
                self._release(peer, now)
            elif stranger.hello is not None:
                with self._state.guard.watch("admission", self._state.jobs.get(stranger.hello.job), now):
                    replies += self._decide_or_refuse(peer, stranger, stranger.hello, names)
        return replies

    def _probes(self) -> list[Reply]:
        """Messages to the ranks whose job's name others claim; they change nothing."""
        names = {s.hello.job for _, s in self._strangers.items() if s.hello is not None and not s.has_rolled_back}
        probes: list[Reply] = []
        for job in filter(None, map(self._state.jobs.get, names)):
            for member in job.attempt.members.values() if job.attempt is not None else ():
                peer = self.peer_of(member)
                if peer is not None and member.state == "live" and not member.is_gone:
                    probes.append((peer, self._policy.welcome(job, member.hello) or Terms(rollback="off")))
        return probes

    def _decide_or_refuse(self, peer: bytes, stranger: Stranger, hello: Hello, names: admission.Names) -> list[Reply]:
        try:
            return self._decide(peer, stranger, hello, names)
        except WireError as error:
            self._release(peer, names.now)
            return self._refuse(peer, error)

    def _go_on_together(self, name: str, now: float) -> list[Reply]:
        """Begins the attempt after a rollback, once all live ranks have reported it or the wait was too long."""
        job, peers = self._state.jobs.get(name), self._rolled_back[name]
        waiting = {rank: (peer, s) for rank, peer in peers.items() if (s := self._strangers.get(peer)) is not None}
        hellos = {rank: s.hello for rank, (_, s) in waiting.items() if s.has_rolled_back and s.hello is not None}
        if job is None or job.attempt is None or not hellos:
            self._give_up_waiting(name, now)
            return []
        heard = {rank for rank, member in job.attempt.members.items() if member.state in ("live", "expected")}
        first = min(waiting[rank][1].since for rank in hellos)
        if not heard <= hellos.keys() and now - first < admission.ROLLBACK_SECONDS:
            return []
        del self._rolled_back[name]
        replies: list[Reply] = []
        for rank, hello in sorted(hellos.items()):
            if admission.judge(job, hello, now) == "rolled_back":
                self._pipeline.begin_attempt(job, hello, now, is_rollback=True)
            waiting[rank][1].has_rolled_back = False
            try:
                replies += self._introduce(waiting[rank][0], hello, now, waiting[rank][1].key)
            except WireError as error:
                self._release(waiting[rank][0], now)
                replies += self._refuse(waiting[rank][0], error)
        return replies

    def _give_up_waiting(self, name: str, now: float) -> None:
        for peer in self._rolled_back.pop(name).values():
            self._release(peer, now)

    def _sweep(self, now: float) -> None:
        over = []
        for peer, known in self._peers.items():
            is_over = known.attempt.is_over or known.member.state != "live" or known.job.attempt is not known.attempt
            if is_over and now - known.member.last_seen > FORGET_SECONDS:
                over.append(peer)
        self._forget(over)

    def _decide(self, peer: bytes, stranger: Stranger, hello: Hello, names: admission.Names) -> list[Reply]:
        job, now = self._state.jobs.get(hello.job), names.now
        if job is None or admission.judge(job, hello, now, names=names) != "waits":
            if not stranger.held and now - stranger.last_seen > SPEAKS_SECONDS:
                return []  # it has gone without a report
            return self._introduce(peer, hello, now, stranger.key)
        if stranger.is_notified or names.last_seen(job) <= stranger.since + 1.0:
            return []  # a second for messages sent before the old launch died
        if now - stranger.since < RENAME_SECONDS or now - stranger.last_seen > SPEAKS_SECONDS:
            return []  # the old launch may be about to end, or this one has gone
        for name in _other_names(hello.job):
            other, renamed = self._state.jobs.get(name), msgspec.structs.replace(hello, job=name)
            if other is None or admission.judge(other, renamed, now, names=names) != "waits":
                logger.info("job %s is reported by another run already: this one is %s", hello.job, name)
                return self._introduce(peer, renamed, now, stranger.key)
        stranger.is_notified = True
        job.num_refused += 1
        job.refused_detail = f"rank {hello.rank} on {hello.host}, pid {hello.pid}"
        text = f"job {hello.job!r} is being reported by other live processes; set CABOOSE_JOB to rename this one"
        return self._refuse(peer, WireError("duplicate_job", text))


def _other_names(job: str) -> Iterator[str]:
    """Names for other runs of the same name at the same time: job-2, job-3, ..."""
    for number in range(2, MAX_OF_A_NAME + 1):
        yield f"{job[: MAX_JOB_LENGTH - 4]}-{number}"


def _was_left_behind(known: _Peer) -> bool:
    attempt = known.job.attempt
    return attempt is not None and attempt.reason == "rollback" and attempt.number == known.attempt.number + 1
