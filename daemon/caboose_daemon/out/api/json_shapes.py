"""The JSON shapes of the API and the live stream.

JSON has no NaN. A non-finite number is one of the strings "NaN", "Infinity" and "-Infinity", never null: null means
not reported.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from caboose_daemon.diagnosis.advice import remedies
from caboose_daemon.incidents.diagnosis_record import Diagnosis, RankedCause
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.ending import Ending
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.out.links import Links
from caboose_daemon.rollback.attribution import cordons
from caboose_daemon.rollback.modes import owners_mode
from caboose_daemon.rollback_state.attribution import Cordon
from caboose_daemon.rollback_state.cost import Cost
from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ledger import LedgerEntry
from caboose_daemon.rollback_state.record import Weighed
from caboose_daemon.rollback_state.triage import Triage
from caboose_daemon.rules.parts.describe import alert_name
from caboose_daemon.rules.parts.finding import Finding
from caboose_daemon.steps.columns import (
    PART_COLUMNS,
    RANK_COLUMNS,
    RATES,
    STEP_COLUMNS,
    Column,
    PartNumbers,
    RankNumbers,
    StepSummary,
)
from caboose_wire import Event

Json = dict[str, Any]
NUM_LAST_STEPS = 50
"""Steps over which a job's step time is averaged."""


def number(value: float | None) -> float | str | None:
    """A number, or its name if not finite."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(item: msgspec.Struct) -> Json:
    """The fields of a struct; numbers as everywhere."""
    return settings(msgspec.to_builtins(item))


def settings(values: Mapping[str, object]) -> Json:
    """Values by name, such as the settings reported by a run."""
    return {name: number(value) if isinstance(value, float) else value for name, value in values.items()}


def step(summary: StepSummary) -> Json:
    row: Json = {column.name: number(getattr(summary, column.name)) for column in STEP_COLUMNS}
    row |= {name: number(getattr(summary, name)) for name in RATES}
    if summary.parts:
        row["parts"] = {each.name: part_numbers(each) for each in summary.parts}
    if summary.named:
        row["named"] = [[each.source, each.name, number(each.value)] for each in summary.named]
    return row


def part_numbers(numbers: PartNumbers) -> Json:
    return {column.name: number(getattr(numbers, column.name)) for column in PART_COLUMNS}


def finding(item: Finding) -> Json:
    return {
        "step": item.step,
        "severity": str(item.severity),
        "state": item.state,
        "summary": item.summary,
        "ranks": list(item.ranks),
        "layers": list(item.layers),
        "phase": item.phase,
        "part": item.part,
        "values": {name: number(value) for name, value in item.values.items()},
    }


def episode(item: Episode) -> Json:
    return {
        "id": item.id,
        "rule": item.rule,
        "part": item.part,
        "attempt": item.attempt,
        "severity": str(item.severity),
        "is_open": item.is_open,
        "onset_step": item.first.onset_step,
        "detected_step": item.first.step,
        "told_step": item.reported_step,
        "last_step": item.last.step,
        "detected_time": item.detected_time,
        "last_time": item.last_time,
        "num_findings": item.num_findings,
        "first": finding(item.first),
        "last": finding(item.last),
    }


def incident(item: Incident) -> Json:
    witness, ack, outgrown = item.witness, item.acknowledged, item.outgrown
    return {
        "id": item.id,
        "number": item.number,
        "attempt": item.attempt,
        "rule": item.rule,
        "part": item.part,
        "runbook": Links("/").of_runbook(alert_name(item.rule), item.job, item.number),
        "state": "unresolved" if item.is_unresolved else item.state,
        "is_open": item.is_open,
        "severity": str(item.severity),
        "worst": str(item.worst),
        "summary": item.summary,
        "onset_step": item.onset_step,
        "opened_step": item.opened_step,
        "opened_time": item.opened_time,
        "last_step": item.last_step,
        "closed_step": item.closed_step,
        "closed_time": item.closed_time,
        "reason": item.reason,
        "merged_into": item.merged_into,
        "is_unresolved": item.is_unresolved,
        "num_reopened": item.num_reopened,
        "regimes": list(item.regimes),
        "witness": None if witness is None else plain(witness),
        "acknowledged": None if ack is None else plain(ack),
        "outgrown": None if outgrown is None else plain(outgrown),
        "members": [member(episode) for episode in item.episodes],
        "diagnosis": None if item.diagnosis is None else diagnosis(item.diagnosis),
    }


def member(item: Episode) -> Json:
    """One episode of an incident."""
    return {
        "episode": item.id,
        "rule": item.rule,
        "part": item.part,
        "severity": str(item.severity),
        "is_open": item.is_open,
        "state": item.last.state,
        "onset_step": item.first.onset_step,
        "detected_step": item.reported_step,
        "last_step": item.last.step,
        "summary": item.worst.summary,
        "ranks": list(item.worst.ranks),
        "layers": list(item.worst.layers),
        "phase": item.worst.phase,
    }


def diagnosis(item: Diagnosis) -> Json:
    """The causes, the most likely first."""
    return {
        "step": item.step,
        "causes": [cause(ranked) for ranked in item.causes],
        "unknown": round(item.unknown, 4),
        "hunts": list(item.hunts),
        "refusals": [{"advice": refusal.advice, "why": refusal.why} for refusal in item.refusals],
        "missing": list(item.missing),
        "numbers": list(item.numbers),
    }


def cause(item: RankedCause) -> Json:
    return {
        "id": item.id,
        "title": item.title,
        "confidence": round(item.confidence, 4),
        "for": list(item.evidence_for),
        "against": list(item.evidence_against),
        "first_fix": item.advice.first_fix,
        "code": item.advice.code,
        "avoid": item.advice.avoid,
        "also": [{"what": remedy.what, "code": remedy.line} for remedy in remedies(item.id)],
        "verify": item.advice.verify,
    }


COST = ("waiting", "least", "most", "going_back", "caution")
"""The numbers of a decision's cost, in steps of training; `caution` is a factor."""


