"""Takes an aligned step through its stages: summary, rules, episodes, incidents, diagnosis, journal, live stream.

Design
------
Called on the loop's thread with the state's lock held; time is an argument. Its results (journal rows, live updates) go
to a `Sink`, so the same pipeline runs in a daemon, a replay and a test.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caboose_daemon.diagnosis import hunts
from caboose_daemon.diagnosis.weighing import diagnose_due
from caboose_daemon.format import duration
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Acknowledgement, Incident
from caboose_daemon.incidents.incident_log import Moment
from caboose_daemon.jobs.alert_wording import worded
from caboose_daemon.jobs.ending import ENDED_STATES
from caboose_daemon.jobs.engine import GRADIENT_NORM, Engine
from caboose_daemon.jobs.job import Attempt, Job, Member, proof_digest
from caboose_daemon.jobs.job_load import SLICE_SECONDS
from caboose_daemon.jobs.state import State
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.rules.parts.finding import Finding
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps import named
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.alignment import Aligner
from caboose_daemon.steps.columns import StepSummary, summarize
from caboose_daemon.steps.parts import PartStep, narrowed, view_of
from caboose_daemon.steps.regimes import RegimeTracker
from caboose_daemon.steps.view import GONE, JobView
from caboose_wire import Bye, Event, Hello

TICK_SECONDS = 1.0
ABANDONED_SECONDS = 3600.0
"""After this long without a message from any rank, a job counts as ended: its incidents close."""
OWN_GAP_SECONDS = 5.0
"""Between two ticks; a longer gap means that the daemon itself did not run."""
AWAKE_SECONDS = 60.0
"""For this long after such a gap no job counts as ended by its silence: its agents have to reconnect first."""

ENDED = "the run ended"
CRASHED = "the run crashed"
OVER_STATES = (*ENDED_STATES, "crashed")
LOCAL_GRADIENTS = (
    "the ranks' gradients differ when the optimizer's step begins: it reduces them itself (ZeRO, distributed Muon), or "
    "nothing does; samples show of a layer the largest of the ranks' own norms"
)


class Sink:
    """Where the pipeline's results go; this one keeps nothing."""

    def attempt_began(self, job: Job) -> None:
        """A launch was recognised."""

    def attempt_changed(self, job: Job) -> None:
        """The attempt is over, or goes on after all."""

    def member_changed(self, job: Job, member: Member) -> None:
        """A rank joined, left or failed."""

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        """A step was aligned and judged."""

    def episode_changed(self, job: Job, episode: Episode) -> None:
        """An episode began, went on or ended."""

    def incident_changed(self, job: Job, incident: Incident) -> None:
        """An incident opened, changed or closed."""

    def event_declared(self, job: Job, event: Event) -> None:
        """The user declared an event."""

    def decision_changed(self, job: Job, decision: Decision) -> None:
        """A decision about the run was made, or its outcome is known."""

    def ledger_changed(self, job: Job, entry: LedgerEntry) -> None:
        """A snapshot or checkpoint was made or removed, or its health changed."""


@dataclass(frozen=True)
class Change:
    """A change of the state that is prepared: written with `record` first, then made with `apply`.

    Neither depends on the other, so that a change that cannot be written is simply not made.
    """

    record: Callable[[Sink], None]
    """Hands to a sink what the change is; called once for each sink."""
    apply: Callable[[], None]
    """Makes the change in memory; the sinks already have it."""

    def make(self, sink: Sink) -> None:
        """Both at once: for changes that wait to be written with the rows of their turn."""
        self.record(sink)
        self.apply()


