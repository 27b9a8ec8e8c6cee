"""Two configurations on the same logs: what the other one gains and loses.

Design
------
Incidents of the two are matched where they share a rule and their stretches overlap; what is left over is gained or
lost. The lead is how many steps earlier the other one saw what both saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.offline.replay.player import Judged
from caboose_daemon.offline.replay.report import as_row, num_pages


@dataclass
class Difference:
    """How the two configurations differ on one log."""

    file: str
    pages_before: int
    pages_after: int
    tickets_before: int
    tickets_after: int
    gained: list[Incident] = field(default_factory=list)
    lost: list[Incident] = field(default_factory=list)
    louder: list[tuple[Incident, Incident]] = field(default_factory=list)
    """Seen by both, at different severities: before and after."""
    leads: list[int] = field(default_factory=list)
    """Steps by which each incident that both saw was seen earlier; below zero: later."""

    @property
    def is_none(self) -> bool:
        """Whether both find the same."""
        return not (self.gained or self.lost or self.louder or any(self.leads))

    def as_object(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pages": [self.pages_before, self.pages_after],
            "tickets": [self.tickets_before, self.tickets_after],
            "gained": [as_row(incident) for incident in self.gained],
            "lost": [as_row(incident) for incident in self.lost],
            "changed": [[as_row(before), as_row(after)] for before, after in self.louder],
            "lead_steps": self.leads,
        }


def compare(before: Judged, after: Judged) -> Difference:
    """What changes from one configuration to the other."""
    old, new = before.incidents, after.incidents
    difference = Difference(
        file=before.file,
        pages_before=num_pages(before),
        pages_after=num_pages(after),
        tickets_before=len(old) - num_pages(before),
        tickets_after=len(new) - num_pages(after),
    )
    left = list(new)
    for incident in old:
        match = next((other for other in left if _same(incident, other)), None)
        if match is None:
            difference.lost.append(incident)
            continue
        left.remove(match)
        difference.leads.append(incident.opened_step - match.opened_step)
        if match.worst is not incident.worst:
            difference.louder.append((incident, match))
    difference.gained = left
    return difference


def _same(one: Incident, other: Incident) -> bool:
    overlaps = one.onset_step <= other.last_step and other.onset_step <= one.last_step
    shares = {member.rule for member in one.reportable} & {member.rule for member in other.reportable}
    return bool(shares) and one.attempt == other.attempt and overlaps


def lines(differences: Sequence[Difference], name: str) -> list[str]:
    """For people: the totals, then what is gained and lost."""
    pages = [sum(d.pages_before for d in differences), sum(d.pages_after for d in differences)]
    tickets = [sum(d.tickets_before for d in differences), sum(d.tickets_after for d in differences)]
    leads = sorted(lead for d in differences for lead in d.leads)
    text = [
        f"with {name}: pages {pages[0]} -> {pages[1]}, tickets {tickets[0]} -> {tickets[1]}",
    ]
    if leads:
        moved = sum(bool(lead) for lead in leads)
        text.append(
            f"  seen by both: {len(leads)}, of them {moved} at another step;"
            f" lead {leads[0]:+d} to {leads[-1]:+d} steps, median {leads[len(leads) // 2]:+d}"
        )
    for d in differences:
        text += [f"  + {_line(d.file, incident)}" for incident in d.gained]
        text += [f"  - {_line(d.file, incident)}" for incident in d.lost]
        text += [f"  ~ {_line(d.file, new)} (was {old.worst})" for old, new in d.louder]
    if all(d.is_none for d in differences):
        text.append("  no difference on these logs")
    return text


def _line(file: str, incident: Incident) -> str:
    return f"{file}: {incident.worst} {incident.rule} at step {incident.opened_step}: {incident.summary}"
