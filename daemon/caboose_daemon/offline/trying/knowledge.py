"""What was tried before, in any job: trials and verdicts that were kept, and those for a similar incident.

Design
------
A trial is an event of the job it was made for, so it lives in the journal as long as the job does. It carries the rule
and the likeliest cause of its incident. Two incidents are similar if they have the same likeliest cause, or else the
same leading rule; the same cause comes first.
"""

from collections.abc import Iterable
from typing import Any

from caboose_daemon.offline.runs.source import HistorySource

Json = dict[str, Any]
TRIAL, VERDICT = "trial", "verdict"
KINDS = (TRIAL, VERDICT)
ORDER = ("helped", "mixed", "faster", "same", "unknown", "hurt")
HELPFUL = ("helped", "mixed", "faster")
MANY = 3
"""Changes without success after which the next one is unlikely to help."""
FIELDS = ("change", "verdict", "why", "rule", "cause", "incident", "by")


def tried(where: HistorySource, jobs: Iterable[str]) -> list[Json]:
    """Every kept trial and verdict of these jobs, the newest first."""
    rows = [
        {"job": job, "kind": event["kind"], "step": event["step"], "time": event["time"], **_fields(event)}
        for job in jobs
        for event in where.events(job)
        if event["kind"] in KINDS
    ]
    return sorted(rows, key=lambda row: -row["time"])


def similar(rows: Iterable[Json], *, rule: str, cause: str) -> list[Json]:
    """Those made for the same cause or rule: the same cause first, and what helped before what did not."""
    found = [row for row in rows if (cause and row["cause"] == cause) or (rule and row["rule"] == rule)]
    return sorted(found, key=lambda row: (row["cause"] != cause, _place(row["verdict"])))


def likeliest(incident: Json) -> str:
    """The name of an incident's likeliest cause; empty where there is none."""
    causes = (incident["diagnosis"] or {}).get("causes") or []
    return str(causes[0]["id"]) if causes else ""


def in_words(row: Json) -> str:
    """One row as a sentence."""
    return f"{row['change']}: {row['verdict']} ({row['job']}, step {row['step']:,}; {row['why']})"


def when_to_stop(rows: Iterable[Json]) -> str:
    """What to do instead of a further change, where several were tried for the same thing and none helped."""
    verdicts = [row["verdict"] for row in rows]
    if len(verdicts) < MANY or any(verdict in HELPFUL for verdict in verdicts):
        return ""
    return (
        f"{len(verdicts)} changes tried and none helped: stop changing settings. Go back to the last run that worked, "
        "or to a published configuration of this model, and change one thing at a time from there. Overfitting one "
        "batch (caboose inspect one-batch) separates faults of the code from settings."
    )


def _fields(event: Json) -> Json:
    return {name: str(event["fields"].get(name) or "") for name in FIELDS}


def _place(verdict: str) -> int:
    return ORDER.index(verdict) if verdict in ORDER else len(ORDER)
