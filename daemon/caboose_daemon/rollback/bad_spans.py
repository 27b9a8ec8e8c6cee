"""Bad spans: the ranges of steps in which incidents show that a run's numbers were broken."""

import math

from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.rollback_state.continuity import Continuity
from caboose_daemon.rollback_state.ledger import BadSpan
from caboose_daemon.rules.parts.finding import Severity

SIGNS = BREAKS | {"bad_batch", "rank_outlier"}
"""Rules that may fire before the loss moves; the problem then began there."""
ADJACENT = 10
"""Maximum steps between such an early sign and what follows."""


def open_episodes(incident: Incident, attempt: int) -> list[Episode]:
    """The open episodes of this attempt that a rollback may cure."""
    return [
        m
        for m in incident.episodes
        if m.is_open and m.rule in BREAKS and m.attempt == attempt and m.severity is not Severity.INFO
    ]


def onset(incident: Incident, attempt: int) -> int:
    """The first step of the open episodes, or of an early sign just before them."""
    first = min(member.first.onset_step for member in open_episodes(incident, attempt))
    signs = (
        m.first.onset_step
        for m in incident.episodes
        if m.rule in SIGNS and m.attempt == attempt and m.last.step >= first - ADJACENT
    )
    return min((first, *signs))


def of(job: Job) -> list[BadSpan]:
    """Every bad span of this job's attempts in memory."""
    found = [span for incident in job.incidents for span in _spans(job, incident)]
    broken = _broken_check(job)
    if broken is not None:
        found.append(BadSpan(0, broken.attempt, broken.since, None))
    return found


def _broken_check(job: Job) -> Continuity | None:
    """The check of a rollback after which the loss did not continue; no rule sees that, because its baseline is new."""
    check = job.rollback.check
    # Rollbacks only: a broken resume is shown but never judged again, so its span would have no end.
    return check if check is not None and check.state == "broken" and check.decision else None


def _spans(job: Job, incident: Incident) -> list[BadSpan]:
    """One span for each time the numbers broke; the steps between two spans are good.

    Where triage knows the level that the loss left, an open one began when it left it: a rule may date that earlier.
    """
    broken = [m for m in incident.episodes if m.rule in BREAKS and m.severity is not Severity.INFO]
    found: list[BadSpan] = []
    for attempt in sorted({member.attempt for member in broken}):
        spans = _joined([member for member in broken if member.attempt == attempt])
        for decision in job.rollback.decisions:
            if decision.trigger == incident.id and decision.attempt == attempt and decision.triage is not None:
                _extend_back(spans, decision.step, decision.triage.began)
        triage = job.rollback.triages.get(incident.number)
        if triage is not None and attempt == job.num_attempts:
            if triage.verdict in ("recovering", "lingering", "diverging") and math.isfinite(triage.level):
                spans = [(began if ended is not None else triage.began, ended) for began, ended in spans]
            _extend_back(spans, triage.step, triage.began)
        if incident.is_cut and attempt == broken[-1].attempt and incident.closed_step is not None:
            began, ended = spans[-1]
            spans[-1] = (began, None if ended is None else max(ended, incident.closed_step))
        found += (BadSpan(incident.number, attempt, began, ended) for began, ended in spans)
    return found


def _joined(members: list[Episode]) -> list[tuple[int, int | None]]:
    """First and last step of each span; the last is None if it is still open."""
    spans: list[tuple[int, int | None]] = []
    for member in sorted(members, key=lambda m: m.first.onset_step):
        began, ended = member.first.onset_step, None if member.is_open else member.last.step
        if spans and (spans[-1][1] is None or began <= spans[-1][1] + ADJACENT):
            before, until = spans[-1]
            spans[-1] = (before, None if until is None or ended is None else max(until, ended))
        else:
            spans.append((began, ended))
    return spans


def _extend_back(spans: list[tuple[int, int | None]], step: int, began: int) -> None:
    """Moves the start of the span judged at `step` back to where triage found the beginning."""
    for place in reversed(range(len(spans))):
        if spans[place][0] <= step:
            spans[place] = (min(began, spans[place][0]), spans[place][1])
            return


def not_overcome(job: Job) -> list[BadSpan]:
    """The spans that the run did not recover from without help.

    They led to a rollback or a stop, a rollback did not end them, they are open, or they were open when the attempt or
    the run ended.
    """
    last = job.recent[-1].step if job.recent else 0
    unsolved_now = unsolved(job)
    found = [
        span if span.ended is not None else BadSpan(span.number, span.attempt, span.began, last)
        for incident in job.incidents
        if incident.id in unsolved_now
        for span in _spans(job, incident)
    ]
    for decision in job.rollback.decisions:
        if decision.state != "committed" or decision.boundary is None:
            continue
        if decision.triage is not None and decision.kind in ("rollback", "stop"):
            found.append(BadSpan(0, decision.attempt, decision.triage.began, decision.boundary))
        elif decision.kind == "rollback":  # a person asked for it
            found.append(BadSpan(0, decision.attempt, decision.boundary, decision.boundary))
    broken = _broken_check(job)
    if broken is not None and broken.attempt == job.num_attempts:
        found.append(BadSpan(0, broken.attempt, broken.since, last))
    return found


def unsolved(job: Job) -> set[str]:
    """Ids of incidents not known to be resolved: still open, or ended only because their attempt or run ended."""
    return {incident.id for incident in job.incidents if incident.is_open or incident.is_cut or incident.is_unresolved}


def cut_before(job: Job, attempt: int) -> list[int]:
    """Numbers of the incidents that ended only because this attempt began."""
    return [
        incident.number
        for incident in job.incidents
        if incident.is_cut and any(m.attempt == attempt - 1 and m.rule in BREAKS for m in incident.episodes)
    ]
