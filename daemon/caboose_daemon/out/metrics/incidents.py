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
from caboose_daemon.out.links import Links
from caboose_daemon.out.metrics.names import OTHER
from caboose_daemon.out.metrics.samples import JobSamples
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.describe import alert_name

MAX_SHOWN = 20
"""Maximum number of incidents with an info series, the worst first."""
MAX_TEXTS = 8
"""Maximum number of incidents with their alert's words, the worst first: they are long."""
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


def unresolved(job: Job) -> tuple[Incident, ...]:
    """What the run ended with; nothing while it runs."""
    ending = job.ending
    return () if ending is None else ending.unresolved


def has_risen_lately(incident: Incident, now: float, stay_seconds: float) -> bool:
    """Whether it opened, reopened or got worse so recently that a scrape may have missed it."""
    return any(_was_lately(time, now, stay_seconds) for time in (incident.warning_time, incident.critical_time))


def _was_lately(time: float | None, now: float, stay_seconds: float) -> bool:
    return time is not None and now - time < stay_seconds


def exported_severities(job: Job, now: float, stay_seconds: float) -> set[str]:
    """The severities that are exported for the job."""
    return {_severity(incident, now, stay_seconds) for incident in shown(job, now, stay_seconds)}


def add_incidents(job: Job, samples: JobSamples, now: float, stay_seconds: float, links: Links) -> None:
    """Adds open incidents, what the run ended with, and the count of all incidents."""
    incidents = shown(job, now, stay_seconds)
    open_now: dict[tuple[str, str], float] = {}
    for incident in incidents:
        key = (incident.rule, _severity(incident, now, stay_seconds))
        open_now[key] = max(open_now.get(key, 0.0), 0.0 if incident.acknowledged else 1.0)
    for (rule, severity), value in sorted(open_now.items()):
        samples.add("caboose_incident_open", value, rule, severity)
    described = [(incident, _severity(incident, now, stay_seconds)) for incident in incidents]
    numbers = {incident.number for incident in incidents}
    described += [(i, str(i.severity_at_end)) for i in unresolved(job) if i.number not in numbers]
    samples.names.leave_out(len(described) - MAX_SHOWN)
    for incident, severity in described[:MAX_SHOWN]:
        _add_info(incident, severity, samples)
    for incident, severity in described[:MAX_TEXTS]:
        _add_text(incident, severity, samples, links)
    for rule, count in sorted((_NONE | job.incident_counts).items()):
        samples.add("caboose_incidents_total", count, rule)
    _add_unresolved(job, samples)
    samples.add("caboose_job_severity", SEVERITIES.get(job.health, 0.0))


def _add_unresolved(job: Job, samples: JobSamples) -> None:
    """Adds what the run ended with."""
    left: dict[tuple[str, str], float] = {}
    for incident in unresolved(job):
        key = (incident.rule, str(incident.severity_at_end))
        left[key] = max(left.get(key, 0.0), 0.0 if incident.acknowledged else 1.0)
    for (rule, severity), value in sorted(left.items()):
        samples.add("caboose_incident_unresolved", value, rule, severity)


def _add_text(incident: Incident, severity: str, samples: JobSamples, links: Links) -> None:
    """Adds the words of its alert, as they were when it opened or got worse."""
    words = incident.alert
    if words is None or not samples.names.admit("text", MAX_A_DAY, incident.id, severity, words.summary):
        return
    alert = alert_name(incident.rule)
    samples.add(
        "caboose_incident_text",
        1.0,
        incident.rule,
        severity,
        incident.id,
        words.summary,
        words.description,
        links.of_incident(incident.job, incident.number),
        links.of_runbook(alert, incident.job, incident.number),
        links.of_dashboard(incident.job),
    )


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
