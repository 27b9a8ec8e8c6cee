"""Prometheus metrics: one Collector that reads the state at scrape time.

Design
------
Nothing is counted twice: the numbers live in the state, and a scrape turns them into samples. Series per job are
bounded by a constant, plus four per rank up to `MAX_RANK_SERIES` ranks. Names are constants of this file; label
values that came over the network are made printable and short, because one lone surrogate would break the whole scrape.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from caboose_daemon.aligned import PHASES
from caboose_daemon.job import Job
from caboose_daemon.state import State
from caboose_daemon.version import __version__

MAX_RANK_SERIES = 512
JOB = "training_job"


def label(value: str) -> str:
    """A label value that can always be written: printable, at most 128 characters."""
    return "".join(c if c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF else "?" for c in value[:128])


class StateCollector(Collector):
    """The state as metric families."""

    def __init__(self, state: State, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._scrape_seconds = 0.0

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families depend on the jobs."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, read under the state's lock."""
        start = time.perf_counter()
        with self._state.lock:
            families = [*self._daemon(), *self._jobs()]
        self._scrape_seconds = time.perf_counter() - start
        yield from families
        yield gauge("caboose_scrape_seconds", "Time the last scrape took to read the state", self._scrape_seconds)

    def _daemon(self) -> Iterator[Metric]:
        state = self._state
        info = GaugeMetricFamily("caboose_daemon_info", "The daemon's version; always 1", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield gauge("caboose_daemon_start_time_seconds", "Unix time at which the daemon started", state.started)
        yield gauge("caboose_peers_connected", "Ranks that are introduced to the daemon", state.num_peers)
        yield counter("caboose_received_bytes_total", "Bytes received from agents", state.num_bytes)
        messages = CounterMetricFamily(
            "caboose_messages_received", "Messages accepted from agents, by type", labels=["type"]
        )
        for kind, count in sorted(state.num_frames.items()):
            messages.add_metric([kind], count)
        yield messages
        refused = CounterMetricFamily(
            "caboose_messages_refused", "Messages and peers refused, by reason", labels=["reason"]
        )
        for reason, count in sorted(state.num_refused.items()):
            refused.add_metric([reason], count)
        yield refused
        seconds = CounterMetricFamily("caboose_rule_seconds", "Time spent in each rule", labels=["rule"])
        runs = CounterMetricFamily("caboose_rule_runs", "Times each rule was run", labels=["rule"])
        failures = CounterMetricFamily("caboose_rule_failures", "Times each rule raised", labels=["rule"])
        for rule, stats in sorted(state.rule_stats.items()):
            seconds.add_metric([rule], stats.seconds)
            runs.add_metric([rule], stats.runs)
            failures.add_metric([rule], stats.failures)
        yield from (seconds, runs, failures)
        yield gauge("caboose_journal_size_bytes", "Size of the journal", state.journal_bytes)
        yield counter("caboose_journal_failures_total", "Failed writes to the journal", state.journal_failures)
        yield counter("caboose_journal_lost_rows_total", "Rows given up by the journal", state.journal_lost)

    def _jobs(self) -> Iterator[Metric]:
        now = self._clock()
        families = JobFamilies()
        for job in self._state.jobs.values():
            families.add(job, now)
        yield from families.all()


class JobFamilies:
    """The families with a `training_job` label, filled job by job."""

    def __init__(self) -> None:
        self._made: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        g, c = self._gauge, self._counter
        self.health = g("caboose_job_up", "1 while any rank of the job is live")
        self.world = g("caboose_job_world_ranks", "Ranks the job was started with")
        self.live = g("caboose_job_live_ranks", "Ranks heard of and not gone")
        self.attempt = g("caboose_job_attempt", "Number of the current attempt")
        self.step = g("caboose_job_step", "Last step that was aligned")
        self.steps = c("caboose_job_steps", "Steps aligned since the job was first seen")
        self.non_finite = c("caboose_non_finite_steps", "Steps with a NaN or infinite loss or gradient")
        self.loss = g("caboose_loss", "Training loss over the ranks of the last step", "stat")
        self.norm = g("caboose_gradient_norm", "Global L2 norm of the gradient the optimizer applied")
        self.lr = g("caboose_learning_rate", "Learning rate of a parameter group", "group")
        self.phase = g("caboose_phase_seconds", "Mean over ranks of a phase of the last step", "phase")
        self.agent = g("caboose_agent_step_seconds", "Mean time the agent took on the training thread, last step")
        self.late = c("caboose_reports_late", "Reports that came after their step had closed")
        self.incomplete = c("caboose_steps_incomplete", "Steps that closed without all ranks")
        self.missed = c("caboose_reports_missed", "Reports that never arrived, by gaps in sequence numbers")
        self.dropped = c("caboose_reports_dropped", "Reports the agents dropped because their queue was full")
        self.open = g("caboose_finding_open", "1 while a rule's finding is open", "rule", "severity")
        self.found = c("caboose_findings", "Episodes a rule has opened", "rule", "severity")
        self.duplicates = c("caboose_job_duplicates_refused", "Other processes that claimed this job's name")
        self.rank_loss = g("caboose_rank_loss", "Loss of one rank in its last report", "rank")
        self.rank_step = g("caboose_rank_step", "Last step of one rank", "rank")
        self.rank_seconds = g("caboose_rank_step_seconds", "Duration of one rank's last step", "rank")
        self.rank_silent = g("caboose_rank_silent_seconds", "Time since one rank was last heard", "rank")

    def _gauge(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=[JOB, *labels])
        self._made[name] = family
        return family

    def _counter(self, name: str, text: str, *labels: str) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=[JOB, *labels])
        self._made[name] = family
        return family

    def all(self) -> Iterable[Metric]:
        """The families, in the order they were made."""
        return self._made.values()

    def add(self, job: Job, now: float) -> None:
        """One job's samples."""
        name = [label(job.name)]
        attempt = job.attempt
        members = attempt.members if attempt else {}
        self.health.add_metric(name, float(job.num_live > 0))
        self.world.add_metric(name, attempt.world if attempt else 0)
        self.live.add_metric(name, job.num_live)
        self.attempt.add_metric(name, job.num_attempts)
        self.steps.add_metric(name, job.num_steps)
        self.non_finite.add_metric(name, job.num_non_finite)
        self.missed.add_metric(name, sum(m.num_missed for m in members.values()))
        self.dropped.add_metric(name, sum(m.num_dropped for m in members.values()))
        self.duplicates.add_metric(name, job.num_refused)
        if attempt is not None:
            self.late.add_metric(name, attempt.aligner.num_late)
            self.incomplete.add_metric(name, attempt.aligner.num_incomplete)
        for episode in job.episodes.open:
            self.open.add_metric([*name, episode.rule, str(episode.severity)], 1)
        for (rule, severity), count in sorted(job.finding_counts.items()):
            self.found.add_metric([*name, rule, severity], count)
        self._add_step(job, name)
        self._add_ranks(job, name, now)

    def _add_step(self, job: Job, name: list[str]) -> None:
        if not job.recent:
            return
        summary = job.recent[-1]
        self.step.add_metric(name, summary.step)
        for stat, value in (("mean", summary.loss), ("min", summary.loss_min), ("max", summary.loss_max)):
            if value is not None:
                self.loss.add_metric([*name, stat], value)
        norm = job.latest_grad_norm
        if norm is not None:
            self.norm.add_metric(name, norm)
        if summary.agent_seconds is not None:
            self.agent.add_metric(name, summary.agent_seconds)
        if job.last is None:
            return
        for group, rate in zip(job.groups, job.last.lr, strict=False):
            self.lr.add_metric([*name, label(group.name)], rate)
        for phase in PHASES:
            seconds = job.last.phase_seconds(phase)
            if math.isfinite(seconds):
                self.phase.add_metric([*name, phase], seconds)

    def _add_ranks(self, job: Job, name: list[str], now: float) -> None:
        members = job.attempt.members if job.attempt else {}
        if len(members) > MAX_RANK_SERIES:
            return
        for rank, member in sorted(members.items()):
            labels = [*name, str(rank)]
            self.rank_step.add_metric(labels, member.step)
            self.rank_silent.add_metric(labels, max(0.0, now - member.last_seen))
            if member.loss is not None:
                self.rank_loss.add_metric(labels, member.loss)
            if member.step_seconds is not None:
                self.rank_seconds.add_metric(labels, member.step_seconds)


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """A gauge of one sample."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter of one sample."""
    return CounterMetricFamily(name, text, value=value)
