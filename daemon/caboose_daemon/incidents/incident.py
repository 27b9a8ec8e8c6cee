"""An incident: findings with one cause, from the first to the last, as people are told of it."""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from caboose_daemon.incidents.causal_links import ADVICE, ORDER
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.rules.parts.finding import Severity

State = Literal["open", "recovering", "acknowledged", "resolved"]
"""acknowledged: somebody has it in hand, so nobody else need be woken. resolved: over, `reason` says why."""
LOSS_RULES = ("loss_spike", "divergence")
_OLD_MERGE = re.compile(r"it has the same cause as .*/(\d+), and goes on there")
"""The reason of a merged incident in journals that have no `merged_into`."""


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """Where an incident showed first: the member with the earliest onset that names a place."""

    rule: str
    step: int
    ranks: tuple[int, ...] = ()
    host: str = ""
    """Of the first rank; empty where it is not known."""
    layers: tuple[str, ...] = ()
    phase: str = ""
    steps_before_loss: int | None = None
    """How long before the loss moved; None while it has not."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """Who has it in hand, and why it may be silent."""

    time: float
    by: str
    reason: str
    severity: Severity | None = None
    """How bad it was then: it holds for that, and for nothing worse. None in journals that did not keep it."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Findings with one cause. `number` counts within the job and never changes."""

    job: str
    number: int
    attempt: int
    """The one it opened in."""
    rule: str
    """The lead rule, fixed when it opened; only advice yields the lead to the first that sees trouble in the run."""
    opened_step: int
    opened_time: float
    regimes: tuple[str, ...] = ()
    """The kinds of stretch the run was in when it opened."""
    members: tuple[Episode, ...] = ()
    """In the order in which they joined."""
    state: State = "open"
    severity: Severity = Severity.WARNING
    """The worst of what is open now; of what was, once it is resolved."""
    worst: Severity = Severity.WARNING
    warning_time: float | None = None
    """When it last rose to a warning, by opening, by opening again or by getting worse; None where it never did."""
    critical_time: float | None = None
    """When it last rose to critical."""
    witness: Witness | None = None
    acknowledged: Acknowledgement | None = None
    outgrown: Acknowledgement | None = None
    """The acknowledgement it had until it became worse than when that was given."""
    closed_step: int | None = None
    closed_time: float | None = None
    reason: str = ""
    """Why it is over."""
    merged_into: int | None = None
    """The number of the incident that this one became a part of; None where it did not."""
    is_cut: bool = False
    """Whether it ended with its attempt, and not because what was wrong is right."""
    num_reopened: int = 0
    diagnosis: Diagnosis | None = None

    @property
    def id(self) -> str:
        """Its name everywhere: the job's, a stroke, its number."""
        return f"{self.job}/{self.number}"

    @property
    def is_open(self) -> bool:
        """Whether it is not over."""
        return self.state != "resolved"

    @property
    def is_merged(self) -> bool:
        """Whether it became a part of another incident."""
        return self.merged_into is not None

    @property
    def is_unresolved(self) -> bool:
        """Whether it is over because its run is, and no rule saw what was wrong come right."""
        if self.is_open or self.is_merged or not self.told:
            return False
        return max(self.told, key=lambda member: (member.last.step, member.last_time)).last.state != "resolved"

    @property
    def onset_step(self) -> int:
        """The first step of the first sign that is worth a ticket."""
        return min(member.first.onset_step for member in self.told or self.members)

    @property
    def last_step(self) -> int:
        """The last step at which anything was found."""
        return max(member.last.step for member in self.members)

    @property
    def told(self) -> tuple[Episode, ...]:
        """The members that somebody would be told of; the others are signs on the side."""
        return tuple(member for member in self.members if member.severity is not Severity.INFO)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that members worth a ticket name; empty where it can be any rank's, or concerns all."""
        return frozenset(rank for member in self.told for rank in member.worst.ranks)

    @property
    def lead(self) -> Episode:
        """The lead rule's latest episode; the first member where a journal no longer has it."""
        return next((m for m in reversed(self.members) if m.rule == self.rule), self.members[0])

    @property
    def summary(self) -> str:
        """What is told in one line: the lead's worst."""
        return self.lead.worst.summary


def with_merge_of_old_journal(incident: Incident) -> Incident:
    """The incident with `merged_into`, read from the reason where an older version wrote it there alone."""
    found = None if incident.is_open or incident.is_merged else _OLD_MERGE.fullmatch(incident.reason)
    return incident if found is None else msgspec.structs.replace(incident, merged_into=int(found[1]))


def settle(incident: Incident, host_of: Callable[[int], str]) -> Incident:
    """The incident with what follows from its members: severity, state and first witness."""
    open_severities = [m.severity for m in incident.told if m.is_open]
    every = [m.severity for m in incident.members]
    worst = max((*every, incident.worst), key=lambda severity: severity.rank)
    severity = max(open_severities or [worst], key=lambda severity: severity.rank)
    state: State = incident.state
    if state != "resolved":
        incident = _outgrow(incident, severity)
        is_recovering = all(m.last.state == "recovering" for m in incident.told if m.is_open)
        state = "acknowledged" if incident.acknowledged else "recovering" if is_recovering else "open"
    return msgspec.structs.replace(
        incident,
        rule=_lead(incident),
        severity=severity,
        worst=worst,
        state=state,
        witness=_witness(incident, host_of),
    )


def _lead(incident: Incident) -> str:
    """The rule it opened with; advice, which says of itself that nothing has happened yet, yields to what then does."""
    rules = [member.rule for member in incident.told if member.rule != ADVICE]
    if incident.rule != ADVICE or not rules:
        return incident.rule
    return min(rules, key=lambda rule: ORDER.get(rule, len(ORDER)))


def _outgrow(incident: Incident, severity: Severity) -> Incident:
    """Who has a warning in hand has not been told that it is critical now: what was said of less no longer holds."""
    ack = incident.acknowledged
    if ack is None or severity.rank <= (ack.severity or incident.severity).rank:
        return incident
    return msgspec.structs.replace(incident, acknowledged=None, outgrown=ack)


def _witness(incident: Incident, host_of: Callable[[int], str]) -> Witness | None:
    named = [m for m in incident.members if m.worst.ranks or m.worst.layers or m.worst.phase]
    if not named:
        return None
    # Where two began together, the one nearer to a cause knows better; a rank is a closer place than none.
    first = min(named, key=lambda m: (m.first.onset_step, not m.worst.ranks, ORDER.get(m.rule, 99)))
    place, onset = first.worst, first.first.onset_step
    moved = _loss_moved(incident)
    before = incident.witness
    host = host_of(place.ranks[0]) if place.ranks else ""
    return Witness(
        rule=first.rule,
        step=onset,
        ranks=place.ranks,
        host=host or (before.host if before is not None and before.ranks == place.ranks else ""),
        layers=place.layers,
        phase=place.phase,
        steps_before_loss=None if moved is None else max(0, moved - onset),
    )


def _loss_moved(incident: Incident) -> int | None:
    """The step at which the loss first showed it."""
    steps = [m.first.onset_step for m in incident.members if m.rule in LOSS_RULES]
    for member in incident.members:
        if member.rule == "non_finite":
            values = member.last.values or member.worst.values
            if "steps_before_loss" in values:
                steps.append(member.first.onset_step + int(values["steps_before_loss"]))
            elif member.worst.values.get("ranks_with_bad_loss"):
                steps.append(member.first.onset_step)
    return min(steps, default=None)