def decision(item: Decision) -> Json:
    """A decision with its reasons and outcome."""
    cost = item.cost
    return {
        "id": item.id,
        "number": item.number,
        "time": item.time,
        "attempt": item.attempt,
        "step": item.step,
        "mode": item.mode,
        "kind": item.kind,
        "trigger": item.trigger,
        "by": item.by,
        "state": item.state,
        "is_open": item.is_open,
        "summary": item.summary,
        "rung": item.rung,
        "num_tried": item.num_tried,
        "target": item.target,
        "boundary": item.boundary,
        "onset": item.onset,
        "skip": item.skip,
        "lr_scale": item.lr_scale,
        "max_norm": item.max_norm,
        "triage": None if item.triage is None else triage(item.triage),
        "cost": None if cost is None else costs(cost),
        "command": item.command,
        "world": item.world,
        "num_answers": dict(item.num_answers),
        "answers": [plain(answer) for answer in item.answers],
        "num_unreached": item.num_unreached,
        "unreached": list(item.unreached),
        "closed_time": item.closed_time,
        "outcome": item.outcome,
        "seconds": number(item.seconds),
        "steps_lost": item.steps_lost,
        "continuity": item.continuity,
        "saved": number(item.saved),
        "attribution": None if item.attribution is None else plain(item.attribution),
        "cordon": None if item.cordon is None else cordon(item.cordon),
        "explanation": item.explain(),
    }


def costs(item: Cost) -> Json:
    """The two costs of a decision."""
    return {name: number(getattr(item, name)) for name in COST}


def cordon(item: Cordon) -> Json:
    """Advice to take a machine out of the job."""
    return {**plain(item), "text": item.text}


def triage(item: Triage) -> Json:
    return {
        "verdict": item.verdict,
        "step": item.step,
        "began": item.began,
        "level": number(item.level),
        "noise": number(item.noise),
        "excess": number(item.excess),
        "peak": number(item.peak),
        "progress": number(item.progress),
        "lost": number(item.lost),
        "remaining": number(item.remaining),
        "least": number(item.least),
        "most": number(item.most),
        "rate": number(item.rate),
        "outlook": None if item.outlook is None else plain(item.outlook),
        "reasons": list(item.reasons),
    }


def weighed(item: Weighed | None) -> Json:
    """What a rollback would be now, and both costs."""
    if item is None:
        return {"cost": None, "target": None, "boundary": None}
    return {"cost": costs(item.cost), "target": item.target, "boundary": item.boundary}


