"""job_stalled: every process is alive and sends heartbeats, but no step ends any more.

Design
------
A collective that one rank never enters stops all ranks without a message: the processes live, and devices may even look
busy. The agents' heartbeats come from a separate thread and contain the time since the last step ended, so the rank
that ended a step last counts.

How long is too long depends on the job: many times its own step time, and several times the longest pause after which
it continued (a checkpoint, an evaluation), with a floor for jobs with short steps. Any declared event counts as
progress. After a declared evaluation or checkpoint, and before the first step (start-up, compilation), the limit is
much longer. A rank that is silent, or exited with an error, is `rank_silent`'s: the others stop because of it, and one
cause is reported once. Once a rank has left normally, the job is ending and no more steps are expected.

Ranks that are a step behind the others are named: the others wait for them. Where all are at one step, the phases in
their heartbeats decide: a rank that waits for data waits for no other rank, and while the others are in the backward,
where the all-reduce is, a rank that is elsewhere is the missing one. It is critical after a longer limit: hung jobs do
not recover, and every hour of a whole cluster is lost.
"""

from dataclasses import dataclass

from caboose_daemon.format import seconds
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import and_more
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import JobView, RankView

SILENT_SECONDS = 10.0
"""A rank without a heartbeat for so long is rank_silent's."""
OWN_GAP_SECONDS = 5.0
MEMORY = 20
WARN_STEPS, CRITICAL_STEPS = 30.0, 100.0
WARN_PAUSES, CRITICAL_PAUSES = 3.0, 6.0
LONG_PAUSES = frozenset({"validation", "evaluation", "checkpoint", "checkpoint_saved"})
"""Declared kinds that may take long, or announce what does."""
SETTLED_STEPS = 20
"""Steps after which an attempt has started, even if no step was seen to end."""
MAX_NAMED = 64


@dataclass(frozen=True)
class JobStalledConfig(RuleConfig):
    """Thresholds of job_stalled."""

    warn_seconds: float = 120.0
    """Time without a step that is a warning, if it is also 30 step times and 3 times the job's longest pause."""
    critical_seconds: float = 600.0
    """Time without a step that pages, if it is also 100 step times and 6 times the longest pause."""
    startup_seconds: float = 1800.0
    """Limit before the first step and after a declared evaluation or checkpoint; pages after twice as long."""


