"""The tools about jobs: the list, one job's status, its ranks, what was declared about it."""

from typing import Any

from typing_extensions import TypedDict

from caboose_daemon.assistant.budget import Page, paged
from caboose_daemon.assistant.numbers import Number, short
from caboose_daemon.assistant.reader import Json, Reader
from caboose_daemon.assistant.untrusted import (
    MAX_NAME,
    FromJob,
    ListFromJob,
    from_job,
    list_from_job,
    settings_from_job,
)

MAX_SETTINGS = 24
MAX_BLIND = 8
MAX_ABSTAINING = 12
NOT_SHOWN = ("attempt", "step", "time")


class JobRow(TypedDict):
    """One job. `health` is ok, info, warning or critical; `state` as in docs/daemon.md."""

    job: FromJob
    state: str
    health: str
    attempt: int
    step: int
    loss: Number
    ranks_live: int
    ranks: int
    open_incidents: int
    worst: FromJob | None
    step_seconds: Number
    silent_seconds: Number
    ended: FromJob | None


class Jobs(TypedDict):
    """Jobs, the most recently heard first."""

    jobs: list[JobRow]
    page: Page


class Quantity(TypedDict):
    """A number with its unit; the unit is empty for a plain number."""

    name: str
    label: str
    unit: str
    value: Number


class Abstaining(TypedDict):
    """A rule that cannot judge this job, and the data it lacks."""

    rule: str
    missing: list[str]


class Status(TypedDict):
    """One job as it is now."""

    job: JobRow
    last_step: list[Quantity]
    layers: int
    parameters: int
    wrapper: FromJob
    settings: ListFromJob
    not_monitored: ListFromJob
    abstaining_rules: list[Abstaining]
    agent_share_of_step: Number
    sampled_every_steps: Number
    rollback_mode: str
    rollback_standing: str
    rollback_budget_left: int
    not_judged_because: FromJob | None


class Rank(TypedDict):
    """One rank as last reported."""

    rank: int
    host: FromJob
    state: str
    step: int
    silent_seconds: Number
    reports_missed: int
    numbers: dict[str, Number]
    error: FromJob | None


class Ranks(TypedDict):
    """Ranks: failed ones first, then by the time since the last report. `units` has those of `numbers`."""

    ranks: list[Rank]
    units: dict[str, str]
    page: Page


class Declared(TypedDict):
    """Something that a person or the script declared."""

    attempt: int
    step: int
    kind: FromJob
    fields: ListFromJob


class Events(TypedDict):
    """Declared events, the newest first."""

    events: list[Declared]
    page: Page


def job_row(row: Json) -> JobRow:
    worst, ending = row["worst"], row["ending"]
    return {
        "job": from_job(row["job"], MAX_NAME),
        "state": row["state"],
        "health": row["health"],
        "attempt": row["attempt"],
        "step": row["step"],
        "loss": short(row["loss"]),
        "ranks_live": row["num_live"],
        "ranks": row["world"],
        "open_incidents": row["num_open"],
        "worst": None if worst is None else from_job(f"{worst['id']}: {worst['headline']}"),
        "step_seconds": short(row["step_seconds"]),
        "silent_seconds": short(row["silent_seconds"]),
        "ended": None if ending is None else from_job(ending["text"]),
    }


def list_jobs(reader: Reader, budget: int, offset: int) -> Jobs:
    rows = [job_row(row) for row in reader.get("/api/v1/jobs")["jobs"]]
    kept, page = paged(rows, offset, budget)
    return {"jobs": kept, "page": page}


def status(reader: Reader, job: str) -> Status:
    detail = reader.of_job(job)
    columns = [c for c in reader.get("/api/v1/columns")["columns"] if c["scope"] == "job"]
    last, agent, rollback = detail["last"] or {}, detail["agent"] or {}, detail["rollback_state"]
    quarantine = detail["quarantine"]
    return {
        "job": job_row(detail),
        "last_step": [_quantity(column, last) for column in columns if _is_shown(column, last)],
        "layers": detail["num_layers"],
        "parameters": detail["num_parameters"],
        "wrapper": from_job(detail["wrapper"], MAX_NAME),
        "settings": settings_from_job(_settings(detail), MAX_SETTINGS),
        "not_monitored": list_from_job((f"{what}: {why}" for what, why in detail["blind"].items()), MAX_BLIND, 200),
        "abstaining_rules": [
            {"rule": rule, "missing": list(missing)[:4]}
            for rule, missing in list(detail["abstaining"].items())[:MAX_ABSTAINING]
        ],
        "agent_share_of_step": short(detail["agent_share"]),
        "sampled_every_steps": agent.get("sample_every"),
        "rollback_mode": rollback["mode"],
        "rollback_standing": rollback["standing"],
        "rollback_budget_left": rollback["budget_left"],
        "not_judged_because": None if quarantine is None else from_job(quarantine["reason"]),
    }


def _settings(detail: Json) -> dict[str, Any]:
    """The optimizer's settings of each group, then the user's configuration."""
    found: dict[str, Any] = {}
    for place, group in enumerate(detail["groups"]):
        suffix = f" (group {place})" if place else ""
        found[f"optimizer{suffix}"] = group["optimizer"]
        found |= {f"{name}{suffix}": value for name, value in group["settings"].items()}
    return {**detail["config"], **found}


def _is_shown(column: Json, last: Json) -> bool:
    return column["name"] not in NOT_SHOWN and last.get(column["name"]) is not None


def _quantity(column: Json, last: Json) -> Quantity:
    name = column["name"]
    return {"name": name, "label": column["label"], "unit": column["unit"], "value": short(last[name])}


def ranks(reader: Reader, budget: int, job: str, offset: int) -> Ranks:
    detail = reader.of_job(job)
    columns = [c for c in reader.get("/api/v1/columns")["columns"] if c["scope"] == "rank"]
    rows = sorted(detail["ranks"], key=lambda row: (not row["error"], -row["silent_seconds"], row["rank"]))
    kept, page = paged([_rank(row, columns) for row in rows], offset, budget)
    return {"ranks": kept, "units": {c["name"]: c["unit"] for c in columns if c["unit"]}, "page": page}


def _rank(row: Json, columns: list[Json]) -> Rank:
    numbers = {c["name"]: short(row[c["name"]]) for c in columns if row.get(c["name"]) is not None}
    return {
        "rank": row["rank"],
        "host": from_job(row["host"], MAX_NAME),
        "state": row["state"],
        "step": row["step"],
        "silent_seconds": short(row["silent_seconds"]),
        "reports_missed": row["num_missed"],
        "numbers": numbers,
        "error": from_job(row["error"]) if row["error"] else None,
    }


def events(reader: Reader, budget: int, job: str, offset: int) -> Events:
    rows = [
        Declared(
            attempt=row["attempt"],
            step=row["step"],
            kind=from_job(row["kind"], 64),
            fields=settings_from_job(row["fields"], 8),
        )
        for row in reversed(reader.of_job(job, "/events")["events"])
    ]
    kept, page = paged(rows, offset, budget)
    return {"events": kept, "page": page}
