"""Two configurations on the same logs: what the other one gains and loses.

Design
------
Episodes of the two are matched by rule where their stretches overlap; what is left over is gained or lost. The lead
is how many steps earlier the other one saw what both saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.episodes import Episode
from caboose_daemon.replay.player import Judged
from caboose_daemon.replay.report import incident, num_pages, shown


@dataclass
class Difference:
    """How the other configuration did on one log."""

    file: str
    pages_before: int
    pages_after: int
    tickets_before: int
    tickets_after: int
    gained: list[Episode] = field(default_factory=list)
    lost: list[Episode] = field(default_factory=list)
    louder: list[tuple[Episode, Episode]] = field(default_factory=list)
    """Seen by both, at different severities: before and after."""
    leads: list[int] = field(default_factory=list)
    """Steps by which each episode that both saw was seen earlier; below zero: later."""

    @property
    def is_none(self) -> bool:
        """Whether both say the same."""
        return not (self.gained or self.lost or self.louder or any(self.leads))

    def as_object(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "pages": [self.pages_before, self.pages_after],
            "tickets": [self.tickets_before, self.tickets_after],
            "gained": [incident(episode) for episode in self.gained],
            "lost": [incident(episode) for episode in self.lost],
            "changed": [[incident(before), incident(after)] for before, after in self.louder],
            "lead_steps": self.leads,
        }


def compare(before: Judged, after: Judged) -> Difference:
    """What changes from one configuration to the other."""
    old, new = shown(before), shown(after)
    difference = Difference(
        file=before.file,
        pages_before=num_pages(before),
        pages_after=num_pages(after),
        tickets_before=len(old) - num_pages(before),
        tickets_after=len(new) - num_pages(after),
    )
    left = list(new)
    for episode in old:
        match = next((other for other in left if _same(episode, other)), None)
        if match is None:
            difference.lost.append(episode)
            continue
        left.remove(match)
        difference.leads.append(episode.told_step - match.told_step)
        if match.severity is not episode.severity:
            difference.louder.append((episode, match))
    difference.gained = left
    return difference


def _same(one: Episode, other: Episode) -> bool:
    overlaps = one.first.onset_step <= other.last.step and other.first.onset_step <= one.last.step
    return one.rule == other.rule and one.attempt == other.attempt and overlaps


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
        text += [f"  + {_line(d.file, episode)}" for episode in d.gained]
        text += [f"  - {_line(d.file, episode)}" for episode in d.lost]
        text += [f"  ~ {_line(d.file, new)} (was {old.severity})" for old, new in d.louder]
    if all(d.is_none for d in differences):
        text.append("  no difference on these logs")
    return text


def _line(file: str, episode: Episode) -> str:
    return f"{file}: {episode.severity} {episode.rule} at step {episode.told_step}: {episode.worst.summary}"