class Pipeline:
    """Drives every job's steps through alignment and rules."""

    def __init__(
        self,
        state: State,
        sink: Sink,
        *,
        min_deadline: float = 2.0,
        deadline_steps: float = 3.0,
        abandoned_seconds: float = ABANDONED_SECONDS,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._state = state
        self._sink = sink
        self._min_deadline = min_deadline
        self._deadline_steps = deadline_steps
        self._abandoned_seconds = abandoned_seconds
        self._timer = timer
        self._next_tick = 0.0
        self.is_crowded = False
        """Whether a job had more steps waiting in the last turn than it may take of one."""
        self._last_tick = 0.0
        self._awake_since = 0.0

    def begin_attempt(self, job: Job, hello: Hello, now: float, *, is_rollback: bool = False) -> None:
        """Begins an attempt, by a launch or a rollback: new alignment and baselines; what was open ends."""
        if job.attempt is not None:
            with self._state.guard.watch("step", job, now):
                self._close_steps(job, now, is_final=True)
            if not is_rollback and job.state in ENDED_STATES:
                self._end(job, now, ENDED)  # all its ranks may have left since the last tick
            why = _rolled_back(job, hello) if is_rollback else f"attempt {job.num_attempts + 1} began"
            self._end(job, now, why, is_cut=True)
        job.faults.release()
        job.num_attempts += 1
        job.attempt = self.make_attempt(job, hello.world, hello.launch, hello.attempt, now)
        job.attempt.start_step = hello.start_step
        job.attempt.proof = proof_digest(hello)
        job.attempt.reason = "rollback" if is_rollback else ""
        if hello.start_step > 0:
            job.attempt.regimes = RegimeTracker(is_resumed=True)
        is_resumed = hello.start_step > 0 and not is_rollback  # a rollback takes the schedule back with the weights
        job.previous_lr = job.lr_at(hello.start_step) if is_resumed else None
        job.previous_scheduler_steps = job.scheduler_steps_at(hello.start_step) if is_resumed else None
        job.last = job.last_sampled = None
        job.meters.restart()
        job.rollback.restart(is_rollback=is_rollback, start_step=hello.start_step)
        job.pending_events.clear()
        self._sink.attempt_began(job)

    def make_attempt(self, job: Job, world: int, launch: str, agent_attempt: int, now: float) -> Attempt:
        """The job's latest attempt, with nothing in it yet."""
        number, state = job.num_attempts, self._state
        return Attempt(
            number=number,
            began=now,
            world=world,
            launch=launch,
            agent_attempt=agent_attempt,
            aligner=Aligner(number, min_deadline=self._min_deadline, deadline_steps=self._deadline_steps),
            engine=Engine(state.rules, state.rule_configs, state.rule_stats, job.episodes),
            regimes=RegimeTracker(is_resumed=number > 1),
        )

    def configure(self, configs: Mapping[str, RuleConfig], now: float) -> None:
        """Sets thresholds for all jobs, now and later; ends what the rules found that are switched off."""
        self._state.rule_configs = configs
        for job in self._state.jobs.values():
            if job.attempt is not None:
                engines = (job.attempt.engine, *job.attempt.part_engines.values())
                self._found(job, [finding for engine in engines for finding in engine.configure(configs)], now)

    def admit(self, job: Job, hello: Hello, now: float) -> Member:
        """A rank joins the current attempt, or reconnects."""
        assert job.attempt is not None, "admission begins an attempt first"
        hello = job.share(hello)
        known = job.attempt.members.get(hello.rank)
        member = Member(hello=hello, last_seen=now)
        if known is not None and known.hello.incarnation == hello.incarnation:
            member.step, member.last_seq = known.step, known.last_seq
            member.num_missed, member.num_dropped = known.num_missed, known.num_dropped
        job.attempt.put(member)
        if hello.rank == job.attempt.first_rank or not job.layers:
            job.describe(hello)
        self._sink.member_changed(job, member)
        return member

    def leave(self, job: Job, member: Member, bye: Bye) -> None:
        """A rank sent its Bye."""
        member.state = "terminated" if bye.signal else "failed" if bye.error else "left"
        member.error = bye.signal or bye.error
        if job.attempt is not None:
            job.attempt.note_state(member)
        self._sink.member_changed(job, member)

    def declare(self, job: Job, event: Event) -> None:
        """The user declared an event."""
        self.declaring(job, event).make(self._sink)

    def declaring(self, job: Job, event: Event) -> Change:
        """The change that an event makes: it is listed, and a checkpoint or a validation changes the ledger."""
        ledger = job.rollback.declaring(event)
        entries = [] if ledger is None else ledger.take_changes()

        def record(sink: Sink) -> None:
            sink.event_declared(job, event)
            for entry in entries:
                sink.ledger_changed(job, entry)

        def apply() -> None:
            if ledger is not None:
                job.rollback.ledger = ledger
            job.events.append(event)
            if len(job.pending_events) < 1000:
                job.pending_events.append(event)
            if event.kind == hunts.KIND and job.attempt is not None:  # a hunt is evidence for open incidents
                self._publish(job, [i for i in job.incidents.open if any(m.rule == "non_finite" for m in i.episodes)])

        return Change(record, apply)

    def advance(
        self, now: float, between: Callable[[], None] = lambda: None, *, read_until: float | None = None
    ) -> None:
        """Closes the steps that are due and, about once a second, runs the rules that are triggered by time.

        `between` is called after each job: the loop lets readers in. `read_until`: messages of later than this may wait
        to be read, so no rank is late or silent yet for lack of them.
        """
        until = now if read_until is None else read_until
        is_tick = now >= self._next_tick
        if is_tick:
            if now - self._last_tick > OWN_GAP_SECONDS:
                self._awake_since = now
            self._next_tick, self._last_tick = now + TICK_SECONDS, now
        self.is_crowded = False
        jobs = list(self._state.jobs.values())
        num_waiting = sum(job.attempt is not None and job.attempt.aligner.is_open for job in jobs)
        for job in jobs:
            is_open = job.attempt is not None and job.attempt.aligner.is_open
            if not (is_open or is_tick) or job.attempt is None or self._is_quarantined(job, now):
                continue
            with self._state.guard.watch("step", job, now):
                seconds = SLICE_SECONDS if len(jobs) > 1 else math.inf
                self._close_steps(job, now, until=until, seconds=seconds, do_others_wait=num_waiting > 1)
            if is_tick and job.attempt.members:
                with self._state.guard.watch("tick", job, now):
                    self._tick(job, job.attempt, now, until)
            between()

    def _is_quarantined(self, job: Job, now: float) -> bool:
        """Whether the job is not judged now; a quarantine that is over ends here, with fresh baselines."""
        faults, attempt = job.faults, job.attempt
        if not faults.is_quarantined or attempt is None:
            return False
        if now < faults.until:
            return True
        faults.release()
        last_closed = max(attempt.aligner.last_closed, *(member.step for member in attempt.members.values()), -1)
        fresh = self.make_attempt(job, attempt.world, attempt.launch, attempt.agent_attempt, now)
        attempt.aligner, attempt.engine, attempt.regimes = fresh.aligner, fresh.engine, fresh.regimes
        attempt.part_engines = {}
        attempt.aligner.last_closed = last_closed
        attempt.engine.resume()
        return False

    def _tick(self, job: Job, attempt: Attempt, now: float, until: float) -> None:
        why = self._why_over(job, until)
        if not why and attempt.is_over and job.last_seen < self._awake_since:
            return  # the daemon has just come back: the run stays over until one of its ranks is heard
        if not why:
            self._set_over(job, attempt, is_over=False)
            self._found(job, attempt.engine.run(job.view(until, job.declared()), "tick"), now)
        elif not attempt.is_over or job.incidents.open or job.episodes.open:
            is_lost = job.state not in OVER_STATES
            if not is_lost:  # rules that waited for its ranks end, and what its ranks ended with is found
                self._found(job, attempt.engine.run(job.view(until, job.declared()), "tick"), now)
            self._set_over(job, attempt, is_over=True)
            # A launcher that starts it again, or a rank that comes back, goes on with the same incidents.
            self._end(job, now, why, is_cut=job.state == "crashed")

    def _set_over(self, job: Job, attempt: Attempt, *, is_over: bool) -> None:
        if attempt.is_over != is_over:
            attempt.is_over = is_over
            self._sink.attempt_changed(job)

    def _why_over(self, job: Job, now: float) -> str:
        """Why nothing more will come of the attempt; empty while something may.

        A crashed job is over once no rank is left that runs: the others may wait in a collective for half an hour.
        """
        if job.state in ENDED_STATES:
            return ENDED
        if job.state == "crashed" and (job.has_ended or self._are_all_silent(job, now)):
            return CRASHED
        silence = f"no message from any rank for {duration(self._abandoned_seconds)}: killed, or not reachable"
        return silence if self._is_abandoned(job, now) else ""

    def _are_all_silent(self, job: Job, now: float) -> bool:
        """Whether the ranks without a Bye are silent for longer than the rules need to find that."""
        attempt = job.attempt
        assert attempt is not None, "only a job with an attempt has ranks"
        heard = max((m.last_seen for m in attempt.members.values() if m.state not in GONE), default=0.0)
        is_awake = now - self._awake_since > AWAKE_SECONDS  # its ranks had time to reconnect
        return is_awake and now - heard > attempt.engine.silence_seconds + OWN_GAP_SECONDS

    def _end(self, job: Job, now: float, why: str, *, is_cut: bool = False) -> None:
        """Ends all open episodes and incidents; with `is_cut`, the next attempt may reopen them."""
        ended = job.episodes.close_all()
        for episode in ended:
            self._sink.episode_changed(job, episode)
        moment = self._moment(job, now)
        news = job.incidents.update(ended, moment, reason=why, is_cut=is_cut)
        self._publish(job, [*news, *job.incidents.close_all(moment, why, is_cut=is_cut)])

    def _is_abandoned(self, job: Job, now: float) -> bool:
        """Whether all its ranks have been silent for so long that the job counts as ended."""
        is_silent = now - job.last_seen > self._abandoned_seconds
        return is_silent and now - self._awake_since > min(AWAKE_SECONDS, self._abandoned_seconds)

    def acknowledge(self, job: Job, number: int, acknowledgement: Acknowledgement | None) -> Incident | None:
        """Sets or (None) removes an acknowledgement; None where no such incident is open or unresolved."""
        prepared = self.acknowledging(job, number, acknowledgement)
        if prepared is None:
            return None
        incident, change = prepared
        change.make(self._sink)
        return incident

    def acknowledging(
        self, job: Job, number: int, acknowledgement: Acknowledgement | None
    ) -> tuple[Incident, Change] | None:
        """The incident as it will be, and the change that makes it so; None where none is open or unresolved."""
        incident = job.incidents.acknowledged(number, acknowledgement)
        if incident is None:
            return None
        return incident, Change(
            record=lambda sink: sink.incident_changed(job, incident),
            apply=lambda: job.incidents.put_back(incident),
        )

    def end_for_good(self, job: Job, number: int, reason: str) -> None:
        """An incident that was cut off by a rollback is over."""
        incident = job.incidents.end_for_good(number, reason)
        if incident is not None:
            self._sink.incident_changed(job, incident)

    def _close_steps(
        self,
        job: Job,
        now: float,
        *,
        until: float | None = None,
        is_final: bool = False,
        seconds: float = math.inf,
        do_others_wait: bool = False,
    ) -> None:
        """Judges the steps that are due; after so many seconds the rest has to wait."""
        attempt = job.attempt
        assert attempt is not None, "only a job with an attempt has steps"
        end, was_cut = self._timer() + seconds, False
        for step in attempt.aligner.close(
            attempt.gone,
            attempt.world,
            job.layers,
            now if until is None else until,
            main_group=job.main_group,
            is_total_whole=GRADIENT_NORM in job.visible,
            is_final=is_final,
        ):
            parts = [narrowed(step, part) for part in job.parts]
            numbers = job.named.admit(named.of_step(step, job.group_rows))
            self.judge(job, step, summarize(step, parts, numbers), job.declared(step), now, parts)
            job.pending_events = [event for event in job.pending_events if event.step >= step.step]
            if self._timer() >= end:
                was_cut = True
                break
        self.is_crowded |= was_cut
        job.load.note(job.name, attempt.aligner.num_open, now, was_cut=was_cut and do_others_wait)

    def judge(
        self,
        job: Job,
        step: AlignedStep,
        summary: StepSummary,
        events: Sequence[Event],
        now: float,
        parts: Sequence[PartStep] = (),
    ) -> None:
        """Takes an aligned step of the current attempt through all stages; `events` were declared before it."""
        attempt = job.attempt
        assert attempt is not None, "only a job with an attempt has steps"
        job.last = step
        if step.has_local_gradients:
            job.blind.setdefault("gradient_norm", LOCAL_GRADIENTS)
        if step.is_sampled:
            job.keep_sample(step)
        job.recent.append(summary)
        job.num_steps += 1
        job.num_non_finite += (
            bool(step.bad_loss_ranks) or step.has_bad_grad_norm or any(part.bad_loss_ranks for part in parts)
        )
        job.meters.observe(step)
        job.rollback.observe(step)
        job.lag_seconds = max(0.0, now - step.time)
        regime = attempt.regimes.observe(
            lr=max(step.lr) if step.lr else None,
            num_samples=step.num_samples,
            step_seconds=summary.step_seconds,
            events=events,
        )
        view = job.view(now, events, step, regime)
        findings = attempt.engine.run(view, "step") if not parts else self._judge_parts(job, attempt, view, parts)
        self._sink.step_closed(job, summary)
        if findings:
            self._found(job, findings, now)

    def _judge_parts(self, job: Job, attempt: Attempt, view: JobView, parts: Sequence[PartStep]) -> list[Finding]:
        """The job's rules with the first part, and the further parts by rules of their own."""
        first, *others = parts
        findings = attempt.engine.judge_part(first.part.name)
        findings += attempt.engine.run(view, "step", view_of(view, first.part, first))
        for step in others:
            engine = self.part_engine(job, attempt, step.part.name)
            findings += engine.run(view_of(view, step.part, step), "step")
        return findings

    def part_engine(self, job: Job, attempt: Attempt, name: str) -> Engine:
        """The rules of a further part, made when it is first judged."""
        engine = attempt.part_engines.get(name)
        if engine is None:
            state = self._state
            engine = Engine(
                state.rules, state.rule_configs, state.rule_stats, job.episodes, part=name, is_further_part=True
            )
            engine.resume()
            attempt.part_engines[name] = engine
        return engine

    def _found(self, job: Job, findings: list[Finding], now: float) -> None:
        assert job.attempt is not None, "findings are about an attempt"
        changed: dict[int, Episode] = {}
        for finding in findings:
            for episode in job.episodes.add(finding, job.attempt.number, now):
                if episode.is_open and episode.num_findings == 1:
                    key = (episode.rule, str(episode.severity))
                    job.finding_counts[key] = job.finding_counts.get(key, 0) + 1
                self._sink.episode_changed(job, episode)
                changed[episode.id] = episode
        if changed:
            known = job.incidents.num_opened
            news = job.incidents.update(changed.values(), self._moment(job, now))
            for incident in news:
                if incident.number > known:
                    job.incident_counts[incident.rule] = job.incident_counts.get(incident.rule, 0) + 1
            self._publish(job, news)

    def review(self, job: Job) -> None:
        """Diagnoses every open incident again, with all that is known by now."""
        self._publish(job, job.incidents.open)

    def _publish(self, job: Job, incidents: list[Incident]) -> None:
        """Diagnoses these incidents and those that are due again, words them, and hands them to the sink."""
        step = job.recent[-1].step if job.recent else 0
        for diagnosed in diagnose_due(job.incidents, incidents, step, job.case):
            incident = worded(job, diagnosed)
            if incident is not diagnosed:
                job.incidents.put_back(incident)
            self._sink.incident_changed(job, incident)

    def _moment(self, job: Job, now: float) -> Moment:
        assert job.attempt is not None, "incidents happen in an attempt"
        step = job.recent[-1].step if job.recent and job.recent[-1].attempt == job.attempt.number else 0
        return Moment(job.attempt.number, step, now, job.attempt.regimes.now.active, job.attempt.host_of)


def _rolled_back(job: Job, hello: Hello) -> str:
    decision = job.rollback.rollback_at(hello.start_step)
    return "rolled back" if decision is None else f"rolled back to step {decision.target}"
