"""Incidents and rollbacks as annotations in Grafana: a stretch of time with a text, found by its tags and its time."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from caboose_daemon.out.grafana.connection import GrafanaConnection
from caboose_daemon.rollback_state.decision import Decision

COMMON = "caboose"
MAX_FOUND = 5000
DOING = "writing annotations"


@dataclass(frozen=True)
class Annotation:
    """An annotation to show; `key` is the tag that identifies it among others of its time."""

    key: str
    tags: tuple[str, ...]
    text: str
    start: int
    """Unix milliseconds."""
    end: int
    """The same as `start` while it is open."""


def of_incident(job: str, incident: Mapping[str, Any]) -> Annotation:
    """An incident, as the API gives it."""
    start = round(incident["opened_time"] * 1000)
    closed = incident["closed_time"]
    key = f"incident:{incident['id']}"
    tags = (COMMON, f"training_job:{job}", f"rule:{incident['rule']}", f"severity:{incident['worst']}", key)
    return Annotation(key, tags, _text(job, incident), start, start if closed is None else round(closed * 1000))


def of_attempt(job: str, number: int, time: float) -> Annotation:
    """A restart or a rollback: the moment a new attempt began."""
    key, start = f"attempt:{job}/{number}", round(time * 1000)
    return Annotation(key, (COMMON, f"training_job:{job}", key), f"{job}: attempt {number} began", start, start)


def of_rollback(decision: Decision, taken: float | None) -> Annotation:
    """A rollback, done or failed: the time span that was undone, from when its target was `taken`, and the reason."""
    end = round((decision.closed_time or decision.time) * 1000)
    key = f"decision:{decision.id}"
    tags = (COMMON, f"training_job:{decision.job}", "rollback", f"outcome:{decision.state}", key)
    lines = [f"{decision.job}: {decision.explain()[0]}", *decision.explain()[1:]]
    text = "\n".join(escape(line, quote=False) for line in lines)
    return Annotation(key, tags, text, end if taken is None else min(end, round(taken * 1000)), end)


def _text(job: str, incident: Mapping[str, Any]) -> str:
    lines = [f"{incident['severity']} {incident['rule']} in {job}: {incident['summary']}"]
    lines.append(f"began at step {incident['onset_step']}{_place(incident['witness'])}")
    diagnosis = incident["diagnosis"]
    best = diagnosis["causes"][0] if diagnosis and diagnosis["causes"] else None
    if best is not None and best["confidence"] >= diagnosis["unknown"]:
        lines.append(f"likely cause: {best['title']} ({best['confidence']:.0%}); first: {best['first_fix']}")
    if not incident["is_open"]:
        lines.append(f"closed at step {incident['closed_step']}: {incident['reason']}")
    elif incident["acknowledged"]:
        lines.append(f"acknowledged: {incident['acknowledged']['reason']}")
    return "\n".join(escape(line, quote=False) for line in lines)


def _place(witness: Mapping[str, Any] | None) -> str:
    if witness is None:
        return ""
    ranks, layers = witness["ranks"], witness["layers"]
    parts = [f"on rank {ranks[0]}" + (f" ({witness['host']})" if witness["host"] else "")] if ranks else []
    parts += [f"in {layers[0]}"] if layers else []
    parts += [f"in the {witness['phase']} phase"] if witness["phase"] else []
    return "".join(f", {part}" for part in parts)


def find(connection: GrafanaConnection, *tags: str) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Grafana's annotations with all of these tags, by key and start."""
    request = connection.api.annotations.find_annotations
    wanted = [quote(tag, safe="") for tag in (COMMON, *tags)]
    found = connection.call("reading annotations", request, tags=wanted, ann_type="annotation", limit=MAX_FOUND)
    return {(tag, item["time"]): item for item in found or () for tag in item.get("tags") or ()}


def is_current(annotation: Annotation, found: Mapping[str, Any]) -> bool:
    """Whether Grafana's copy is up to date."""
    end = found.get("timeEnd") or found["time"]
    return (sorted(found["tags"]), found["text"], end) == (sorted(annotation.tags), annotation.text, annotation.end)


def write(connection: GrafanaConnection, annotation: Annotation, found: Mapping[str, Any] | None) -> None:
    """Creates or updates it in Grafana."""
    fields: dict[str, Any] = {
        "time_from": annotation.start,
        "time_to": annotation.end,
        "tags": list(annotation.tags),
        "text": annotation.text,
    }
    annotations = connection.api.annotations
    if found is None:
        connection.call(DOING, annotations.add_annotation, **fields)
    else:
        connection.call(DOING, annotations.update_annotation, found["id"], **fields)
