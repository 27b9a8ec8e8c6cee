"""Writes the words of an incident's alert, for somebody who is woken up and has not seen the job before.

Design
------
What to do and what not to do are the diagnosis' own, where it has a likely cause; else the catalogue's. What it means
is the first paragraph of *Impact* in the runbook, so that it is written once. Ranks are named with host and process id,
because the first command often needs them. All lengths are bounded: the words are labels of a series.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from caboose_daemon.assets import folder
from caboose_daemon.format import one_line
from caboose_daemon.incidents.alert_catalogue import CATALOGUE
from caboose_daemon.incidents.alert_text import AlertText
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job, Member
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.describe import alert_name
from caboose_daemon.rules.parts.endings import rank_place
from caboose_daemon.rules.parts.finding import Severity

MAX_JOB = 60
MAX_SUMMARY = 300
MAX_LINE = 320
MAX_DESCRIPTION = 1800
MAX_RANKS = 3
MAX_LAYERS = 2
MAX_EVIDENCE = 2
NOTHING_TRAINS = "non_finite"
"""The rule whose findings cost the whole run."""
_IMPACT = re.compile(r"^## Impact\n+(.+?)(?:\n\n|\Z)", flags=re.MULTILINE | re.DOTALL)


def worded(job: Job, incident: Incident) -> Incident:
    """The incident with the words of its alert; they change only where it opened, opened again or got worse."""
    known = incident.alert
    if not incident.is_open or incident.severity is Severity.INFO:
        return incident
    is_known = known is not None and known.num_reopened == incident.num_reopened
    if known is not None and is_known and Severity(known.severity).rank >= incident.severity.rank:
        return incident
    return replace(incident, alert=alert_text(job, incident))


def alert_text(job: Job, incident: Incident) -> AlertText:
    """The words for the incident as it is now."""
    return AlertText(
        severity=str(incident.severity),
        num_reopened=incident.num_reopened,
        summary=_summary(job, incident),
        description=_cut("\n".join(_description(job, incident)), MAX_DESCRIPTION),
    )


def members_of(job: Job, incident: Incident) -> list[Member]:
    """The ranks in which it began, as far as they are of the current attempt."""
    members = {} if job.attempt is None else job.attempt.members
    ranks = () if incident.witness is None else incident.witness.ranks
    return [members[rank] for rank in ranks if rank in members]


def places(job: Job, incident: Incident) -> list[str]:
    """The ranks in which it began, with host and process id."""
    witness, attempt = incident.witness, job.attempt
    members = {} if attempt is None else attempt.members
    found = []
    for rank in () if witness is None else witness.ranks:
        member = members.get(rank)
        host = witness.host if witness is not None and rank == witness.ranks[0] else ""
        found.append(rank_place(rank, host, 0) if member is None else member.place)
    return found


def _summary(job: Job, incident: Incident) -> str:
    """What is wrong, as the worst finding says it, with the place and the step that it does not name."""
    text, witness = incident.summary, incident.witness
    more = []
    named = places(job, incident)
    if named and f"rank {witness.ranks[0] if witness else ''}" not in text:
        more.append(named[0] + (f" and {len(named) - 1} more" if len(named) > 1 else ""))
    if witness is not None and witness.layers and witness.layers[0] not in text:
        more.append(f"layer {witness.layers[0]}")
    if "step" not in text:
        more.append(f"since step {incident.onset_step:,}")
    return _cut(
        one_line(f"{_cut(job.name, MAX_JOB)}: {'; '.join((text, ', '.join(more))) if more else text}"), MAX_SUMMARY
    )


def _description(job: Job, incident: Incident) -> Iterator[str]:
    entry = CATALOGUE[incident.rule]
    diagnosis = incident.diagnosis
    best = None if diagnosis is None else diagnosis.best
    for line in (
        f"Where: {_where(job, incident)}",
        f"Meaning: {_meaning(incident)}",
        f"First: {_with_pid(entry.first_fix if best is None else best.advice.first_fix, job, incident)}",
    ):
        yield _cut(one_line(line), MAX_LINE)
    if best is not None:
        evidence = "; ".join(best.evidence_for[:MAX_EVIDENCE]) or "none measured"
        yield _cut(one_line(f"Likely cause: {best.title} ({best.confidence:.0%})"), MAX_LINE)
        yield _cut(one_line(f"Evidence: {evidence}"), MAX_LINE)
    else:
        yield _cut(one_line(f"Evidence: {incident.summary}; no known cause is likely"), MAX_LINE)
    avoid = entry.avoid if best is None or not best.advice.avoid else best.advice.avoid
    yield _cut(one_line(f"{avoid[:1].upper()}{avoid[1:]}"), MAX_LINE)
    yield _cut(f"More: caboose diagnose {shlex.quote(job.name)}", MAX_LINE)
    yield _cut(f'Acknowledge: caboose ack {shlex.quote(incident.id)} --reason "..."', MAX_LINE)


def _meaning(incident: Incident) -> str:
    """What the alert is about, and what the incident costs: after a NaN nothing trains, whichever rule leads it."""
    is_lost = any(episode.rule == NOTHING_TRAINS for episode in incident.reportable)
    summary = CATALOGUE[incident.rule].summary
    return f"{summary[:1].upper()}{summary[1:]}. {impact(NOTHING_TRAINS if is_lost else incident.rule)}"


def _with_pid(text: str, job: Job, incident: Incident) -> str:
    """The text with the process id of the first rank, where it has a placeholder for it."""
    pid = next((member.hello.pid for member in members_of(job, incident) if member.hello.pid), 0)
    return re.sub(r"\bPID\b", str(pid), text) if pid else text


def _where(job: Job, incident: Incident) -> str:
    """Rank, host, process, layer and phase of the first witness, and the steps."""
    named, witness = places(job, incident), incident.witness
    parts = []
    if named:
        more = f" and {len(named) - MAX_RANKS} more ranks" if len(named) > MAX_RANKS else ""
        parts.append(", ".join(named[:MAX_RANKS]) + more)
    if witness is not None and witness.layers:
        more = f" and {len(witness.layers) - MAX_LAYERS} more" if len(witness.layers) > MAX_LAYERS else ""
        parts.append(f"layer {', '.join(witness.layers[:MAX_LAYERS])}{more}")
    if witness is not None and witness.phase:
        parts.append(f"in the {witness.phase} phase")
    since = f"since step {incident.onset_step:,}, found at step {incident.lead.reported_step:,}"
    return "; ".join((", ".join(parts) or "no single rank", since))


def impact(rule: str) -> str:
    """The first paragraph of *Impact* in the runbook of the rule's alert."""
    return impacts().get(rule, "")


@cache
def impacts() -> Mapping[str, str]:
    """That paragraph of every rule. A daemon reads them when it starts: later there may be no descriptor left."""
    return {rule.name: _first_paragraph(folder("runbooks") / f"{alert_name(rule.name)}.md") for rule in RULES}


def _first_paragraph(runbook: Path) -> str:
    found = _IMPACT.search(runbook.read_text(encoding="utf-8")) if runbook.is_file() else None
    return "" if found is None else " ".join(found[1].split())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
