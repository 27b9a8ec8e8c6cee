"""An incident: episodes with one cause, from the first to the last, as people see it."""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from caboose_daemon.incidents.alert_text import AlertText
from caboose_daemon.incidents.causal_links import ADVICE, ORDER
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.rules.parts.finding import Severity

State = Literal["open", "recovering", "acknowledged", "resolved"]
"""acknowledged: a person works on it, so no one else is paged. resolved: over; `reason` has why."""
LOSS_RULES = ("loss_spike", "divergence")
_OLD_MERGE = re.compile(r"it has the same cause as .*/(\d+), and goes on there")
"""The reason of a merged incident in journals that have no `merged_into`."""


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """Where an incident showed first: the episode with the earliest onset that names a place."""

    rule: str
    step: int
    ranks: tuple[int, ...] = ()
    host: str = ""
    """Of the first rank; empty where it is not known."""
    layers: tuple[str, ...] = ()
    phase: str = ""
    part: str = ""
    steps_before_loss: int | None = None
    """How long before the loss moved; None while it has not."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """Who works on it, and why it need not page."""

    time: float
    by: str
    reason: str
    severity: Severity | None = None
    """Of the incident at that time: the acknowledgement ends when it gets worse. None in journals of older versions."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes with one cause. `number` counts within the job and never changes."""

    job: str
    number: int
    attempt: int
    """The one it opened in."""
    rule: str
    """The lead rule, fixed when it opened. Only config_advice yields the lead, to the first rule that finds a fault."""
    opened_step: int
    opened_time: float
    regimes: tuple[str, ...] = ()
    """The regimes of the run when it opened."""
    episodes: tuple[Episode, ...] = msgspec.field(default=(), name="members")
    """In the order in which they joined. Journals and JSON have them as `members`."""
    state: State = "open"
    severity: Severity = Severity.WARNING
    """The worst of what is open now; of what was, once it is resolved."""
    worst: Severity = Severity.WARNING
    warning_time: float | None = None
    """When it last rose to a warning: by opening, by opening again or by getting worse. None where it never did."""
    critical_time: float | None = None
    """When it last rose to critical."""
    witness: Witness | None = None
    acknowledged: Acknowledgement | None = None
    outgrown: Acknowledgement | None = None
    """The acknowledgement that ended because the incident became worse."""
    closed_step: int | None = None
    closed_time: float | None = None
    reason: str = ""
    """Why it is over."""
    merged_into: int | None = None
    """The number of the incident that this one became a part of; None where it did not."""
    is_cut: bool = False
    """Whether it ended with its attempt, and not because a rule saw it end."""
    has_recovered: bool = False
    """Whether a check after a rollback found the run well again: the rules could not see it end."""
    num_reopened: int = 0
    diagnosis: Diagnosis | None = None
    alert: AlertText | None = None
    """The words of its alert; None where it never was a warning, and in journals of older versions."""

    @property
    def id(self) -> str:
        """Its name everywhere: JOB/NUMBER."""
        return f"{self.job}/{self.number}"

    @property
    def is_open(self) -> bool:
        return self.state != "resolved"

    @property
    def is_merged(self) -> bool:
        """Whether it became a part of another incident."""
        return self.merged_into is not None

    @property
    def is_unresolved(self) -> bool:
        """Whether it is over because its run ended, and no rule saw it end."""
        if self.is_open or self.is_merged or self.has_recovered or not self.reportable:
            return False
        return max(self.reportable, key=lambda episode: (episode.last.step, episode.last_time)).last.state != "resolved"

    @property
    def severity_at_end(self) -> Severity:
        """The severity of an open incident; of one that is over, the worst of what no rule saw end."""
        if self.is_open:
            return self.severity
        left = [episode.severity for episode in self.reportable if episode.last.state != "resolved"]
        return max(left, key=lambda severity: severity.rank, default=self.severity)

    @property
    def last_attempt(self) -> int:
        """The attempt in which anything was last found."""
        return max(episode.attempt for episode in self.episodes)

    @property
    def last_summary(self) -> str:
        """The lead's last finding that says what is wrong, in one line."""
        last = self.lead.last
        return self.lead.worst.summary if last.state == "resolved" else last.summary

    @property
    def headline(self) -> str:
        """The rule, since when, and what is wrong, in one line."""
        text = self.last_summary
        since = "" if f"since step {self.onset_step:,}" in text else f" since step {self.onset_step:,}"
        return f"{self.rule}{since}: {text}"

    @property
    def onset_step(self) -> int:
        """The earliest onset of its reportable episodes."""
        return min(episode.first.onset_step for episode in self.reportable or self.episodes)

    @property
    def last_step(self) -> int:
        """The last step at which anything was found."""
        return max(episode.last.step for episode in self.episodes)

    @property
    def reportable(self) -> tuple[Episode, ...]:
        """The episodes of severity warning or critical. Those of severity info are additional evidence."""
        return tuple(episode for episode in self.episodes if episode.severity is not Severity.INFO)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that reportable episodes name; empty where they name none."""
        return frozenset(rank for episode in self.reportable for rank in episode.worst.ranks)

    @property
    def lead(self) -> Episode:
        """The lead rule's latest episode, in the part that it was found in first.

        The first episode where a journal no longer has one of that rule.
        """
        of_rule = [episode for episode in self.episodes if episode.rule == self.rule]
        if not of_rule:
            return self.episodes[0]
        return next(episode for episode in reversed(of_rule) if episode.part == of_rule[0].part)

    @property
    def part(self) -> str:
        """The part of the job that it began in, where several models are trained: the lead's."""
        return self.lead.part

    @property
    def summary(self) -> str:
        """In one line: the worst finding of the lead."""
        return self.lead.worst.summary


