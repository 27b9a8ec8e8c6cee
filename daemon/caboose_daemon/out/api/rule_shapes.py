"""The JSON shapes of rules: configuration, statistics, and state in each job."""

from collections.abc import Mapping

from caboose_daemon.jobs.engine import RuleStats
from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api.json_shapes import Json, number
from caboose_daemon.rules.parts.describe import Description
from caboose_daemon.rules.parts.rule import RuleConfig


def thresholds(config: RuleConfig, origins: Mapping[str, str]) -> Json:
    """One rule's thresholds in force, each with its origin: default, file or posted."""
    return {key: {"value": setting(value), "from": origins[key]} for key, value in vars(config).items()}


def setting(value: object) -> object:
    """A threshold as JSON."""
    return number(value) if isinstance(value, float) else list(value) if isinstance(value, tuple) else value


def rule(about: Description, config: RuleConfig, origins: Mapping[str, str]) -> Json:
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


def stats(of: RuleStats) -> Json:
    """Runs, time and failures of one rule over all jobs."""
    return {
        "runs": of.runs,
        "mean_seconds": of.seconds / of.runs if of.runs else None,
        "failures": of.failures,
    }


def states(job: Job, configs: Mapping[str, RuleConfig]) -> dict[str, Json]:
    """Each rule in one job: off, abstaining (with the missing data), open (with severity and onset) or quiet."""
    missing = job.attempt.engine.abstaining(job.visible) if job.attempt is not None else {}
    found = {episode.rule: episode for episode in job.episodes.open}
    found_states: dict[str, Json] = {}
    for name, config in configs.items():
        state: Json = {"job": job.name, "job_state": job.state, "state": "quiet"}
        if name in found:
            first = found[name].first
            state |= {"state": "open", "severity": str(found[name].severity), "onset_step": first.onset_step}
        elif not config.enabled:
            state |= {"state": "off"}
        elif name in missing:
            state |= {"state": "abstaining", "missing": missing[name]}
        found_states[name] = state
    return found_states
