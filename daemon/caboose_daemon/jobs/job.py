"""A job as the daemon knows it: its attempts, ranks, layers, and what was found.

Design
------
State only: `receiver` applies messages to it, `pipeline` lets time pass. A job has one current attempt. A rank belongs
to an attempt by its incarnation; `admission` decides which Hello begins a new attempt.
"""

import hashlib
import hmac
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.sample_history import MemoryUse, SampleFacts
from caboose_daemon.incidents.episodes import EpisodeLog
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.incidents.incident_log import IncidentLog
from caboose_daemon.jobs.ending import ENDED_STATES, Ending, ending_of
from caboose_daemon.jobs.engine import Engine
from caboose_daemon.jobs.job_guard import JobFaults
from caboose_daemon.jobs.job_load import JobLoad
from caboose_daemon.jobs.meters import Meters
from caboose_daemon.rollback_state.record import RollbackRecord
from caboose_daemon.rules.parts.endings import rank_place, were_cancelled
from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.shallow import shallow
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.alignment import Aligner
from caboose_daemon.steps.columns import Column, RankNumbers, StepSummary
from caboose_daemon.steps.named import GroupRows, NamedNumbers
from caboose_daemon.steps.parts import JobPart, job_parts, layers_of, narrowed
from caboose_daemon.steps.regimes import NONE, Regime, RegimeTracker
from caboose_daemon.steps.view import GONE, MOVING_OBJECTIVE, AlignmentFacts, JobView, RankState, RankView
from caboose_wire import Event, Group, Hello, Layer, Module
from caboose_wire.fields import MAX_RANKS, Scalar

RECENT_STEPS = 2048
RECENT_EVENTS = 200
RANKS_APART = 64
"""Events back to which another rank may have reported the same validation."""
RECENT_SAMPLES = 512
HELD_STEPS = 32
"""Steps after which a number is too old to be shown as the job's."""


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
    numbers: RankNumbers = field(default_factory=RankNumbers)
    agent_state: str = "training"
    phase: str = ""
    error: str = ""
    is_gone: bool = False
    """Whether its connection is closed; it may come back."""

    @property
    def place(self) -> str:
        """Its number, host and process, for people."""
        return rank_place(self.hello.rank, self.hello.host, self.hello.pid)

    def view(self) -> RankView:
        """What rules may see of it."""
        return RankView(
            rank=self.hello.rank,
            state=self.state,
            host=self.hello.host,
            pid=self.hello.pid,
            step=self.step,
            last_seen=self.last_seen,
            since_step_seconds=self.since_step_seconds,
            num_dropped=self.num_dropped,
            error=self.error,
            agent_state=self.agent_state,
            phase=self.phase,
        )


def _of(event: Event) -> tuple[int, str, str]:
    """What an event declares, by whichever rank and when: as text, because a NaN equals no other."""
    return event.attempt, event.kind, repr(sorted(event.fields.items()))


def proof_digest(hello: Hello) -> str:
    """What the daemon keeps of a Hello's proof: enough to compare it, and not to repeat it. Empty if it has none."""
    return hashlib.sha256(hello.proof.encode()).hexdigest() if hello.proof else ""


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
    part_engines: dict[str, Engine] = field(default_factory=dict)
    """The rules of the parts after the first, by their names."""
    members: dict[int, Member] = field(default_factory=dict)
    """By rank; changed only by `put`."""
    gone: set[int] = field(default_factory=set)
    """Ranks whose report no step waits for."""
    first_rank: int = MAX_RANKS
    """The lowest of the ranks."""
    is_over: bool = False
    """Whether it ended, or was silent for so long that it counts as ended."""
    reason: str = ""
    """rollback, where the same processes rolled back; empty for a launch."""
    start_step: int = 0
    """The step after which it began."""
    proof: str | None = field(default=None, repr=False)
    """Digest of what its ranks prove their launch with; empty if they have no secret, None if it is not known."""

    def copy(self) -> "Attempt":
        """With a list of ranks of its own; see `Job.copy`."""
        attempt = shallow(self)
        attempt.members, attempt.gone = dict(self.members), set(self.gone)
        return attempt

    def put(self, member: Member) -> None:
        """A rank joins, or takes the place of the process that had its number."""
        rank = member.hello.rank
        self.members[rank] = member
        self.first_rank = min(self.first_rank, rank)
        self.note_state(member)

    def note_state(self, member: Member) -> None:
        """Its state was set: steps wait for the rank's reports, or no longer."""
        if self.members.get(member.hello.rank) is not member:
            return
        if member.state in GONE:
            self.gone.add(member.hello.rank)
        else:
            self.gone.discard(member.hello.rank)

    def is_proved_by(self, hello: Hello) -> bool:
        """Whether the Hello's sender knows the secret of this launch; also if none is known of."""
        return self.proof is None or hmac.compare_digest(self.proof, proof_digest(hello))

    def host_of(self, rank: int) -> str:
        """The host of a rank; empty where it is not known."""
        member = self.members.get(rank)
        return "" if member is None else member.hello.host

    def is_live(self, member: Member, now: float) -> bool:
        """Whether a rank has not left and is not silent, by the threshold of rank_silent."""
        return member.state == "live" and now - member.last_seen < self.engine.silence_seconds

    def alignment_facts(self) -> AlignmentFacts:
        """What went wrong in aligning the ranks' reports."""
        return AlignmentFacts(
            num_late=self.aligner.num_late,
            num_duplicate=self.aligner.num_duplicate,
            num_incomplete=self.aligner.num_incomplete,
            num_missed=sum(member.num_missed for member in self.members.values()),
            num_dropped=sum(member.num_dropped for member in self.members.values()),
        )