def with_merge_of_old_journal(incident: Incident) -> Incident:
    """The incident with `merged_into`, read from the reason where an older version wrote it there alone."""
    found = None if incident.is_open or incident.is_merged else _OLD_MERGE.fullmatch(incident.reason)
    return incident if found is None else msgspec.structs.replace(incident, merged_into=int(found[1]))


def with_derived_fields(incident: Incident, host_of: Callable[[int], str]) -> Incident:
    """The incident with what follows from its episodes: severity, state and witness."""
    open_severities = [e.severity for e in incident.reportable if e.is_open]
    every = [e.severity for e in incident.episodes]
    worst = max((*every, incident.worst), key=lambda severity: severity.rank)
    severity = max(open_severities or [worst], key=lambda severity: severity.rank)
    state: State = incident.state
    if state != "resolved":
        incident = _outgrow(incident, severity)
        is_recovering = all(e.last.state == "recovering" for e in incident.reportable if e.is_open)
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
    """The rule it opened with. Advice on settings yields to the first rule that finds a fault in the run."""
    rules = [episode.rule for episode in incident.reportable if episode.rule != ADVICE]
    if incident.rule != ADVICE or not rules:
        return incident.rule
    return min(rules, key=lambda rule: ORDER.get(rule, len(ORDER)))


def _outgrow(incident: Incident, severity: Severity) -> Incident:
    """Ends the acknowledgement of a warning that is critical now: it was given for less."""
    ack = incident.acknowledged
    if ack is None or severity.rank <= (ack.severity or incident.severity).rank:
        return incident
    return msgspec.structs.replace(incident, acknowledged=None, outgrown=ack)


def _witness(incident: Incident, host_of: Callable[[int], str]) -> Witness | None:
    named = [e for e in incident.episodes if e.worst.ranks or e.worst.layers or e.worst.phase]
    if not named:
        return None
    # Of episodes that began together: first those that name a rank, then the rule nearest to a cause.
    first = min(named, key=lambda e: (e.first.onset_step, not e.worst.ranks, ORDER.get(e.rule, 99)))
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
        part=first.part,
        steps_before_loss=None if moved is None else max(0, moved - onset),
    )


def _loss_moved(incident: Incident) -> int | None:
    """The first step at which the loss changed."""
    steps = [e.first.onset_step for e in incident.episodes if e.rule in LOSS_RULES]
    for episode in incident.episodes:
        if episode.rule == "non_finite":
            values = episode.last.values or episode.worst.values
            if "steps_before_loss" in values:
                steps.append(episode.first.onset_step + int(values["steps_before_loss"]))
            elif episode.worst.values.get("ranks_with_bad_loss"):
                steps.append(episode.first.onset_step)
    return min(steps, default=None)
