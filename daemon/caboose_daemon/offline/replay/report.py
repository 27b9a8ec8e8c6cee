"""What a replay prints: an object for programs, a few lines for people."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.offline.replay.player import Judged
from caboose_daemon.rules.parts.finding import Severity

COLOURS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
MARKS = {Severity.CRITICAL: "page", Severity.WARNING: "ticket", Severity.INFO: "note"}
MAX_SHOWN = 20


def num_pages(judged: Judged) -> int:
    """How many incidents would have paged."""
    return sum(incident.worst is Severity.CRITICAL for incident in judged.incidents)


def as_object(judged: Judged) -> dict[str, Any]:
    """For `--json`."""
    return {
        "file": judged.file,
        "points": judged.num_points,
        "incidents": [as_row(incident) for incident in judged.incidents],
        "findings": [{"rule": f.rule, "severity": str(f.severity), "step": f.step} for f in judged.findings],
    }


def as_row(incident: Incident) -> dict[str, Any]:
    """One incident, as programs read it; `caboose diagnose FILE --json` has all of it."""
    return {
        "rule": incident.rule,
        "severity": str(incident.worst),
        "onset_step": incident.onset_step,
        "detected_step": incident.opened_step,
        "state": incident.state,
        "cause": cause_of(incident),
        "summary": incident.summary,
        "rules": list(dict.fromkeys(member.rule for member in incident.reportable)),
    }


def cause_of(incident: Incident) -> str | None:
    """The id of the likely cause; None where it is not known."""
    best = None if incident.diagnosis is None else incident.diagnosis.best
    return None if best is None else best.id


def as_text(judged: Judged) -> Group:
    """For a terminal: the file's verdict, then its incidents, in the order in which they opened."""
    incidents = judged.incidents
    pages = num_pages(judged)
    points = f"{judged.num_points:,} points"
    if not incidents:
        return Group(Text.assemble((judged.file, "bold"), f"  {points}: ", ("nothing to report", "green")))
    verdict = f"{_count(pages, 'page')}, {_count(len(incidents) - pages, 'ticket')}"
    head = Text.assemble((judged.file, "bold"), f"  {points}: ", (verdict, "red" if pages else "yellow"))
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=True, header_style="dim")
    for name, align in (("", "left"), ("rule", "left"), ("began", "right"), ("seen", "right"), ("", "left")):
        table.add_column(name, justify=align, no_wrap=name != "")  # type: ignore[arg-type]  # rich wants a Literal
    for incident in incidents[:MAX_SHOWN]:
        table.add_row(
            Text(MARKS[incident.worst], COLOURS[incident.worst]),
            incident.rule,
            str(incident.onset_step),
            str(incident.opened_step),
            Group(Text(incident.summary), *_details(incident)),
        )
    rest = len(incidents) - MAX_SHOWN
    more = [Text(f"    and {rest} more; --json has them all", "dim")] if rest > 0 else []
    return Group(head, table, *more)


def _details(incident: Incident) -> list[Text]:
    """The other rules of the incident, and its likely cause."""
    others = dict.fromkeys(member.rule for member in incident.reportable if member.rule != incident.rule)
    best = None if incident.diagnosis is None else incident.diagnosis.best
    lines = []
    if others:
        lines.append(Text(f"with {', '.join(others)}", "dim"))
    if best is not None:
        lines.append(Text(f"likely: {best.title} ({100 * best.confidence:.0f} %)", "dim"))
    return lines


def total(all_judged: Sequence[Judged]) -> str:
    """The last line over several files."""
    pages = sum(map(num_pages, all_judged))
    tickets = sum(len(judged.incidents) for judged in all_judged) - pages
    paged = sum(bool(num_pages(judged)) for judged in all_judged)
    points = sum(judged.num_points for judged in all_judged)
    return (
        f"{len(all_judged)} runs, {points:,} points: would have paged {pages} times in {paged} of them"
        f" and made {_count(tickets, 'ticket')}"
    )


def _count(num: int, what: str) -> str:
    return f"{num} {what}{'' if num == 1 else 's'}"