@dataclass
class Job:
    """Everything the daemon keeps in memory about one job."""

    name: str
    created: float
    gap: int = 1
    """The usual distance of two reported steps; above 1 in a log that has only every so many."""
    is_live: bool = True
    """False for a log that is replayed."""
    attempt: Attempt | None = None
    num_attempts: int = 0
    key: str = ""
    """The key that its ranks report with; empty without keys, and in a job of the journal."""
    layers: tuple[Layer, ...] = ()
    groups: tuple[Group, ...] = ()
    visible: frozenset[str] = frozenset()
    parts: tuple[JobPart, ...] = ()
    """The models, where several are trained; empty for one."""
    group_rows: GroupRows = field(default_factory=GroupRows)
    named: NamedNumbers = field(default_factory=NamedNumbers)
    """The names of the user's metrics and validations, and of several groups."""
    blind: dict[str, str] = field(default_factory=dict)
    config: dict[str, Scalar] = field(default_factory=dict)
    facts: dict[str, Scalar] = field(default_factory=dict)
    modules: tuple[Module, ...] = ()
    wrapper: str = ""
    last: AlignedStep | None = None
    last_sampled: AlignedStep | None = None
    """The last sampled step, for diagnoses."""
    samples: deque[SampleFacts] = field(default_factory=lambda: deque(maxlen=RECENT_SAMPLES))
    """What the last sampled steps showed, for diagnoses."""
    recent: deque[StepSummary] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=RECENT_EVENTS))
    pending_events: list[Event] = field(default_factory=list)
    episodes: EpisodeLog = field(default_factory=EpisodeLog)
    incidents: IncidentLog = field(init=False)
    incident_counts: dict[str, int] = field(default_factory=dict)
    """Incidents opened, by lead rule."""
    meters: Meters = field(default_factory=Meters)
    num_steps: int = 0
    num_non_finite: int = 0
    finding_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    num_refused: int = 0
    refused_detail: str = ""
    """The last process that claimed this job's name and was refused."""
    previous_scheduler_steps: int | None = None
    """What the scheduler had counted at the step that this attempt resumed from; None where it is not known."""
    previous_lr: float | None = None
    """The learning rate of the step that this attempt resumed from; None where it is not known."""
    rollback: RollbackRecord = field(default_factory=RollbackRecord)
    faults: JobFaults = field(default_factory=JobFaults)
    """Failures of the daemon while it processed this job."""
    load: JobLoad = field(default_factory=JobLoad)
    lag_seconds: float = 0.0
    """Age of the newest report of the last step when the rules judged it, by its rank's clock."""

    def __post_init__(self) -> None:
        self.incidents = IncidentLog(self.name, gap=self.gap)

    def copy(self, num_recent: int | None = None) -> "Job":
        """The job as it is now, for a reader on another thread; with only the last `num_recent` steps.

        It has containers of its own. What is in them is shared: nearly all of it never changes, and a rank whose next
        report arrives meanwhile shows a newer number. So the state's lock is held for microseconds, also with thousands
        of ranks.
        """
        job = shallow(self)
        job.attempt = None if self.attempt is None else self.attempt.copy()
        skipped = 0 if num_recent is None else max(0, len(self.recent) - num_recent)
        job.recent = deque(itertools.islice(self.recent, skipped, None)) if skipped else self.recent.copy()
        job.events, job.pending_events = self.events.copy(), list(self.pending_events)
        job.episodes, job.incidents = self.episodes.copy(), self.incidents.copy()
        job.incident_counts, job.finding_counts = dict(self.incident_counts), dict(self.finding_counts)
        job.meters, job.rollback = shallow(self.meters), self.rollback.copy()
        job.named = self.named.copy()
        return job

    def describe(self, hello: Hello) -> None:
        """Takes over a rank's description of the model, the settings and what is visible."""
        self.layers, self.groups = hello.layers, hello.groups
        is_moving = hello.facts.get("objective") in ("adversarial", "reinforcement")
        self.visible = frozenset((*hello.visible, MOVING_OBJECTIVE) if is_moving else hello.visible)
        self.blind = dict(hello.blind)
        self.config, self.wrapper = dict(hello.config), hello.wrapper
        self.facts, self.modules = dict(hello.facts), hello.modules
        self.parts = job_parts(hello.parts, hello.groups, hello.modules)
        self.group_rows = GroupRows.of(hello.groups, hello.layers)

    @property
    def main_group(self) -> int:
        """The parameter group that the headline learning rate is of: the one with most parameters."""
        sizes = [group.num_parameters for group in self.groups]
        return sizes.index(max(sizes)) if sizes else 0

    def share(self, hello: Hello) -> Hello:
        """The same Hello with the job's own tables where they are equal, so that thousands of ranks share one copy."""
        own = {name: getattr(self, name) for name in ("layers", "groups", "modules", "config", "facts")}
        return msgspec.structs.replace(hello, **{name: it for name, it in own.items() if getattr(hello, name) == it})

    def has_declared(self, event: Event) -> bool:
        """Whether a rank has reported this validation already: every rank may report that of the whole job."""
        if event.kind != "validation":
            return False
        known = itertools.islice(reversed(self.events), RANKS_APART)
        return any(_of(other) == _of(event) for other in known if other.step == event.step)

    def declared(self, step: AlignedStep | None = None) -> tuple[Event, ...]:
        """Events declared before this step that the rules have not seen yet; on a tick, since the last step."""
        return tuple(event for event in self.pending_events if step is None or event.step < step.step)

    def view(
        self, now: float, events: Sequence[Event], step: AlignedStep | None = None, regime: Regime = NONE
    ) -> JobView:
        """What rules may see of this job now; `events` are new to them, `step` is None on a tick."""
        attempt = self.attempt
        assert attempt is not None, "rules see a job once it has an attempt"
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
            events=events,
            modules=self.modules,
            facts=self.facts,
            config=self.config,
            blind=self.blind,
            regime=regime,
            look_at_alignment=attempt.alignment_facts,
            start_step=attempt.start_step,
            previous_lr=self.previous_lr,
            previous_scheduler_steps=self.previous_scheduler_steps,
            look_at_abstaining=lambda: attempt.engine.abstaining(self.visible),
        )

    def case(self, incident: Incident) -> Case:
        """An incident with all that a diagnosis may use."""
        attempt = self.attempt
        assert attempt is not None, "a job with an incident has an attempt"
        number = max(member.attempt for member in incident.episodes)
        recent = [summary for summary in self.recent if summary.attempt == number]
        part = next((part for part in self.parts if part.name == incident.part), None)
        sampled = self.last_sampled
        if part is not None:
            recent = [found for summary in recent if (found := summary.of_part(part.name)) is not None]
            sampled = None if sampled is None else narrowed(sampled, part)
        samples = [one for one in self.samples if one.attempt == number]
        return Case(
            incident=incident,
            recent=recent,
            world=attempt.world,
            is_live=self.is_live,
            groups=self.groups if part is None else self.groups[part.groups],
            layers=self.layers if part is None else layers_of(self.layers, part),
            modules=self.modules if part is None else part.modules_of(self.modules),
            facts=self.facts,
            config=self.config,
            events=self.events,
            visible=self.visible,
            abstaining=attempt.engine.abstaining(self.visible),
            sampled=sampled,
            is_on=attempt.engine.is_on,
            memory_use=[one.memory for one in samples],
            input_ranges=[seen for one in samples if (seen := one.input_range) is not None],
            targets=[targets for one in samples if (targets := one.targets) is not None],
            update_ratios=[ratio for one in samples if (ratio := one.update_of(incident.part)) is not None],
        )

    def keep_sample(self, step: AlignedStep) -> None:
        """Keeps what diagnoses read of a sampled step."""
        self.last_sampled = step.without_arrays()
        wholes: list[tuple[str, AlignedStep, Sequence[Layer]]] = [("", self.last_sampled, self.layers)]
        wholes += [(part.name, narrowed(self.last_sampled, part), layers_of(self.layers, part)) for part in self.parts]
        found = ((name, Updates().of(sampled, layers)) for name, sampled, layers in wholes)
        self.samples.append(SampleFacts.of(step, {name: ratio for name, ratio in found if ratio is not None}))

    @property
    def memory(self) -> list[MemoryUse]:
        """Memory use in the last sampled steps, oldest first."""
        return [one.memory for one in self.samples]

    def scheduler_steps_at(self, step: int) -> int | None:
        """What the scheduler had counted at a step, by the last report of the attempt so far and its pace."""
        last = self.last
        counts = [] if last is None else [report.num_scheduler_steps for report in last.reports.values()]
        known = next((count for count in counts if count is not None), None)
        return None if known is None or last is None else round(known * min(1.0, step / max(1, last.step)))

    def lr_at(self, step: int) -> float | None:
        """The largest group's learning rate at a step, by whichever attempt took it last, or just before it."""
        known = (s for s in reversed(self.recent) if s.step <= step and s.lr is not None)
        return next((summary.lr for summary in known), None)

    @property
    def state(self) -> str:
        """running, ended, cancelled, crashed, lost, or known (after a daemon restart, no message yet).

        cancelled: a signal terminated every rank, or all but those that lost a peer by that. crashed: a rank failed, or
        ended or vanished before the others were terminated. lost: all ranks are gone without a Bye.
        """
        members = self.attempt.members.values() if self.attempt else ()
        states = {member.state for member in members}
        if were_cancelled(members):
            return "cancelled"
        if "failed" in states:
            return "crashed"
        if states == {"left"}:
            return "ended"
        if "terminated" in states and all(member.state in GONE or member.is_gone for member in members):
            return "crashed"
        if self.attempt is not None and self.attempt.is_over:
            return "lost"
        return "running" if "live" in states else "known"

    def num_live(self, now: float) -> int:
        """Ranks that have not left and are not silent: a process that is killed sends no Bye."""
        attempt = self.attempt
        return 0 if attempt is None else sum(attempt.is_live(member, now) for member in attempt.members.values())

    @property
    def has_ended(self) -> bool:
        """Whether every rank said its Bye: nothing more will come of this attempt."""
        members = self.attempt.members.values() if self.attempt else ()
        return bool(members) and (self.state in ENDED_STATES or all(member.state in GONE for member in members))

    def num_missing(self, now: float) -> int:
        """Ranks that should report and do not; 0 once all have left or the job counts as ended."""
        attempt = self.attempt
        if attempt is None or attempt.is_over:
            return 0
        states = [member.state for member in attempt.members.values()]
        if all(state in GONE for state in states):
            return 0
        num_ended = sum(state in ("left", "terminated") for state in states)
        return max(0, attempt.world - num_ended - self.num_live(now))

    @property
    def latest_step(self) -> int:
        """The newest step of this attempt; before its first, the step that it began after."""
        if self.recent and self.recent[-1].attempt == self.num_attempts:
            return self.recent[-1].step
        return self.attempt.start_step if self.attempt else 0

    def held(self, column: Column) -> float | None:
        """The last known value of a number. An agent over its budget takes the gradient norm only every few steps."""
        recent = itertools.islice(reversed(self.recent), self._num_held_steps(column))
        values = (getattr(summary, column.name) for summary in recent)
        return next((value for value in values if value is not None), None)

    @property
    def last_seen(self) -> float:
        """When the last message of any of its ranks arrived."""
        members = self.attempt.members.values() if self.attempt else ()
        return max((member.last_seen for member in members), default=self.created)

    @property
    def ending(self) -> Ending | None:
        """How it ended and how it stood; None while it runs, or where that is not known."""
        attempt = self.attempt
        if attempt is None or not attempt.is_over:
            return None
        step = max((member.step for member in attempt.members.values()), default=0)
        step = max(step, self.latest_step)
        return ending_of(self.state, step, attempt.members.values(), self.incidents, self.num_attempts)

    @property
    def health(self) -> str:
        """The severity of the worst open incident; of a run that is over, of its ending.

        ok where there is none, warning where nobody looks.
        """
        incidents = self.incidents.open
        if incidents:
            return str(incidents[0].severity)
        if self.faults.is_quarantined:
            return "warning"
        ending = self.ending
        return "ok" if ending is None else ending.severity

    def held_of_part(self, part: JobPart, column: Column) -> float | None:
        """The last known value of a number of one part, which may step more rarely than others."""
        recent = itertools.islice(reversed(self.recent), self._num_held_steps(column))
        of_part = (summary.part(part.name) for summary in recent)
        known = (value for each in of_part if each is not None and (value := getattr(each, column.name)) is not None)
        return next(known, None)

    def _num_held_steps(self, column: Column) -> int:
        """How far back a value may lie; the newest step alone, where the job has become blind to the number."""
        if column.metric.removeprefix("caboose_").removeprefix("part_") in self.blind:
            return 1
        reports = self.last.reports.values() if self.last is not None else ()
        return max(HELD_STEPS, 2 * max((report.norm_every for report in reports), default=1))
