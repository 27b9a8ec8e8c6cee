"""The tools about what was found: findings, incidents, diagnoses."""

from typing_extensions import TypedDict

from caboose_daemon.assistant.budget import Page, paged
from caboose_daemon.assistant.numbers import Number, short
from caboose_daemon.assistant.reader import Json, Reader
from caboose_daemon.assistant.untrusted import MAX_NAME, FromJob, ListFromJob, clean, from_job, list_from_job
from caboose_daemon.rules.parts.describe import alert_name

MAX_RANKS = 16
MAX_LAYERS = 6
MAX_MEMBERS = 6
MAX_CAUSES = 4
MAX_EVIDENCE = 6
MAX_MISSING = 5


class Finding(TypedDict):
    """What one rule found over consecutive steps; `values` are the numbers that it compared."""

    id: int
    rule: str
    severity: str
    is_open: bool
    attempt: int
    onset_step: int
    detected_step: int
    last_step: int
    summary: FromJob
    ranks: list[int]
    layers: ListFromJob
    phase: str
    values: dict[str, Number]


class Findings(TypedDict):
    """Findings of all rules, the newest first; those of severity info open no incident."""

    findings: list[Finding]
    page: Page


class Place(TypedDict):
    """Where it showed first; `steps_before_loss` is null while the loss has not moved."""

    rule: str
    step: int
    ranks: list[int]
    host: FromJob
    layers: ListFromJob
    phase: str
    steps_before_loss: int | None


class Incident(TypedDict):
    """Findings with one cause. `runbook` is an argument of the tool `runbook`."""

    number: int
    rule: str
    state: str
    severity: str
    worst_severity: str
    is_open: bool
    attempt: int
    onset_step: int
    opened_step: int
    last_step: int
    closed_step: int | None
    summary: FromJob
    reason_closed: FromJob | None
    acknowledged: FromJob | None
    likeliest_cause: str | None
    confidence: Number
    runbook: str


class Incidents(TypedDict):
    """The incidents of a job, open ones first."""

    incidents: list[Incident]
    page: Page


class Cause(TypedDict):
    """A possible cause. Confidences and `unknown` add up to 1."""

    id: str
    title: str
    confidence: Number
    evidence_for: ListFromJob
    evidence_against: ListFromJob
    first_fix: FromJob
    code: FromJob
    avoid: FromJob
    verify: FromJob


class Refusal(TypedDict):
    """Usual advice that is wrong here, and why."""

    advice: FromJob
    why: FromJob


class Member(TypedDict):
    """A finding of the incident."""

    rule: str
    severity: str
    onset_step: int
    summary: FromJob


class Diagnosed(TypedDict):
    """An incident with its causes, the most likely first. `missing` is data that would decide between them."""

    incident: Incident
    first_shown: Place | None
    findings: list[Member]
    causes: list[Cause]
    unknown: Number
    refusals: list[Refusal]
    missing: ListFromJob


class Diagnosis(TypedDict):
    """The open incidents with their causes; those that are over where none is open."""

    job: FromJob
    state: str
    health: str
    step: int
    open_incidents: int
    ended: FromJob | None
    incidents: list[Diagnosed]
    page: Page


def findings(reader: Reader, budget: int, job: str, *, only_open: bool, offset: int) -> Findings:
    rows = [_finding(row) for row in reader.of_job(job, "/findings")["findings"] if row["is_open"] or not only_open]
    kept, page = paged(rows, offset, budget)
    return {"findings": kept, "page": page}


def _finding(row: Json) -> Finding:
    last = row["last"]
    return {
        "id": row["id"],
        "rule": row["rule"],
        "severity": row["severity"],
        "is_open": row["is_open"],
        "attempt": row["attempt"],
        "onset_step": row["onset_step"],
        "detected_step": row["detected_step"],
        "last_step": row["last_step"],
        "summary": from_job(last["summary"]),
        "ranks": last["ranks"][:MAX_RANKS],
        "layers": list_from_job(last["layers"], MAX_LAYERS),
        "phase": last["phase"],
        "values": {clean(name, 64): short(value) for name, value in list(last["values"].items())[:12]},
    }


