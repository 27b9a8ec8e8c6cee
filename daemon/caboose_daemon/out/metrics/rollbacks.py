"""The rollback series of one job: mode, budget, snapshots, checkpoints and decisions.

Design
------
Decisions are counted here, when a scrape first sees their outcome. A job keeps only its last 500 decisions; a counter
that falls when an old one is dropped would look like a restart of the daemon, and Prometheus would count the rest
again. A decision that was given up and later turned out to be done is counted as both. The outcomes of rollbacks and
the failures of every action start at 0: a series that starts at 1 has no increase, and an alert would miss it.
"""

from collections import Counter
from typing import get_args

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.rollback.modes import ORDER, owners_mode
from caboose_daemon.rollback.target import common
from caboose_daemon.rollback_state.decision import DecisionState
from caboose_daemon.rollback_state.ledger import Health
from caboose_daemon.rollback_state.record import RollbackRecord
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_wire.rollback import CommandKind

OUTCOMES = tuple(state for state in get_args(DecisionState) if state != "sent")
EVER_SHOWN = (*(("rollback", outcome) for outcome in OUTCOMES), *((kind, "failed") for kind in get_args(CommandKind)))


class RollbackSeries:
    """The rollback series of one job; remembers which decisions it has counted."""

    def __init__(self, config: RollbackConfig) -> None:
        self._config = config
        self._seen: dict[int, str] = {}
        self._counts: Counter[tuple[str, str]] = Counter(dict.fromkeys(EVER_SHOWN, 0))
        self._num_lost = 0

    def add(self, job: Job, samples: JobSamples, now: float) -> None:
        """Adds the current state and the decisions."""
        record = job.rollback
        modes = {"job": owners_mode(job), "daemon": self._config.mode, "effective": record.mode}
        for stat, mode in modes.items():
            samples.add("caboose_rollback_mode", ORDER.index(mode), stat)
        if job.last is not None:
            samples.add("caboose_model_step", job.last.model_step)
            skipped = max((report.num_skipped for report in job.last.reports.values()), default=0)
            samples.add("caboose_skipped_updates_total", skipped)
        _add_checkpoints(record, samples)
        self._count(record)
        for (action, outcome), count in sorted(self._counts.items()):
            samples.add("caboose_decisions_total", count, action, outcome)
        samples.add("caboose_rollback_lost_steps_total", self._num_lost)
        done = [d for d in record.decisions if d.kind == "rollback" and d.state == "committed"]
        samples.add("caboose_rollback_seconds", done[-1].seconds if done else None)
        samples.add("caboose_rollback_budget_left", record.budget_left(self._config.budget, now))
        samples.add("caboose_rollback_exhausted", float(bool(record.exhausted)))
        step = job.recent[-1].step if job.recent else 0
        own = (d.boundary + self._config.cooldown_steps for d in done if d.boundary is not None)
        samples.add("caboose_rollback_cooldown_steps", max(0, max((record.cool_until, *own)) - step))
        _add_snapshots(job, step, samples)

    def _count(self, record: RollbackRecord) -> None:
        known = {decision.number for decision in record.decisions}
        self._seen = {number: state for number, state in self._seen.items() if number in known}
        for decision in record.decisions:
            if decision.is_open or self._seen.get(decision.number) == decision.state:
                continue
            self._seen[decision.number] = decision.state
            self._counts[decision.kind, decision.state] += 1
            self._num_lost += decision.steps_lost if decision.state == "committed" else 0


def _add_snapshots(job: Job, step: int, samples: JobSamples) -> None:
    record, attempt = job.rollback, job.attempt
    holdings = record.holdings.values()
    if attempt is None or not holdings:
        return
    ready = [held for held in common(record.holdings, attempt.world) if not record.ledger.taint_of(held)]
    samples.add("caboose_snapshots_ready", len(ready))
    samples.add("caboose_snapshot_age_steps", max(0, step - ready[-1]) if ready else None)
    samples.add("caboose_snapshot_every_steps", max(h.snapshot_every for h in holdings))
    samples.add("caboose_snapshot_size_bytes", max(h.num_bytes for h in holdings))
    samples.add("caboose_snapshot_seconds", max(h.snapshot_seconds for h in holdings))


def _add_checkpoints(record: RollbackRecord, samples: JobSamples) -> None:
    checkpoints = record.ledger.checkpoints
    if not checkpoints:
        return
    for health in get_args(Health):
        samples.add("caboose_checkpoints", sum(entry.health == health for entry in checkpoints), health)
    newest = {
        "newest": checkpoints[0].step,
        "healthy": next((entry.step for entry in checkpoints if entry.health == "healthy"), None),
        "best": next((entry.step for entry in checkpoints if entry.is_best), None),
    }
    for stat, step in newest.items():
        samples.add("caboose_checkpoint_step", step, stat)
