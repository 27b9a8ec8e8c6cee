"""Past incidents of several jobs in one list, each with its likeliest cause and what resolved it."""

from collections.abc import Iterable
from typing import Any

from caboose_daemon.offline.runs.source import HistorySource

Json = dict[str, Any]
CHANGES = ("fix", "note")


def remember(where: HistorySource, jobs: Iterable[str]) -> list[Json]:
    """The incidents of these jobs, the newest first."""
    rows = []
    for job in jobs:
        incidents = where.incidents(job)
        if incidents:
            events, decisions = where.events(job), where.decisions(job)
            rows += [_row(job, incident, events, decisions) for incident in incidents]
    return sorted(rows, key=lambda row: -row["opened_time"])


def between_incidents(where: HistorySource, jobs: Iterable[str], incidents: Iterable[Json]) -> list[Json]:
    """The changes that were declared while no incident of their job was open, the newest first."""
    spans: dict[str, list[Json]] = {}
    for row in incidents:
        spans.setdefault(row["job"], []).append(row)
    found = [
        {"job": job, "step": event["step"], "time": event["time"], "change": _in_words(event)}
        for job in jobs
        for event in where.events(job)
        if event["kind"] in CHANGES and not any(_was_open(event["time"], row) for row in spans.get(job, []))
    ]
    return sorted(found, key=lambda row: -row["time"])


def _was_open(time: float, incident: Json) -> bool:
    return bool(incident["opened_time"] <= time and (incident["is_open"] or time <= incident["closed_time"]))


def _in_words(event: Json) -> str:
    """A declared change: its text, and what was set."""
    fields = {name: value for name, value in event["fields"].items() if name not in ("text", "by")}
    details = [str(event["fields"].get("text", "")), ", ".join(f"{name}={value}" for name, value in fields.items())]
    return f"{event['kind']}: {'; '.join(filter(None, details)) or 'no text'}"


def rollback_totals(where: HistorySource, jobs: Iterable[str]) -> Json:
    """What rollback did over the life of these jobs, and what it would have done where it only advised."""
    decisions = [row for job in jobs for row in where.decisions(job) if row["kind"] == "rollback"]
    done = [row for row in decisions if row["state"] == "committed"]
    judged = [row["saved"] for row in decisions if row["state"] == "advised" and row.get("saved") is not None]
    return {
        "num_done": len(done),
        "steps_lost": sum(row["steps_lost"] for row in done),
        "num_advised": sum(row["state"] == "advised" for row in decisions),
        "num_judged": len(judged),
        "num_right": sum(saved > 0 for saved in judged),
        "saved": sum(judged),
    }


def _row(job: str, incident: Json, events: list[Json], decisions: list[Json]) -> Json:
    causes = (incident["diagnosis"] or {}).get("causes") or [None]
    likeliest = causes[0]
    keys = ("id", "rule", "state", "is_open", "worst", "summary", "attempt", "onset_step", "opened_step", "opened_time")
    return {
        "job": job,
        **{key: incident[key] for key in keys},
        "closed_step": incident["closed_step"],
        "closed_time": incident["closed_time"],
        "last_time": incident["closed_time"] or incident["opened_time"],
        "seconds": None if incident["closed_time"] is None else incident["closed_time"] - incident["opened_time"],
        "num_reopened": incident["num_reopened"],
        "cause": None
        if likeliest is None
        else {key: likeliest[key] for key in ("id", "title", "confidence", "first_fix")},
        "acknowledged": incident["acknowledged"],
        "reason": incident["reason"],
        "resolved_by": [] if incident["is_open"] else _resolved_by(incident, events, decisions),
    }


def _resolved_by(incident: Json, events: list[Json], decisions: list[Json]) -> list[str]:
    """Changes and rollbacks while it was open, in order; empty if it ended without one."""
    done: list[tuple[float, str]] = []
    for decision in decisions:
        if decision["state"] == "committed" and _is_within(decision["time"], incident):
            done.append((decision["time"], decision["outcome"] or decision["summary"]))
    for event in events:
        if event["kind"] in CHANGES and _is_within(event["time"], incident):
            done.append((event["time"], _in_words(event)))
    return list(dict.fromkeys(text for _, text in sorted(done)))


def _is_within(time: float, incident: Json) -> bool:
    return bool(incident["opened_time"] <= time <= incident["closed_time"])