def incident(row: Json) -> Incident:
    ack = row["acknowledged"]
    best = _best(row)
    return {
        "number": row["number"],
        "rule": row["rule"],
        "state": row["state"],
        "severity": row["severity"],
        "worst_severity": row["worst"],
        "is_open": row["is_open"],
        "attempt": row["attempt"],
        "onset_step": row["onset_step"],
        "opened_step": row["opened_step"],
        "last_step": row["last_step"],
        "closed_step": row["closed_step"],
        "summary": from_job(row["summary"]),
        "reason_closed": from_job(row["reason"]) if row["reason"] else None,
        "acknowledged": None if ack is None else from_job(f"{ack['by']}: {ack['reason']}"),
        "likeliest_cause": None if best is None else best["id"],
        "confidence": None if best is None else short(best["confidence"]),
        "runbook": alert_name(row["rule"]),
    }


def _best(row: Json) -> Json | None:
    causes = (row["diagnosis"] or {}).get("causes") or [None]
    best: Json | None = causes[0]
    return best


def incidents(reader: Reader, budget: int, job: str, *, only_open: bool, offset: int) -> Incidents:
    rows = [incident(row) for row in reader.of_job(job, "/incidents")["incidents"] if row["is_open"] or not only_open]
    kept, page = paged(rows, offset, budget)
    return {"incidents": kept, "page": page}


def diagnosis(reader: Reader, budget: int, job: str, number: int | None, offset: int) -> Diagnosis:
    answer = reader.of_job(job, "/diagnosis")
    rows = answer["incidents"] if number is None else [reader.incident(job, number)]
    kept, page = paged([_diagnosed(row) for row in rows], offset, budget)
    ending = answer["ending"]
    return {
        "job": from_job(job, MAX_NAME),
        "state": answer["state"],
        "health": answer["health"],
        "step": answer["step"],
        "open_incidents": answer["num_open"],
        "ended": None if ending is None else from_job(ending["text"]),
        "incidents": kept,
        "page": page,
    }


def _diagnosed(row: Json) -> Diagnosed:
    known = row["diagnosis"] or {"causes": [], "unknown": None, "refusals": [], "missing": []}
    return {
        "incident": incident(row),
        "first_shown": None if row["witness"] is None else _place(row["witness"]),
        "findings": [_member(member) for member in row["members"][:MAX_MEMBERS]],
        "causes": [_cause(cause) for cause in known["causes"][:MAX_CAUSES]],
        "unknown": short(known["unknown"]),
        "refusals": [
            {"advice": from_job(each["advice"]), "why": from_job(each["why"])} for each in known["refusals"][:4]
        ],
        "missing": list_from_job(known["missing"], MAX_MISSING, 200),
    }


def _place(witness: Json) -> Place:
    return {
        "rule": witness["rule"],
        "step": witness["step"],
        "ranks": witness["ranks"][:MAX_RANKS],
        "host": from_job(witness["host"], MAX_NAME),
        "layers": list_from_job(witness["layers"], MAX_LAYERS),
        "phase": witness["phase"],
        "steps_before_loss": witness["steps_before_loss"],
    }


def _member(row: Json) -> Member:
    return {
        "rule": row["rule"],
        "severity": row["severity"],
        "onset_step": row["onset_step"],
        "summary": from_job(row["summary"]),
    }


def _cause(row: Json) -> Cause:
    return {
        "id": row["id"],
        "title": row["title"],
        "confidence": short(row["confidence"]),
        "evidence_for": list_from_job(row["for"], MAX_EVIDENCE, 240),
        "evidence_against": list_from_job(row["against"], MAX_EVIDENCE, 240),
        "first_fix": from_job(row["first_fix"]),
        "code": from_job(row["code"]),
        "avoid": from_job(row["avoid"]),
        "verify": from_job(row["verify"]),
    }
