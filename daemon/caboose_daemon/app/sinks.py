"""Where the pipeline's results go in a running daemon: the journal, open pages, the exports."""

from typing import Any, Protocol

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.jobs.pipeline import Change, Sink
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.live import Broker
from caboose_daemon.out.export.exports import Exports
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.store.journal import Journal
from caboose_wire import Event


class Pushed(Protocol):
    """What is pushed over OTLP; its module needs a library that only an extra brings."""

    def attempt_began(self, job: Job) -> None:
        """A launch, a rollback or a restart."""

    def incident_changed(self, job: Job, incident: Incident) -> None:
        """It opened, changed or ended."""


class LiveSink(Sink):
    """What leaves the daemon at once: live updates for open pages, and the exports."""

    def __init__(self, broker: Broker, exports: Exports, otlp: Pushed | None = None) -> None:
        self._broker = broker
        self._exports = exports
        self._otlp = otlp
        self._updates: list[tuple[str, str, Any]] = []

    def attempt_began(self, job: Job) -> None:
        self._exports.attempt_began(job)
        if self._otlp is not None:
            self._otlp.attempt_began(job)
        self._updates.append((job.name, "attempt", {"attempt": job.num_attempts}))

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        self._exports.step_closed(job, summary)
        if self._broker.has_listeners:
            self._updates.append((job.name, "step", json_shapes.step(summary)))
            if job.meters.sample is not None:
                self._updates.append((job.name, "sample", {"attempt": summary.attempt, "step": summary.step}))

    def episode_changed(self, job: Job, episode: Episode) -> None:
        if self._broker.has_listeners:
            self._updates.append((job.name, "finding", json_shapes.episode(episode)))

    def incident_changed(self, job: Job, incident: Incident) -> None:
        self._exports.incident_changed(job, incident)
        if self._otlp is not None:
            self._otlp.incident_changed(job, incident)
        if self._broker.has_listeners:
            self._updates.append((job.name, "incident", json_shapes.incident(incident)))

    def event_declared(self, job: Job, event: Event) -> None:
        self._exports.event_declared(job, event)
        self._updates.append((job.name, "event", json_shapes.event(event)))

    def decision_changed(self, job: Job, decision: Decision) -> None:
        self._exports.decision_changed(job, decision)
        self._updates.append((job.name, "decision", json_shapes.decision(decision)))

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        self._updates.append((job.name, "ledger", json_shapes.entry(entry)))

    def post(self, *, is_committed: bool) -> None:
        """Posts the live updates; those that the journal does not have yet are marked."""
        updates, self._updates = self._updates, []
        if not is_committed:
            updates = [(job, kind, {**data, "is_committed": False}) for job, kind, data in updates]
        self._broker.post(updates)


class DaemonSink(Sink):
    """The pipeline's sink in a running daemon: the journal first, then what leaves the daemon."""

    def __init__(
        self, journal: Journal, broker: Broker, exports: Exports | None = None, otlp: Pushed | None = None
    ) -> None:
        self._journal = journal
        self._live = LiveSink(broker, exports or Exports(), otlp)
        self._sinks: tuple[Sink, ...] = (journal, self._live)

    def attempt_began(self, job: Job) -> None:
        for sink in self._sinks:
            sink.attempt_began(job)

    def attempt_changed(self, job: Job) -> None:
        """Journal only, likewise."""
        self._journal.attempt_changed(job)

    def member_changed(self, job: Job, member: Member) -> None:
        """Journal only; pages get ranks from the regular status."""
        self._journal.member_changed(job, member)

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        for sink in self._sinks:
            sink.step_closed(job, summary)

    def episode_changed(self, job: Job, episode: Episode) -> None:
        for sink in self._sinks:
            sink.episode_changed(job, episode)

    def incident_changed(self, job: Job, incident: Incident) -> None:
        for sink in self._sinks:
            sink.incident_changed(job, incident)

    def event_declared(self, job: Job, event: Event) -> None:
        for sink in self._sinks:
            sink.event_declared(job, event)

    def decision_changed(self, job: Job, decision: Decision) -> None:
        for sink in self._sinks:
            sink.decision_changed(job, decision)

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        for sink in self._sinks:
            sink.ledger_changed(job, entry)

    def flush(self, now: float, *, is_forced: bool = False) -> None:
        """Commits what changed: after that the state's lock may be released."""
        self._journal.commit(now, is_forced=is_forced)

    def write(self, change: Change, now: float) -> str:
        """Commits a change that is not yet made; the problem, and the change must not be made, or empty."""
        problem = self._journal.write(change, now)
        if not problem:
            change.record(self._live)
        return problem

    def post(self, now: float) -> None:
        """Ends a turn: syncs what must not be lost with the power, then posts the live updates."""
        is_committed = self._journal.commit(now) and self._journal.sync(now)
        self._live.post(is_committed=is_committed)
