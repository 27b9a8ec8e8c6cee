"""The tools about what Caboose knows besides the run: rules with their thresholds, and runbooks."""

import difflib
import re

from typing_extensions import TypedDict

from caboose_daemon.assets import folder
from caboose_daemon.assistant.budget import BYTES_PER_TOKEN, Page, paged
from caboose_daemon.assistant.numbers import Number
from caboose_daemon.assistant.reader import AskError, Reader
from caboose_daemon.assistant.untrusted import MAX_NAME, FromJob, from_job
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.describe import alert_name, describe

MAX_JOBS = 8
MAX_SECTION = 2400


class RuleRow(TypedDict):
    """One rule: what it watches, and the highest severity it raises."""

    rule: str
    brief: str
    enabled: bool
    severity: str


class Rules(TypedDict):
    """Every rule."""

    rules: list[RuleRow]
    page: Page


class Threshold(TypedDict):
    """A threshold in force; `origin` is default, file or posted."""

    key: str
    value: Number | bool | list[str]
    default: Number | bool | list[str]
    origin: str
    meaning: str


class RuleState(TypedDict):
    """A rule in one job: quiet, open, abstaining (data it needs are missing) or off."""

    job: FromJob
    state: str
    missing: list[str]


class Rule(TypedDict):
    """One rule: what it sees, its thresholds, its inputs, its state in each job."""

    rule: str
    sees: str
    enabled: bool
    severity: str
    thresholds: list[Threshold]
    needs: list[str]
    muted_in: list[str]
    forgets_after: list[str]
    runbook: str
    jobs: list[RuleState]
    explanation: str


class Runbook(TypedDict):
    """A part of a runbook, as Markdown; `next_part` is null at its end."""

    name: str
    text: str
    part: int
    next_part: int | None


def rules(reader: Reader, budget: int, offset: int) -> Rules:
    rows: list[RuleRow] = [
        {"rule": row["rule"], "brief": row["brief"], "enabled": row["enabled"], "severity": row["severity"]}
        for row in reader.get("/api/v1/rules")["rules"]
    ]
    kept, page = paged(rows, offset, budget)
    return {"rules": kept, "page": page}


def rule(reader: Reader, name: str) -> Rule:
    rows = {row["rule"]: row for row in reader.get("/api/v1/rules")["rules"]}
    row = rows.get(name)
    if row is None:
        raise AskError(_unknown("rule", name, list(rows)))
    about = {each.name: describe(each) for each in RULES}.get(name)
    text = "" if about is None else "\n\n".join(f"{title}\n{body}" for title, body in about.sections)
    return {
        "rule": name,
        "sees": row["brief"] if about is None else about.sees,
        "enabled": row["enabled"],
        "severity": row["severity"],
        "thresholds": [
            {"key": key, "value": t["value"], "default": t["default"], "origin": t["from"], "meaning": t["doc"]}
            for key, t in row["thresholds"].items()
        ],
        "needs": row["needs"],
        "muted_in": row["muted_in"],
        "forgets_after": row["forgets_after"],
        "runbook": alert_name(name),
        "jobs": [
            {
                "job": from_job(state["job"], MAX_NAME),
                "state": state["state"],
                "missing": list(state.get("missing", ()))[:4],
            }
            for state in row["jobs"][:MAX_JOBS]
        ],
        "explanation": text[:MAX_SECTION],
    }


def runbook(name: str, part: int, budget: int) -> Runbook:
    """A runbook by its alert or by its rule."""
    files = {path.stem: path for path in folder("runbooks").glob("*.md")}
    wanted = name if name in files else alert_name(name.lower().replace("-", "_"))
    if wanted not in files:
        raise AskError(_unknown("runbook", name, sorted(files)))
    parts = _parts(files[wanted].read_text(encoding="utf-8"), budget * BYTES_PER_TOKEN)
    if not 0 <= part < len(parts):
        raise AskError(f"part {part}: this runbook has the parts 0 to {len(parts) - 1}")
    following = part + 1 if part + 1 < len(parts) else None
    return {"name": wanted, "text": parts[part], "part": part, "next_part": following}


def _parts(text: str, most: int) -> list[str]:
    """The text in parts of at most about `most` bytes, split between its sections."""
    parts: list[str] = []
    for section in re.split(r"(?m)^(?=## )", text):
        if parts and len(parts[-1].encode()) + len(section.encode()) <= most:
            parts[-1] += section
        else:
            parts.append(section)
    return parts


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, 3, 0.3) or known[:10]
    return f"no {what} {name[:64]!r}; near it: {', '.join(near)}"
