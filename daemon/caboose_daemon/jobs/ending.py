"""How a job ended, and how it stood: the last verdict on a run, from which every display derives.

Design
------
That a run is over makes nothing well: what was open when it ended stays unresolved until a person acknowledges it, or
the next launch begins. Nothing is stored for it. The verdict follows from the ranks' last messages and from the
incidents that no rule saw end, so a restarted daemon gives the same one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.rules.parts.endings import Ended, lost_a_peer
from caboose_daemon.rules.parts.finding import Severity

ABOUT_THE_END = "rank_silent"
"""The rule that reports the end itself, and not what was wrong before."""
ENDED_STATES = ("ended", "cancelled")
"""Every rank sent its Bye, and none failed."""
MAX_ERROR = 200


class EndedRank(Ended, Protocol):
    """What is needed of a rank here."""

    @property
    def step(self) -> int:
        """Its last step."""

    @property
    def place(self) -> str:
        """Its number, host and process, for people."""


@dataclass(frozen=True)
class Ending:
    """The verdict on a run that is over."""

    state: str
    """ended, cancelled, crashed or lost."""
    step: int
    how: str
    """The end in one line: `crashed at step 301: rank 1 (node3, pid 4711): ValueError: bad shard`."""
    unresolved: tuple[Incident, ...] = ()
    """The incidents that were open at the end, the worst first."""

    @property
    def worst(self) -> str:
        """The severity of the worst that was open, acknowledged or not; ok if nothing was."""
        return str(max((incident.severity_at_end for incident in self.unresolved), key=_rank, default="ok"))

    @property
    def severity(self) -> str:
        """The same of what nobody has acknowledged; info if all of it is acknowledged."""
        waiting = [incident.severity_at_end for incident in self.unresolved if incident.acknowledged is None]
        return str(max(waiting, key=_rank, default="info" if self.unresolved else "ok"))

    @property
    def is_acknowledged(self) -> bool:
        return bool(self.unresolved) and all(incident.acknowledged is not None for incident in self.unresolved)

    @property
    def standing(self) -> str:
        """How the run stood: healthy, or what was open since which step."""
        found = [i for i in self.unresolved if self.state == "ended" or i.rule != ABOUT_THE_END]
        return "; ".join(i.headline for i in found) or "healthy"

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.how}; {'was healthy' if self.standing == 'healthy' else f'open: {self.standing}'}"


def _rank(severity: Severity) -> int:
    return severity.rank


def ending_of(state: str, step: int, ranks: Iterable[EndedRank], incidents: Iterable[Incident], attempt: int) -> Ending:
    """The verdict on the attempt that is over; `ranks` are its members."""
    left = [incident for incident in incidents if incident.last_attempt == attempt and incident.is_unresolved]
    left.sort(key=lambda incident: (-incident.severity_at_end.rank, incident.rule == ABOUT_THE_END, incident.number))
    return Ending(state, step, _how(state, step, list(ranks)), tuple(left))


def _how(state: str, step: int, ranks: list[EndedRank]) -> str:
    at = f"{state} at step {step:,}"
    if state == "cancelled":
        return f"{at} by {next((rank.error for rank in ranks if rank.state == 'terminated'), 'a signal')}"
    if state == "crashed":
        return f"{at}: {_culprit(ranks)}"
    if state == "lost":
        return f"{at}: no message from any rank since; killed, or not reachable"
    return at


def _culprit(ranks: list[EndedRank]) -> str:
    """The rank that failed with an error of its own; else the first that ended without a word or before the others."""
    first = sorted(ranks, key=lambda rank: rank.last_seen)
    failed = next((rank for rank in first if rank.state == "failed" and not lost_a_peer(rank)), None)
    if failed is not None:
        return f"{failed.place}: {failed.error[:MAX_ERROR]}"
    silent = next((rank for rank in first if rank.state in ("live", "expected")), None)
    if silent is not None:
        return f"{silent.place} vanished after step {silent.step:,} without a word, as a killed process does"
    left = next((rank for rank in first if rank.state == "left"), None)
    if left is not None:
        return f"{left.place} ended before the others"
    return next((f"{rank.place}: {rank.error[:MAX_ERROR]}" for rank in first if rank.error), "a rank failed")
