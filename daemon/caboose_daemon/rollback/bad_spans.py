"""Which incidents are about numbers that broke, and from which step to which a run was in trouble."""

from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.rollback_state.continuity import Continuity
from caboose_daemon.rollback_state.ledger import Trouble
from caboose_daemon.rules.parts.finding import Severity

SIGNS = BREAKS | {"bad_batch", "rank_outlier"}
"""What may show before the loss moves, and then is where it began."""
ADJACENT = 10
"""Steps between the end of such a sign and what followed, at most."""


def open_members(incident: Incident, attempt: int) -> list[Episode]:
    """What is open in it that going back may cure."""
    return [
        m
        for m in incident.episodes
        if m.is_open and m.rule in BREAKS and m.attempt == attempt and m.severity is not Severity.INFO
    ]


def onset(incident: Incident, attempt: int) -> int:
    """The first step of what is open, or of the sign just before it."""
    first = min(member.first.onset_step for member in open_members(incident, attempt))
    signs = (
        m.first.onset_step
        for m in incident.episodes
        if m.rule in SIGNS and m.attempt == attempt and m.last.step >= first - ADJACENT
    )
    return min((first, *signs))


def of(job: Job) -> list[Trouble]:
    """Every stretch of this job's remembered attempts in which its numbers broke."""
    found = [trouble for incident in job.incidents for trouble in _stretches(job, incident)]
    broken = _broken_check(job)
    if broken is not None:
        found.append(Trouble(0, broken.attempt, broken.since, None))
    return found


def _broken_check(job: Job) -> Continuity | None:
    """The check of a rollback after which the loss did not go on; no rule sees that, because its baseline is new."""
    check = job.rollback.check
    # Of a rollback only: a resume whose loss is a little off is shown, and not checked again, so it would have no end.
    return check if check is not None and check.state == "broken" and check.decision else None


def _stretches(job: Job, incident: Incident) -> list[Trouble]:
    """One for each time that its numbers broke: what lies between two of them was sound."""
    broken = [m for m in incident.episodes if m.rule in BREAKS and m.severity is not Severity.INFO]
    found: list[Trouble] = []
    for attempt in sorted({member.attempt for member in broken}):
        spans = _joined([member for member in broken if member.attempt == attempt])
        for decision in job.rollback.decisions:
            if decision.trigger == incident.id and decision.attempt == attempt and decision.triage is not None:
                _reach_back(spans, decision.step, decision.triage.began)
        triage = job.rollback.triages.get(incident.number)
        if triage is not None and attempt == job.num_attempts:
            _reach_back(spans, triage.step, triage.began)
        if incident.is_cut and attempt == broken[-1].attempt and incident.closed_step is not None:
            began, ended = spans[-1]
            spans[-1] = (began, None if ended is None else max(ended, incident.closed_step))
        found += (Trouble(incident.number, attempt, began, ended) for began, ended in spans)
    return found


def _joined(members: list[Episode]) -> list[tuple[int, int | None]]:
    """First and last step of each stretch; None for the last of one that is still open."""
    spans: list[tuple[int, int | None]] = []
    for member in sorted(members, key=lambda m: m.first.onset_step):
        began, ended = member.first.onset_step, None if member.is_open else member.last.step
        if spans and (spans[-1][1] is None or began <= spans[-1][1] + ADJACENT):
            before, until = spans[-1]
            spans[-1] = (before, None if until is None or ended is None else max(until, ended))
        else:
            spans.append((began, ended))
    return spans


def _reach_back(spans: list[tuple[int, int | None]], step: int, began: int) -> None:
    """What was judged at a step is known to have begun earlier than a rule noticed."""
    for place in reversed(range(len(spans))):
        if spans[place][0] <= step:
            spans[place] = (min(began, spans[place][0]), spans[place][1])
            return


def not_overcome(job: Job) -> list[Trouble]:
    """The stretches that the run did not recover from without help.

    They led to a rollback or a stop, a rollback did not end them, they are open, or they were open when the attempt or
    the run ended.
    """
    last = job.recent[-1].step if job.recent else 0
    unsolved_now = unsolved(job)
    found = [
        trouble if trouble.ended is not None else Trouble(trouble.number, trouble.attempt, trouble.began, last)
        for incident in job.incidents
        if incident.id in unsolved_now
        for trouble in _stretches(job, incident)
    ]
    for decision in job.rollback.decisions:
        if decision.state != "committed" or decision.boundary is None:
            continue
        if decision.triage is not None and decision.kind in ("rollback", "stop"):
            found.append(Trouble(0, decision.attempt, decision.triage.began, decision.boundary))
        elif decision.kind == "rollback":  # a person asked for it
            found.append(Trouble(0, decision.attempt, decision.boundary, decision.boundary))
    broken = _broken_check(job)
    if broken is not None and broken.attempt == job.num_attempts:
        found.append(Trouble(0, broken.attempt, broken.since, last))
    return found


def unsolved(job: Job) -> set[str]:
    """The incidents of which nothing has shown that they are over: still open, or ended with their attempt or run."""
    return {incident.id for incident in job.incidents if incident.is_open or incident.is_cut or incident.is_unresolved}


def cut_before(job: Job, attempt: int) -> list[int]:
    """The incidents about broken numbers that ended only because this attempt began."""
    return [
        incident.number
        for incident in job.incidents
        if incident.is_cut and any(m.attempt == attempt - 1 and m.rule in BREAKS for m in incident.episodes)
    ]