def rollback(job: Job, budget: int, now: float) -> Json:
    """The rollback state of one job."""
    record = job.rollback
    check = record.check
    return {
        "mode": record.mode,
        "job_mode": owners_mode(job),
        "daemon_mode": None if record.terms is None else record.terms.rollback,
        "standing": record.standing,
        "exhausted": record.exhausted,
        "budget_left": record.budget_left(budget, now),
        "is_holding": record.is_holding,
        "is_off_schedule": any(holdings.is_off_schedule for holdings in record.holdings.values()),
        "cordons": [cordon(item) for item in cordons(job)],
        "cool_until": record.cool_until,
        "continuity": None if check is None else {"state": check.state, "text": check.text},
        "triages": [
            {
                "incident": f"{job.name}/{incident}",
                **triage(item),
                **weighed(record.weighed.get(incident)),
                "note": record.notes.get(incident, ""),
            }
            for incident, item in record.triages.items()
        ],
    }


def entry(item: LedgerEntry) -> Json:
    """A snapshot or a checkpoint."""
    return plain(item)


def event(item: Event) -> Json:
    return {
        "attempt": item.attempt,
        "step": item.step,
        "time": item.time,
        "kind": item.kind,
        "fields": settings(item.fields),
    }


def rank(member: Member, now: float) -> Json:
    return {
        "rank": member.hello.rank,
        "host": member.hello.host,
        "pid": member.hello.pid,
        "state": member.state,
        "step": member.step,
        **rank_numbers(member.numbers),
        "silent_seconds": round(max(0.0, now - member.last_seen), 3),
        "num_missed": member.num_missed,
        "num_dropped": member.num_dropped,
        "agent_state": member.agent_state,
        "agent_failures": member.num_failures,
        "error": member.error,
    }


def rank_numbers(numbers: RankNumbers) -> Json:
    return {column.name: number(getattr(numbers, column.name)) for column in RANK_COLUMNS}


def column(item: Column) -> Json:
    """A column's name, label and unit."""
    return {"name": item.name, "scope": item.scope, "label": item.label, "unit": item.unit, "worst": item.worst}


def job_row(job: Job, now: float) -> Json:
    """One job in the list."""
    last = job.recent[-1] if job.recent else None
    attempt = job.attempt
    return {
        "job": job.name,
        "state": job.state,
        "health": job.health,
        "ending": ending(job.ending),
        "attempt": job.num_attempts,
        "rollback": job.rollback.standing,
        "world": attempt.world if attempt else 0,
        "num_live": job.num_live(now),
        "step": last.step if last else 0,
        "loss": number(last.loss) if last else None,
        "num_open": len(job.incidents.open),
        "worst_rule": job.incidents.open[0].rule if job.incidents.open else None,
        "worst": _worst(job),
        "rollback_mode": job.rollback.mode,
        "step_seconds": number(mean_step_seconds(job)),
        "created": job.created,
        "silent_seconds": round(max(0.0, now - job.last_seen), 3),
    }


def _worst(job: Job) -> Json | None:
    """The worst open incident in short."""
    open_ones = job.incidents.open
    if not open_ones:
        return None
    worst = open_ones[0]
    return {
        "id": worst.id,
        "rule": worst.rule,
        "onset_step": worst.onset_step,
        "state": worst.state,
        "summary": worst.last_summary,
        "headline": worst.headline,
    }


def ending(item: Ending | None) -> Json | None:
    """How a job ended and how it stood; None while it runs."""
    if item is None:
        return None
    return {
        "state": item.state,
        "step": item.step,
        "how": item.how,
        "standing": item.standing,
        "text": item.text,
        "severity": item.worst,
        "is_acknowledged": item.is_acknowledged,
        "unresolved": [
            {
                "id": left.id,
                "rule": left.rule,
                "severity": str(left.severity_at_end),
                "onset_step": left.onset_step,
                "summary": left.last_summary,
                "acknowledged": None if left.acknowledged is None else plain(left.acknowledged),
            }
            for left in item.unresolved[:MAX_DIAGNOSED]
        ],
    }


