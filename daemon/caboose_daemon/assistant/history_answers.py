"""The tool about past incidents of all jobs: their causes, and what resolved them."""

import re
import time

from typing_extensions import TypedDict

from caboose_daemon.assistant.budget import Page, paged
from caboose_daemon.assistant.numbers import Number, short
from caboose_daemon.assistant.reader import DaemonError, Json
from caboose_daemon.assistant.untrusted import MAX_NAME, FromJob, ListFromJob, clean, from_job, list_from_job
from caboose_daemon.offline.runs.past import remember
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import DaemonSource
from caboose_daemon.out.api.client import Client

MAX_JOBS = 200


class Past(TypedDict):
    """An incident of any job, and what resolved it."""

    job: FromJob
    number: int
    rule: str
    is_open: bool
    worst_severity: str
    onset_step: int
    hours_ago: Number
    open_seconds: Number
    summary: FromJob
    cause: str | None
    confidence: Number
    resolved_by: ListFromJob


class History(TypedDict):
    """Incidents of all jobs, the newest first."""

    incidents: list[Past]
    page: Page


def history(
    client: Client, budget: int, *, job: str, rule: str, cause: str, since_hours: float | None, offset: int
) -> History:
    source, now = DaemonSource(client), time.time()
    try:
        jobs = [job] if job else [str(row["job"]) for row in source.jobs()][:MAX_JOBS]
        rows = remember(source, jobs)
    except RunError as error:
        raise DaemonError(clean(error, 400)) from None
    found = [
        row
        for row in rows
        if (not rule or row["rule"] == rule)
        and (not cause or (row["cause"] or {}).get("id") == cause)
        and (since_hours is None or now - row["last_time"] <= 3600 * since_hours)
    ]
    kept, page = paged([_past(row, now) for row in found], offset, budget)
    return {"incidents": kept, "page": page}


def _past(row: Json, now: float) -> Past:
    cause = row["cause"]
    number = re.search(r"\d+$", row["id"])
    assert number is not None, "an incident's id is JOB/NUMBER"
    return {
        "job": from_job(row["job"], MAX_NAME),
        "number": int(number[0]),
        "rule": row["rule"],
        "is_open": row["is_open"],
        "worst_severity": row["worst"],
        "onset_step": row["onset_step"],
        "hours_ago": short(max(0.0, now - row["opened_time"]) / 3600),
        "open_seconds": short(row["seconds"]),
        "summary": from_job(row["summary"]),
        "cause": None if cause is None else cause["id"],
        "confidence": None if cause is None else short(cause["confidence"]),
        "resolved_by": list_from_job(row["resolved_by"], 4, 200),
    }