class JobStalled(Rule[JobStalledConfig]):
    """No step ends although all ranks are alive."""

    name = "job_stalled"
    config_class = JobStalledConfig
    trigger = "tick"

    def __init__(self, config: JobStalledConfig) -> None:
        super().__init__(config)
        self._step: int | None = None
        self._last_tick = 0.0
        self._moved = 0.0
        self._has_moved = False
        self._num_events = 0
        self._num_advances = 0
        self._step_seconds = 0.0
        self._longest_pause = 0.0
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every tick while no step ends."""
        last_tick, self._last_tick = self._last_tick, view.now
        if last_tick and view.now - last_tick > OWN_GAP_SECONDS:
            self._moved = view.now  # the daemon itself was suspended, so the time does not count
        here = list(view.ranks.values())
        if any(rank.state in ("left", "terminated") for rank in here):
            return self._over(view, "a rank has left: the job is ending")
        if len(here) < view.world or any(
            rank.state != "live" or view.now - rank.last_seen >= SILENT_SECONDS for rank in here
        ):
            return None
        step = max(rank.step for rank in here)
        boundary = max(rank.last_seen - rank.since_step_seconds for rank in here)
        self._follow(step, boundary, len(view.events), view.now)
        waited = view.now - self._moved
        warn, critical = self._patience(view)
        if waited < warn:
            return self._over(view, f"steps end again, now at step {step:,}") if self._has_moved else None
        if self._onset is None:
            self._onset = step
        self._has_moved = False
        return self._finding(here, step, waited, Severity.CRITICAL if waited >= critical else Severity.WARNING)

    def resume(self, finding: Finding) -> None:
        """Restores step and onset; it is resolved once a later step ends."""
        self._onset = finding.onset_step
        self._step = finding.step
        self._step_seconds = finding.values["step_seconds"]
        self._has_moved = False

    def _follow(self, step: int, boundary: float, num_events: int, now: float) -> None:
        """Records the last progress; `boundary` is when the last step ended, by the ranks' reports."""
        if self._step is None:
            self._step, self._moved = step, boundary
        elif step > self._step and boundary > self._moved:
            if self._num_advances:  # the first pause is start-up
                pause = boundary - self._moved
                self._longest_pause = max(self._longest_pause, pause)
                each = pause / (step - self._step)
                self._step_seconds += (each - self._step_seconds) / min(self._num_advances, MEMORY)
            self._num_advances += 1
            self._moved, self._has_moved = boundary, True
        elif num_events != self._num_events:
            self._moved, self._has_moved = now, True
        self._step, self._num_events = max(step, self._step), num_events

    def _patience(self, view: JobView) -> tuple[float, float]:
        config = self.config
        # A job may have run its first steps, and stopped, between two ticks.
        has_settled = self._step is not None and self._step - view.start_step >= SETTLED_STEPS
        is_started = self._num_advances > 0 or self._step_seconds > 0 or has_settled
        if not is_started or any(event.kind in LONG_PAUSES for event in view.events):
            return config.startup_seconds, 2.0 * config.startup_seconds
        longest = min(self._longest_pause, config.startup_seconds / WARN_PAUSES)
        return (
            max(config.warn_seconds, WARN_STEPS * self._step_seconds, WARN_PAUSES * longest),
            max(config.critical_seconds, CRITICAL_STEPS * self._step_seconds, CRITICAL_PAUSES * longest),
        )

    def _finding(self, live: list[RankView], step: int, waited: float, severity: Severity) -> Finding:
        assert self._onset is not None, "set by the caller"
        behind = sorted((rank for rank in live if rank.step < step), key=lambda rank: (rank.step, rank.rank))
        who, phase = "", ""
        if behind and len(behind) < len(live):
            first = behind[0]
            who = f"; {_name(first)}{and_more(len(behind), 'rank')} behind, at step {first.step:,}"
        elif behind := _awaited(live):
            first, phase = behind[0], behind[0].phase
            who = f"; only {_name(first)}{and_more(len(behind), 'rank')} {_PLACES.get(phase, f'in {phase}')}"
        usual = f"a step takes {seconds(self._step_seconds)}" if self._step_seconds else "no step has ended yet"
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=self._onset,
            summary=f"no step for {waited:.0f} s after step {step:,} ({usual}), all ranks alive{who}",
            ranks=tuple(rank.rank for rank in behind[:MAX_NAMED]) if len(behind) < len(live) else (),
            phase=phase,
            values={"seconds": waited, "step_seconds": self._step_seconds},
        )

    def _over(self, view: JobView, why: str) -> Finding | None:
        onset, self._onset = self._onset, None
        if onset is None:
            return None
        step = max((rank.step for rank in view.ranks.values()), default=0)
        return Finding(
            rule=self.name, severity=Severity.INFO, step=step, onset_step=onset, summary=why, state="resolved"
        )


_PLACES = {"data": "waiting for data", "other": "outside forward, backward and optimizer"}


def _name(rank: RankView) -> str:
    return f"rank {rank.rank} ({rank.host})" if rank.host else f"rank {rank.rank}"


def _awaited(live: list[RankView]) -> list[RankView]:
    """The ranks that the others wait for, by their phases; none where the phases do not show it."""
    if any(not rank.phase for rank in live):
        return []
    waiting = [rank for rank in live if rank.phase == "data"]
    elsewhere = waiting or [rank for rank in live if rank.phase != "backward"]
    return sorted(elsewhere, key=lambda rank: rank.rank) if 2 * len(elsewhere) <= len(live) else []