def quarantine(job: Job, now: float) -> Json | None:
    """Why the daemon does not judge this job, and for how long; None where it does."""
    faults = job.faults
    if not faults.is_quarantined:
        return None
    left = round(max(0.0, faults.until - now), 3)
    return {"reason": faults.reason, "seconds_left": left, "num_unjudged": faults.num_unjudged}


def mean_step_seconds(job: Job) -> float | None:
    """Over the last steps; None if they have no times."""
    seconds = [s.step_seconds for s in itertools.islice(reversed(job.recent), NUM_LAST_STEPS) if s.step_seconds]
    return sum(seconds) / len(seconds) if seconds else None


def job_detail(job: Job, now: float, budget: int) -> Json:
    """Everything about one job except its curves; `budget` is the rollbacks per day."""
    members = sorted(job.attempt.members.items()) if job.attempt else []
    return {**job_facts(job, now, budget), "ranks": [rank(member, now) for _, member in members]}


def _held(job: Job) -> Json:
    """The last known values of the numbers that are not taken on every step."""
    return {column.name: number(job.held(column)) for column in STEP_COLUMNS if column.is_held}


def job_facts(job: Job, now: float, budget: int) -> Json:
    """Everything about one job except its curves and ranks."""
    attempt = job.attempt
    last = itertools.islice(reversed(job.recent), NUM_LAST_STEPS)
    agent = [s.agent_seconds for s in last if s.agent_seconds is not None]
    mean_step = mean_step_seconds(job)
    mean_agent = sum(agent) / len(agent) if agent else None
    return {
        **job_row(job, now),
        "last": {**step(job.recent[-1]), **_held(job)} if job.recent else None,
        "num_steps": job.num_steps,
        "num_non_finite": job.num_non_finite,
        "num_layers": len(job.layers),
        "num_parameters": sum(layer.numel for layer in job.layers),
        "wrapper": job.wrapper,
        "parts": parts(job),
        "groups": [{"name": g.name, "optimizer": g.optimizer, "settings": settings(g.settings)} for g in job.groups],
        "config": settings(job.config),
        "facts": settings(job.facts),
        "visible": sorted(job.visible),
        "blind": dict(job.blind),
        "abstaining": attempt.engine.abstaining(job.visible) if attempt else {},
        "agent": agent_facts(job),
        "agent_seconds": number(mean_agent),
        "agent_share": number(mean_agent / mean_step) if mean_agent is not None and mean_step else None,
        "quarantine": quarantine(job, now),
        "refused": {"count": job.num_refused, "detail": job.refused_detail},
        "rollback_state": rollback(job, budget, now),
        "events": [event(e) for e in job.events],
    }


def parts(job: Job) -> list[Json]:
    """The parts of a job with several models, with the last known numbers of each; empty for one model."""
    return [
        {
            "name": part.name,
            "num_layers": len(job.layers[part.layers]),
            "num_parameters": sum(layer.numel for layer in job.layers[part.layers]),
            "groups": [group.name for group in job.groups[part.groups]],
            **{column.name: number(job.held_of_part(part, column)) for column in PART_COLUMNS},
        }
        for part in job.parts
    ]


def agent_facts(job: Job) -> Json | None:
    """Versions, intervals and batch shape of the lowest rank; None before the first rank."""
    members = job.attempt.members if job.attempt else {}
    if not members:
        return None
    first = members[min(members)].hello
    reports = list(job.last.reports.values()) if job.last is not None else []
    batch = next((report.batch for report in reports if report.batch is not None), None)
    return {
        "version": first.agent_version,
        "torch_version": first.torch_version,
        "started": first.started,
        "sample_every": max((report.sample_every for report in reports), default=0) or None,
        "norm_every": max((report.norm_every for report in reports), default=None),
        "phase_every": max((report.phase_every for report in reports), default=None),
        "batch_shape": None if batch is None else list(batch.shape),
    }


MAX_DIAGNOSED = 20


def job_diagnosis(job: Job) -> Json:
    """The open incidents, or else the last ones, with their causes."""
    incidents = job.incidents.open or list(itertools.islice(job.incidents, MAX_DIAGNOSED))
    return {
        "job": job.name,
        "state": job.state,
        "health": job.health,
        "ending": ending(job.ending),
        "step": job.recent[-1].step if job.recent else 0,
        "num_open": len(job.incidents.open),
        "incidents": [incident(item) for item in incidents],
    }
