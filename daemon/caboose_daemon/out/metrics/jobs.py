"""The series of one job, except layers, ranks and incidents."""

from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.names import OTHER
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.steps.aligned import PHASES
from caboose_daemon.steps.columns import PART_COLUMNS, STEP_COLUMNS
from caboose_daemon.steps.settings import as_numbers

MAX_GROUPS = 16
MAX_BLIND = 32
MAX_PARTS = 16
MAX_METRICS = 16
MAX_KINDS = 8
"""Limit on different (wrapper, optimizer, precision) under one job name in one day."""
SPEED_STEPS = 50
"""Steps over which speed and overhead are averaged."""


def add_job(job: Job, samples: JobSamples, now: float) -> None:
    """Adds identity, progress, speed and findings of the job."""
    attempt = job.attempt
    members = list(attempt.members.values()) if attempt else []
    kind = (job.wrapper, *(str(job.facts.get(name, "")) for name in ("optimizer", "precision")))
    samples.add("caboose_job_info", 1.0, *(kind if samples.names.admit("kind", MAX_KINDS, *kind) else 3 * (OTHER,)))
    num_live = job.num_live(now)
    samples.add("caboose_job_up", float(num_live > 0))
    samples.add("caboose_job_failed", float(any(member.state == "failed" for member in members)))
    samples.add("caboose_job_world_ranks", attempt.world if attempt else 0)
    samples.add("caboose_job_live_ranks", num_live)
    samples.add("caboose_job_missing_ranks", job.num_missing(now))
    samples.add("caboose_job_attempt", job.num_attempts)
    samples.add("caboose_job_steps_total", job.num_steps)
    samples.add("caboose_job_quarantined", float(job.faults.is_quarantined))
    samples.add("caboose_job_throttled_messages_total", job.load.num_throttled)
    samples.add("caboose_job_duplicates_refused_total", job.num_refused)
    samples.add("caboose_non_finite_steps_total", job.num_non_finite)
    samples.add("caboose_clipped_steps_total", job.meters.num_clipped)
    samples.add("caboose_skipped_steps_total", job.meters.num_skipped)
    samples.add("caboose_agents_disabled", sum(member.agent_state == "disabled" for member in members))
    for stat in _chosen("blind", sorted(job.blind), MAX_BLIND, samples):
        samples.add("caboose_blind", 1.0, stat)
    if attempt is not None:
        facts = attempt.alignment_facts()
        samples.add("caboose_reports_late_total", facts.num_late)
        samples.add("caboose_steps_incomplete_total", facts.num_incomplete)
        samples.add("caboose_reports_missed_total", facts.num_missed)
        samples.add("caboose_reports_dropped_total", facts.num_dropped)
        samples.add("caboose_rules_abstaining", len(attempt.engine.abstaining(job.visible)))
    for episode in job.episodes.open:
        samples.add("caboose_finding_open", 1.0, episode.rule, str(episode.severity))
    for (rule, severity), count in sorted(job.finding_counts.items()):
        samples.add("caboose_findings_total", count, rule, severity)
    _add_step(job, samples)
    _add_validation(job, samples)
    for name in _chosen("user_metric", sorted(job.named.metrics), MAX_METRICS, samples):
        samples.add("caboose_user_metric", job.named.metrics[name], name)
    samples.names.leave_out(job.named.num_left_out)


def _add_step(job: Job, samples: JobSamples) -> None:
    if not job.recent:
        return
    summary = job.recent[-1]
    for column in STEP_COLUMNS:
        if column.metric:
            value = job.held(column) if column.is_held else getattr(summary, column.name)
            samples.add(column.metric, value, *((column.stat,) if column.stat else ()))
    _add_speed(job, samples)
    last = job.last
    if last is None:
        return
    samples.names.leave_out(len(job.groups) - MAX_GROUPS)
    for group, rate in list(zip(job.groups, last.lr, strict=False))[:MAX_GROUPS]:
        if samples.names.admit("group", 2 * MAX_GROUPS, group.name):
            samples.add("caboose_learning_rate", rate, group.name)
    for part in job.parts[:MAX_PARTS]:
        if samples.names.admit("part", 2 * MAX_PARTS, part.name):
            for column in PART_COLUMNS:
                samples.add(column.metric, job.held_of_part(part, column), part.name)
    for phase in PHASES:
        samples.add("caboose_phase_seconds", last.phase_seconds(phase), phase)
    samples.add("caboose_clip_ratio", last.clip_ratio)
    samples.add("caboose_loss_scale", None if last.scaler is None else last.scaler.scale)
    samples.add("caboose_layers_unseen", last.num_unseen_layers)
    samples.add("caboose_gradient_noise_ratio", job.meters.noise.ratio)
    if job.meters.replicas is not None:
        compared, differing = job.meters.replicas
        samples.add("caboose_replicas_compared", compared)
        samples.add("caboose_replicas_differing", differing)


def _add_speed(job: Job, samples: JobSamples) -> None:
    recent = [job.recent[i] for i in range(max(0, len(job.recent) - SPEED_STEPS), len(job.recent))]
    timed = [s.step_seconds for s in recent if s.step_seconds]
    if not timed:
        return
    mean = sum(timed) / len(timed)
    agent = [s.agent_seconds for s in recent if s.agent_seconds is not None]
    if agent:
        samples.add("caboose_agent_overhead_ratio", sum(agent) / len(agent) / mean)
    if job.last is not None:
        samples.add("caboose_samples_per_second", job.last.num_samples and job.last.num_samples / mean)
        samples.add("caboose_tokens_per_second", job.last.num_tokens and job.last.num_tokens / mean)


def _add_validation(job: Job, samples: JobSamples) -> None:
    last = next((event for event in reversed(job.events) if event.kind == "validation"), None)
    if last is None:
        return
    samples.add("caboose_validation_step", last.step)
    numbers = as_numbers(last.fields)
    samples.add("caboose_validation_loss", numbers.pop("loss", None))
    for name in _chosen("metric", sorted(numbers), MAX_METRICS, samples):
        samples.add("caboose_validation_metric", numbers[name], name)


def _chosen(kind: str, names: list[str], places: int, samples: JobSamples) -> list[str]:
    """The first `places` names that may have series; twice as many different ones in one day."""
    samples.names.leave_out(len(names) - places)
    return [name for name in names[:places] if samples.names.admit(kind, 2 * places, name)]
