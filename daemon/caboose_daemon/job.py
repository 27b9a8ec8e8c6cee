"""A job as the daemon knows it: its attempts, ranks, layers, and what was found.

Design
------
State only: messages are applied to it by `receiver`, time passes in `pipeline`. A job has one current attempt. A
rank belongs to an attempt by its incarnation; which Hello begins a new attempt is decided in `admission`.
"""

import itertools
from collections import deque
from dataclasses import dataclass, field

from caboose_daemon.aligned import AlignedStep
from caboose_daemon.alignment import Aligner
from caboose_daemon.engine import Engine
from caboose_daemon.episodes import EpisodeLog
from caboose_daemon.regimes import NONE, Regime, RegimeTracker
from caboose_daemon.summary import StepSummary
from caboose_daemon.view import AlignmentFacts, JobView, RankState, RankView
from caboose_wire import Event, Group, Hello, Layer, Module
from caboose_wire.messages import Scalar

RECENT_STEPS = 2048
RECENT_EVENTS = 200
NORM_MEMORY = 32
"""Steps after which a gradient norm is too old to be shown as the job's."""


@dataclass
class Member:
    """One rank of the current attempt."""

    hello: Hello
    last_seen: float
    state: RankState = "live"
    step: int = 0
    last_seq: int = 0
    num_missed: int = 0
    """Reports that never arrived: gaps in the sequence numbers."""
    num_dropped: int = 0
    num_failures: int = 0
    since_step_seconds: float = 0.0
    loss: float | None = None
    step_seconds: float | None = None
    agent_state: str = "training"
    error: str = ""

    def view(self) -> RankView:
        """What rules may see of it."""
        return RankView(
            rank=self.hello.rank,
            state=self.state,
            host=self.hello.host,
            step=self.step,
            last_seen=self.last_seen,
            since_step_seconds=self.since_step_seconds,
            num_dropped=self.num_dropped,
            error=self.error,
            agent_state=self.agent_state,
        )


@dataclass
class Attempt:
    """One launch of a job, or what follows a rollback."""

    number: int
    began: float
    world: int
    launch: str
    agent_attempt: int
    aligner: Aligner
    engine: Engine
    regimes: RegimeTracker
    members: dict[int, Member] = field(default_factory=dict)

    @property
    def alignment(self) -> AlignmentFacts:
        """What went wrong in bringing the ranks' reports together."""
        return AlignmentFacts(
            num_late=self.aligner.num_late,
            num_duplicate=self.aligner.num_duplicate,
            num_incomplete=self.aligner.num_incomplete,
            num_missed=sum(member.num_missed for member in self.members.values()),
            num_dropped=sum(member.num_dropped for member in self.members.values()),
        )

    @property
    def expected(self) -> set[int]:
        """Ranks whose report a step waits for."""
        gone = {rank for rank, member in self.members.items() if member.state in ("left", "failed")}
        return set(range(self.world)) - gone


@dataclass
class Job:
    """Everything the daemon keeps in memory about one job."""

    name: str
    created: float
    attempt: Attempt | None = None
    num_attempts: int = 0
    layers: tuple[Layer, ...] = ()
    groups: tuple[Group, ...] = ()
    visible: frozenset[str] = frozenset()
    blind: dict[str, str] = field(default_factory=dict)
    config: dict[str, Scalar] = field(default_factory=dict)
    facts: dict[str, Scalar] = field(default_factory=dict)
    modules: tuple[Module, ...] = ()
    wrapper: str = ""
    last: AlignedStep | None = None
    recent: deque[StepSummary] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=RECENT_EVENTS))
    pending_events: list[Event] = field(default_factory=list)
    episodes: EpisodeLog = field(default_factory=EpisodeLog)
    num_steps: int = 0
    num_non_finite: int = 0
    finding_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    num_refused: int = 0
    refused_detail: str = ""
    """Who else claimed to be this job, if anyone did."""
    previous_lr: float | None = None
    """The learning rate that the step this attempt resumed from was taken with; None where that is not known."""

    def declared(self, step: AlignedStep | None = None) -> tuple[Event, ...]:
        """What was declared before this step and not told to the rules yet; on a tick, since the last step."""
        return tuple(event for event in self.pending_events if step is None or event.step < step.step)

    def view(self, now: float, step: AlignedStep | None = None, regime: Regime = NONE) -> JobView:
        """A read-only look at this job now."""
        attempt = self.attempt
        assert attempt is not None, "a job is looked at once it has an attempt"
        return JobView(
            job=self.name,
            attempt=attempt.number,
            world=attempt.world,
            now=now,
            attempt_began=attempt.began,
            look_at_ranks=lambda: {rank: member.view() for rank, member in attempt.members.items()},
            layers=self.layers,
            groups=self.groups,
            visible=self.visible,
            step=step,
            events=self.declared(step),
            modules=self.modules,
            facts=self.facts,
            config=self.config,
            blind=self.blind,
            regime=regime,
            alignment=attempt.alignment,
            previous_lr=self.previous_lr,
            look_at_abstaining=lambda: attempt.engine.abstaining(self.visible),
        )

    def lr_at(self, step: int) -> float | None:
        """The first group's learning rate at a step, by whichever attempt took it last, or just before it."""
        known = (s for s in reversed(self.recent) if s.step <= step and s.lr is not None)
        return next((summary.lr for summary in known), None)

    @property
    def state(self) -> str:
        """running, ended, failed; or known, after a restart, until a rank is heard."""
        members = self.attempt.members.values() if self.attempt else ()
        states = {member.state for member in members}
        if "failed" in states:
            return "failed"
        if states == {"left"}:
            return "ended"
        return "running" if "live" in states else "known"

    @property
    def num_live(self) -> int:
        """Ranks heard of and not gone."""
        return sum(member.state == "live" for member in self.attempt.members.values()) if self.attempt else 0

    @property
    def latest_grad_norm(self) -> float | None:
        """The last gradient norm that was taken; an agent over its budget takes it on every few steps only."""
        recent = itertools.islice(reversed(self.recent), NORM_MEMORY)
        return next((summary.grad_norm for summary in recent if summary.grad_norm is not None), None)

    @property
    def last_seen(self) -> float:
        """When any of its ranks was last heard."""
        members = self.attempt.members.values() if self.attempt else ()
        return max((member.last_seen for member in members), default=self.created)

    @property
    def health(self) -> str:
        """The worst open severity, or ok."""
        open_episodes = self.episodes.open
        return str(open_episodes[0].severity) if open_episodes else "ok"
