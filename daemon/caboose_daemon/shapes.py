"""The JSON shapes of the API and of the live stream, in one place.

JSON has no NaN. A number that is not finite is given as one of the texts "NaN", "Infinity" and "-Infinity", never as
null: null means that nothing was reported.
"""

import math
from collections.abc import Mapping
from typing import Any

from caboose_daemon.engine import RuleStats
from caboose_daemon.episodes import Episode
from caboose_daemon.job import Job, Member
from caboose_daemon.rules.describe import Description
from caboose_daemon.rules.finding import Finding
from caboose_daemon.rules.rule import RuleConfig
from caboose_daemon.summary import StepSummary
from caboose_wire import Event

Json = dict[str, Any]


def number(value: float | None) -> float | str | None:
    """A number as JSON can carry it."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def settings(values: Mapping[str, object]) -> Json:
    """Settings that came from a run, whatever they hold."""
    return {name: number(value) if isinstance(value, float) else value for name, value in values.items()}


def step(summary: StepSummary) -> Json:
    """One step of the curves."""
    return {
        "attempt": summary.attempt,
        "step": summary.step,
        "time": summary.time,
        "loss": number(summary.loss),
        "loss_min": number(summary.loss_min),
        "loss_max": number(summary.loss_max),
        "grad_norm": number(summary.grad_norm),
        "lr": number(summary.lr),
        "step_seconds": number(summary.step_seconds),
        "data_seconds": number(summary.data_seconds),
        "agent_seconds": number(summary.agent_seconds),
        "num_ranks": summary.num_ranks,
    }


def finding(item: Finding) -> Json:
    """One verdict."""
    return {
        "step": item.step,
        "severity": str(item.severity),
        "state": item.state,
        "summary": item.summary,
        "ranks": list(item.ranks),
        "layers": list(item.layers),
        "phase": item.phase,
        "values": {name: number(value) for name, value in item.values.items()},
    }


def episode(item: Episode) -> Json:
    """A condition from its first finding to its last."""
    return {
        "id": item.id,
        "rule": item.rule,
        "attempt": item.attempt,
        "severity": str(item.severity),
        "is_open": item.is_open,
        "onset_step": item.first.onset_step,
        "detected_step": item.first.step,
        "last_step": item.last.step,
        "detected_time": item.detected_time,
        "last_time": item.last_time,
        "num_findings": item.num_findings,
        "first": finding(item.first),
        "last": finding(item.last),
    }


def event(item: Event) -> Json:
    """Something that was declared."""
    return {
        "attempt": item.attempt,
        "step": item.step,
        "time": item.time,
        "kind": item.kind,
        "fields": settings(item.fields),
    }


def rank(member: Member, now: float) -> Json:
    """One rank now."""
    return {
        "rank": member.hello.rank,
        "host": member.hello.host,
        "pid": member.hello.pid,
        "state": member.state,
        "step": member.step,
        "loss": number(member.loss),
        "step_seconds": number(member.step_seconds),
        "silent_seconds": round(max(0.0, now - member.last_seen), 3),
        "num_missed": member.num_missed,
        "num_dropped": member.num_dropped,
        "agent_state": member.agent_state,
        "agent_failures": member.num_failures,
        "error": member.error,
    }


def job_row(job: Job, now: float) -> Json:
    """One job in the list."""
    last = job.recent[-1] if job.recent else None
    attempt = job.attempt
    return {
        "job": job.name,
        "state": job.state,
        "health": job.health,
        "attempt": job.num_attempts,
        "world": attempt.world if attempt else 0,
        "num_live": job.num_live,
        "step": last.step if last else 0,
        "loss": number(last.loss) if last else None,
        "num_open": len(job.episodes.open),
        "created": job.created,
        "silent_seconds": round(max(0.0, now - job.last_seen), 3),
    }


def job_detail(job: Job, now: float) -> Json:
    """Everything about one job but its curves."""
    attempt = job.attempt
    members = sorted(attempt.members.items()) if attempt else []
    seconds = [s.step_seconds for s in list(job.recent)[-50:] if s.step_seconds]
    agent = [s.agent_seconds for s in list(job.recent)[-50:] if s.agent_seconds is not None]
    mean_step = sum(seconds) / len(seconds) if seconds else None
    mean_agent = sum(agent) / len(agent) if agent else None
    return {
        **job_row(job, now),
        "last": {**step(job.recent[-1]), "grad_norm": number(job.latest_grad_norm)} if job.recent else None,
        "num_steps": job.num_steps,
        "num_non_finite": job.num_non_finite,
        "num_layers": len(job.layers),
        "num_parameters": sum(layer.numel for layer in job.layers),
        "wrapper": job.wrapper,
        "groups": [{"name": g.name, "optimizer": g.optimizer, "settings": settings(g.settings)} for g in job.groups],
        "config": settings(job.config),
        "visible": sorted(job.visible),
        "blind": dict(job.blind),
        "abstaining": attempt.engine.abstaining(job.visible) if attempt else {},
        "step_seconds": number(mean_step),
        "agent_seconds": number(mean_agent),
        "agent_share": number(mean_agent / mean_step) if mean_agent is not None and mean_step else None,
        "refused": {"count": job.num_refused, "detail": job.refused_detail},
        "ranks": [rank(member, now) for _, member in members],
        "events": [event(e) for e in job.events],
    }


def thresholds(config: RuleConfig, origins: Mapping[str, str]) -> Json:
    """One rule's thresholds in force, each with who set it: default, file or posted."""
    return {key: {"value": setting(value), "from": origins[key]} for key, value in vars(config).items()}


def setting(value: object) -> object:
    """A threshold as JSON can carry it."""
    return number(value) if isinstance(value, float) else list(value) if isinstance(value, tuple) else value


def rule(about: Description, config: RuleConfig, origins: Mapping[str, str]) -> Json:
    """One rule as it is configured."""
    in_force = thresholds(config, origins)
    return {
        "rule": about.name,
        "brief": about.brief,
        "enabled": config.enabled,
        "severity": config.severity,
        "thresholds": {
            t.key: {**in_force[t.key], "default": setting(t.default), "doc": t.doc} for t in about.thresholds
        },
        "trigger": about.trigger,
        "needs": list(about.needs),
        "muted_in": list(about.muted_in),
        "forgets_after": list(about.forgets_after),
        "runbook": about.runbook,
    }


def rule_stats(stats: RuleStats) -> Json:
    """What one rule did and cost, over all jobs."""
    return {
        "runs": stats.runs,
        "mean_seconds": stats.seconds / stats.runs if stats.runs else None,
        "failures": stats.failures,
    }


def rule_states(job: Job, configs: Mapping[str, RuleConfig]) -> dict[str, Json]:
    """Each rule in one job: off, abstaining (with what it misses), open (how bad, since when) or quiet."""
    missing = job.attempt.engine.abstaining(job.visible) if job.attempt is not None else {}
    found = {episode.rule: episode for episode in job.episodes.open}
    states: dict[str, Json] = {}
    for name, config in configs.items():
        state: Json = {"job": job.name, "job_state": job.state, "state": "quiet"}
        if name in found:
            first = found[name].first
            state |= {"state": "open", "severity": str(found[name].severity), "onset_step": first.onset_step}
        elif not config.enabled:
            state |= {"state": "off"}
        elif name in missing:
            state |= {"state": "abstaining", "missing": missing[name]}
        states[name] = state
    return states
