"""The incidents' series: what alerts read, and what their annotations say.

Design
------
One series per lead rule and severity, however many incidents share them: alerts count causes, and two incidents with
one lead are one line on a pager. What an incident rose to (by opening, opening again or getting worse) is told for two
minutes at least, also if it was over or better before anybody scraped, so that nothing that was worth a page goes
unseen. While somebody has it in hand the series stands at 0.
"""

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.names import OTHER
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.rules import RULES

MAX_SHOWN = 20
"""Incidents with an info series at most, the worst first."""
MAX_A_DAY = 200
"""Incidents with an info series in a day; each may change its cause or its place once, on average."""
_NONE = {rule.name: 0 for rule in RULES}
"""Counted from 0: the increase of a series that begins at 1 is nothing, and the first incident would be missed."""
SEVERITIES = {"info": 1.0, "warning": 2.0, "critical": 3.0}


def _severity(incident: Incident, now: float, stay_seconds: float) -> str:
    """Critical for as long as that must be seen, then what it is now: a page is told once, and in time."""
    if _was_lately(incident.critical_time, now, stay_seconds):
        return "critical"
    return str(incident.severity) if incident.is_open else "warning"


def shown(job: Job, now: float, stay_seconds: float) -> list[Incident]:
    """The open ones, the worst first, and those that have not been seen for long enough.

    One that was taken in by another is told by that one.
    """
    lately = [
        incident
        for incident in job.incidents
        if not (incident.is_open or incident.is_merged) and has_risen_lately(incident, now, stay_seconds)
    ]
    return [*job.incidents.open, *lately]


def has_risen_lately(incident: Incident, now: float, stay_seconds: float) -> bool:
    """Whether it opened, was opened again or got worse so lately that it may not have been scraped yet."""
    return any(_was_lately(time, now, stay_seconds) for time in (incident.warning_time, incident.critical_time))


def _was_lately(time: float | None, now: float, stay_seconds: float) -> bool:
    return time is not None and now - time < stay_seconds


def told(job: Job, now: float, stay_seconds: float) -> set[str]:
    """The severities alerts are told of."""
    return {_severity(incident, now, stay_seconds) for incident in shown(job, now, stay_seconds)}


def add_incidents(job: Job, samples: JobSamples, now: float, stay_seconds: float) -> None:
    """What is open, and how many there were."""
    incidents = shown(job, now, stay_seconds)
    open_now: dict[tuple[str, str], float] = {}
    for incident in incidents:
        key = (incident.rule, _severity(incident, now, stay_seconds))
        open_now[key] = max(open_now.get(key, 0.0), 0.0 if incident.acknowledged else 1.0)
    for (rule, severity), value in sorted(open_now.items()):
        samples.add("caboose_incident_open", value, rule, severity)
    samples.names.leave_out(len(incidents) - MAX_SHOWN)
    for incident in incidents[:MAX_SHOWN]:
        _add_info(incident, _severity(incident, now, stay_seconds), samples)
    for rule, count in sorted((_NONE | job.incident_counts).items()):
        samples.add("caboose_incidents_total", count, rule)
    worst = max((SEVERITIES[str(i.severity)] for i in job.incidents.open), default=0.0)
    samples.add("caboose_job_severity", worst)


def _add_info(incident: Incident, severity: str, samples: JobSamples) -> None:
    if not samples.names.admit("incident", MAX_A_DAY, incident.id):
        return
    witness = incident.witness
    best = None if incident.diagnosis is None else incident.diagnosis.best
    cause = "unknown" if best is None else best.id
    place = (
        str(witness.ranks[0]) if witness is not None and witness.ranks else "",
        witness.host if witness is not None else "",
        witness.layers[0] if witness is not None and witness.layers else "",
        witness.phase if witness is not None else "",
    )
    told = (incident.rule, severity, incident.id, cause)
    if not samples.names.admit("place", 2 * MAX_A_DAY, *told, *place):
        place = (place[0], OTHER, OTHER, "")
    samples.add("caboose_incident_info", 1.0, *told, *place)
    samples.add("caboose_incident_onset_step", float(incident.onset_step), incident.id)
