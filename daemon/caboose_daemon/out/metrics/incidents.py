"""The series of incidents, which alerts and their annotations read.

Design
------
One series per lead rule and severity, also for several incidents: alerts count causes, and two incidents with one lead
rule are one page. The severity that an incident reached (when it opened, reopened or got worse) is exported for at
least two minutes, also if the incident was over or less severe before the next scrape, so that no scrape misses a page.
While all of these incidents are acknowledged, the series is 0.
"""

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.job import Job
from caboose_daemon.out.metrics.names import OTHER
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.rules import RULES

MAX_SHOWN = 20
"""Maximum number of incidents with an info series, the worst first."""
MAX_A_DAY = 200
"""Maximum number in one day. On average each may change its cause or place once."""
_NONE = {rule.name: 0 for rule in RULES}
"""Start at 0: a series that starts at 1 has no increase, and the first incident would be missed."""
SEVERITIES = {"info": 1.0, "warning": 2.0, "critical": 3.0}


def _severity(incident: Incident, now: float, stay_seconds: float) -> str:
    """Critical for at least `stay_seconds` after it became critical, then the current severity."""
    if _was_lately(incident.critical_time, now, stay_seconds):
        return "critical"
    return str(incident.severity) if incident.is_open else "warning"


def shown(job: Job, now: float, stay_seconds: float) -> list[Incident]:
    """Open incidents, the worst first, and closed ones that were not exported for long enough.

    An incident that was merged into another is covered by that one.
    """
    lately = [
        incident
        for incident in job.incidents
        if not (incident.is_open or incident.is_merged) and has_risen_lately(incident, now, stay_seconds)
    ]
    return [*job.incidents.open, *lately]


def has_risen_lately(incident: Incident, now: float, stay_seconds: float) -> bool:
    """Whether it opened, reopened or got worse so recently that a scrape may have missed it."""
    return any(_was_lately(time, now, stay_seconds) for time in (incident.warning_time, incident.critical_time))


def _was_lately(time: float | None, now: float, stay_seconds: float) -> bool:
    return time is not None and now - time < stay_seconds


def exported_severities(job: Job, now: float, stay_seconds: float) -> set[str]:
    """The severities that are exported for the job."""
    return {_severity(incident, now, stay_seconds) for incident in shown(job, now, stay_seconds)}


def add_incidents(job: Job, samples: JobSamples, now: float, stay_seconds: float) -> None:
    """Adds open incidents and the count of all incidents."""
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
    labels = (incident.rule, severity, incident.id, cause)
    if not samples.names.admit("place", 2 * MAX_A_DAY, *labels, *place):
        place = (place[0], OTHER, OTHER, "")
    samples.add("caboose_incident_info", 1.0, *labels, *place)
    samples.add("caboose_incident_onset_step", float(incident.onset_step), incident.id)
