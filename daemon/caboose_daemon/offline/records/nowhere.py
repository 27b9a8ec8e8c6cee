"""A sink that keeps nothing: nothing happens in a journal that is only read."""

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.steps.columns import StepSummary
from caboose_wire import Event


class Nowhere:
    """Implements the pipeline's Sink."""

    def attempt_began(self, job: Job) -> None:
        """Forgotten."""

    def member_changed(self, job: Job, member: Member) -> None:
        """Forgotten."""

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        """Forgotten."""

    def episode_changed(self, job: Job, episode: Episode) -> None:
        """Forgotten."""

    def incident_changed(self, job: Job, incident: Incident) -> None:
        """Forgotten."""

    def event_declared(self, job: Job, event: Event) -> None:
        """Forgotten."""

    def decision_changed(self, job: Job, decision: Decision) -> None:
        """Forgotten."""

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        """Forgotten."""
