"""Takes an aligned step through its stations: summary, rules, episodes, journal, live stream.

Design
------
Called on the loop's thread with the state's lock held; time is an argument. What it produces for others (journal
rows, live updates) is handed to a `Sink`, so the same pipeline runs under a daemon, a replay and a test.
"""

import math
from collections.abc import Mapping
from typing import Protocol

from caboose_daemon.aligned import AlignedStep
from caboose_daemon.alignment import Aligner
from caboose_daemon.engine import Engine
from caboose_daemon.episodes import Episode
from caboose_daemon.job import Attempt, Job, Member
from caboose_daemon.regimes import RegimeTracker
from caboose_daemon.rules.finding import Finding
from caboose_daemon.rules.rule import RuleConfig
from caboose_daemon.state import State
from caboose_daemon.summary import StepSummary, summarize
from caboose_wire import Event, Hello

TICK_SECONDS = 1.0


class Sink(Protocol):
    """Where the pipeline's results go."""

    def attempt_began(self, job: Job) -> None:
        """A launch was recognised."""

    def member_changed(self, job: Job, member: Member) -> None:
        """A rank came, left or failed."""

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        """A step was aligned and judged."""

    def episode_changed(self, job: Job, episode: Episode) -> None:
        """Something was found, goes on, or ended."""

    def event_declared(self, job: Job, event: Event) -> None:
        """The user said something."""


class Pipeline:
    """Drives every job's steps through alignment and rules."""

    def __init__(self, state: State, sink: Sink, *, min_deadline: float = 2.0, deadline_steps: float = 3.0) -> None:
        self._state = state
        self._sink = sink
        self._min_deadline = min_deadline
        self._deadline_steps = deadline_steps
        self._next_tick = 0.0

    def begin_attempt(self, job: Job, hello: Hello, now: float) -> None:
        """A new launch of this job: fresh alignment, fresh baselines, the old one's episodes end."""
        if job.attempt is not None:
            self._close_steps(job, now, is_final=True)
            for episode in job.episodes.close_all():
                self._sink.episode_changed(job, episode)
        job.num_attempts += 1
        job.attempt = self.make_attempt(job.num_attempts, hello.world, hello.launch, hello.attempt, now)
        if hello.start_step > 0:
            job.attempt.regimes = RegimeTracker(is_resumed=True)
        job.previous_lr = job.lr_at(hello.start_step) if hello.start_step > 0 else None
        job.last = None
        job.pending_events.clear()
        self._sink.attempt_began(job)

    def make_attempt(self, number: int, world: int, launch: str, agent_attempt: int, now: float) -> Attempt:
        """An attempt with nothing in it yet."""
        return Attempt(
            number=number,
            began=now,
            world=world,
            launch=launch,
            agent_attempt=agent_attempt,
            aligner=Aligner(number, min_deadline=self._min_deadline, deadline_steps=self._deadline_steps),
            engine=Engine(self._state.rule_configs, self._state.rule_stats),
            regimes=RegimeTracker(is_resumed=number > 1),
        )

    def configure(self, configs: Mapping[str, RuleConfig], now: float) -> None:
        """New thresholds for all jobs and attempts, present and coming; rules switched off end what they had found."""
        self._state.rule_configs = configs
        for job in self._state.jobs.values():
            if job.attempt is not None:
                self._found(job, job.attempt.engine.configure(configs), now)

    def admit(self, job: Job, hello: Hello, now: float) -> Member:
        """A rank takes its place in the current attempt, or takes it again."""
        assert job.attempt is not None, "admission begins an attempt first"
        known = job.attempt.members.get(hello.rank)
        member = Member(hello=hello, last_seen=now)
        if known is not None and known.hello.incarnation == hello.incarnation:
            member.step, member.last_seq = known.step, known.last_seq
            member.num_missed, member.num_dropped = known.num_missed, known.num_dropped
        job.attempt.members[hello.rank] = member
        if hello.rank == min(job.attempt.members) or not job.layers:
            job.layers, job.groups = hello.layers, hello.groups
            job.visible, job.blind = frozenset(hello.visible), dict(hello.blind)
            job.config, job.wrapper = dict(hello.config), hello.wrapper
            job.facts, job.modules = dict(hello.facts), hello.modules
        self._sink.member_changed(job, member)
        return member

    def leave(self, job: Job, member: Member, error: str) -> None:
        """A rank said good-bye."""
        member.state = "failed" if error else "left"
        member.error = error
        self._sink.member_changed(job, member)

    def declare(self, job: Job, event: Event) -> None:
        """The user declared an event."""
        job.events.append(event)
        if len(job.pending_events) < 1000:
            job.pending_events.append(event)
        self._sink.event_declared(job, event)

    def advance(self, now: float) -> None:
        """Closes what is due and, about once a second, lets the time-driven rules look."""
        is_tick = now >= self._next_tick
        if is_tick:
            self._next_tick = now + TICK_SECONDS
        for job in self._state.jobs.values():
            if job.attempt is None:
                continue
            self._close_steps(job, now)
            if is_tick and job.attempt.members:
                self._found(job, job.attempt.engine.run(job.view(now), "tick"), now)

    def _close_steps(self, job: Job, now: float, *, is_final: bool = False) -> None:
        attempt = job.attempt
        assert attempt is not None, "only a job with an attempt has steps"
        expected = set() if is_final else attempt.expected
        for step in attempt.aligner.close(expected, attempt.world, job.layers, now):
            self._judge(job, attempt, step, now)

    def _judge(self, job: Job, attempt: Attempt, step: AlignedStep, now: float) -> None:
        summary = summarize(step)
        job.last = step
        job.recent.append(summary)
        job.num_steps += 1
        has_bad_norm = step.has_grad_norm and not math.isfinite(step.grad_norm)
        job.num_non_finite += bool(step.bad_loss_ranks) or has_bad_norm
        seconds = step.phase_seconds("total")
        regime = attempt.regimes.observe(
            lr=max(step.lr) if step.lr else None,
            num_samples=step.num_samples,
            step_seconds=None if math.isnan(seconds) else seconds,
            events=job.declared(step),
        )
        findings = attempt.engine.run(job.view(now, step, regime), "step")
        job.pending_events = [event for event in job.pending_events if event.step >= step.step]
        self._sink.step_closed(job, summary)
        self._found(job, findings, now)

    def _found(self, job: Job, findings: list[Finding], now: float) -> None:
        assert job.attempt is not None, "findings are about an attempt"
        for finding in findings:
            before = {episode.id for episode in job.episodes.open}
            for episode in job.episodes.add(finding, job.attempt.number, now):
                if episode.is_open and episode.id not in before:
                    key = (episode.rule, str(episode.severity))
                    job.finding_counts[key] = job.finding_counts.get(key, 0) + 1
                self._sink.episode_changed(job, episode)
