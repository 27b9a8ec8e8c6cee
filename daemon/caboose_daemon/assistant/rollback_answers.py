"""The tool about what was done to a run: rollback state, decisions, snapshots and checkpoints."""

from typing_extensions import TypedDict

from caboose_daemon.assistant.budget import Page, paged
from caboose_daemon.assistant.numbers import Number, short
from caboose_daemon.assistant.reader import Json, Reader
from caboose_daemon.assistant.untrusted import MAX_NAME, FromJob, ListFromJob, from_job, list_from_job

MAX_HELD = 12
MAX_EXPLANATION = 10


class Decision(TypedDict):
    """A decision of the daemon, or a request of a person or an assistant."""

    number: int
    kind: str
    state: str
    is_open: bool
    by: FromJob
    step: int
    target_step: int | None
    boundary_step: int | None
    lr_scale: Number
    skip_steps: int
    steps_lost: int
    paused_seconds: Number
    outcome: FromJob
    explanation: ListFromJob


class Held(TypedDict):
    """A snapshot or a checkpoint that a run can go back to."""

    kind: str
    step: int
    health: str


class Rollbacks(TypedDict):
    """The rollback state of a job; decisions newest first. Costs are in steps of training."""

    job: FromJob
    mode: str
    standing: str
    exhausted: FromJob | None
    budget_left: int
    cool_down_until_step: int | None
    lr_suggestion: Number
    lr_suggestion_because: FromJob | None
    held: list[Held]
    decisions: list[Decision]
    page: Page


def rollbacks(reader: Reader, budget: int, job: str, offset: int) -> Rollbacks:
    answer = reader.of_job(job, "/decisions")
    entries = reader.of_job(job, "/ledger")["entries"]
    offer = answer["offer"]
    kept, page = paged([decision(row) for row in answer["decisions"]], offset, budget)
    return {
        "job": from_job(job, MAX_NAME),
        "mode": answer["mode"],
        "standing": answer["standing"],
        "exhausted": from_job(answer["exhausted"]) if answer["exhausted"] else None,
        "budget_left": answer["budget_left"],
        "cool_down_until_step": answer["cool_until"] or None,
        "lr_suggestion": None if offer is None else short(offer["lr_scale"]),
        "lr_suggestion_because": None if offer is None else from_job(f"{offer['title']}: {offer['first_fix']}"),
        "held": [_held(row) for row in entries[:MAX_HELD]],
        "decisions": kept,
        "page": page,
    }


def decision(row: Json) -> Decision:
    return {
        "number": row["number"],
        "kind": row["kind"],
        "state": row["state"],
        "is_open": row["is_open"],
        "by": from_job(row["by"], 64),
        "step": row["step"],
        "target_step": row["target"],
        "boundary_step": row["boundary"],
        "lr_scale": short(row["lr_scale"]),
        "skip_steps": row["skip"],
        "steps_lost": row["steps_lost"],
        "paused_seconds": short(row["seconds"]),
        "outcome": from_job(row["outcome"]),
        "explanation": list_from_job(row["explanation"], MAX_EXPLANATION, 240),
    }


def _held(row: Json) -> Held:
    return {"kind": row["kind"], "step": row["step"], "health": row["health"]}
