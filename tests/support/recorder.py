"""A whole daemon core without sockets, threads or files: messages in, time as an argument, results recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from caboose_daemon.config import Config
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.ingest.receiver import Receiver, Reply
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.rollback.commander import Commander, QueuedCommand
from caboose_daemon.rollback.policy import Policy
from caboose_daemon.rollback.requests import Requests
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Event, Message, encode


@dataclass
class Recorder:
    """The pipeline's sink in tests."""

    attempts: list[int] = field(default_factory=list)
    steps: list[StepSummary] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    members: list[tuple[int, str]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    entries: list[LedgerEntry] = field(default_factory=list)

    def attempt_changed(self, job: Job) -> None:
        """Not recorded."""

    def attempt_began(self, job: Job) -> None:
        self.attempts.append(job.num_attempts)

    def member_changed(self, job: Job, member: Member) -> None:
        self.members.append((member.hello.rank, member.state))

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        self.steps.append(summary)

    def episode_changed(self, job: Job, episode: Episode) -> None:
        self.episodes.append(episode)

    def incident_changed(self, job: Job, incident: Incident) -> None:
        self.incidents.append(incident)

    def event_declared(self, job: Job, event: Event) -> None:
        self.events.append(event)

    def decision_changed(self, job: Job, decision: Decision) -> None:
        self.decisions.append(decision)

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        self.entries.append(entry)


class Core:
    """Receiver, alignment, rules and episodes, joined as in the daemon."""

    def __init__(self, config: Config | None = None, rules: Sequence[type[AnyRule]] = RULES) -> None:
        self.config = config or Config()
        self.state = State(rule_configs=self.config.rules, started=0.0, rules=rules)
        self.sink = Recorder()
        self.orders: list[QueuedCommand] = []
        self.may_fail = False
        """Whether a test expects that something fails inside; otherwise it raises, as if nothing were guarded."""
        self.join(self.sink)

    def join(self, sink: Sink) -> None:
        """Puts the parts together, with what they produce going to a sink."""
        self.pipeline = Pipeline(self.state, sink)
        self.commander = Commander(sink)
        self.policy = Policy(self.state, self.pipeline, sink, self.config.rollback, self.commander)
        self.requests = Requests(self.state, self.commander)
        self.receiver = Receiver(self.state, self.pipeline, self.policy)

    def say(self, peer: bytes, message: Message, now: float = 0.0) -> list[Reply]:
        """A peer sends a message."""
        replies = self.receiver.handle(peer, encode(message), now)
        self._check()
        return replies

    def pass_time(self, now: float) -> list[Reply]:
        """Time passes, as in one turn of the loop."""
        replies = self.receiver.advance(now)
        self.pipeline.advance(now)
        for job, terms in self.policy.advance(now):
            replies += self._to_all(job, terms)
        self.commit(now)
        for order in self.commander.take(is_journaled=not self.state.journal_error):
            self.orders.append(order)
            replies += self._to_all(order.job, order.command)
        self._check()
        return replies

    def _check(self) -> None:
        assert self.may_fail or not self.state.num_errors, self.state.num_errors

    def commit(self, now: float) -> None:
        """Writes the journal, where there is one."""

    def _to_all(self, job: Job, message: Message) -> list[Reply]:
        members = job.attempt.members.values() if job.attempt is not None else ()
        peers = [self.receiver.peer_of(member) for member in members if member.hello.rollback != "off"]
        return [(peer, message) for peer in peers if peer is not None]
