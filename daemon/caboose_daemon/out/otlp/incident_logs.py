"""Incidents as log records: one when an incident opens, gets worse or better, gets another cause, or ends.

Design
------
The attributes have the names of the labels of `caboose_incident_info`. A record belongs to the span of the attempt in
which the incident opened. An incident changes at many steps without news; only what a reader would want to know again
is a record, so an incident that lasts a day is a few lines.
"""

from collections import OrderedDict

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.out.links import Links
from caboose_daemon.out.metrics.metric import JOB, MAX_LABEL, MAX_TEXT
from caboose_daemon.out.metrics.samples import label
from caboose_daemon.out.otlp import ids
from caboose_daemon.out.otlp.metric_data import nano
from caboose_daemon.rules.parts.describe import alert_name

EVENT = "caboose.incident"
SEVERITIES = {"critical": SeverityNumber.ERROR, "warning": SeverityNumber.WARN, "info": SeverityNumber.INFO}
MAX_KNOWN = 4096
"""Incidents whose last record is remembered, the last changed ones."""


class IncidentLogs:
    """Makes records of what is new."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def record(self, incident: Incident, now: float, created: float, links: Links) -> LogRecord | None:
        """The record of an incident that changed; None if there is nothing new."""
        news = (incident.state, str(incident.severity), _cause(incident))
        if self._last.get(incident.id) == news:
            return None
        self._last[incident.id] = news
        self._last.move_to_end(incident.id)
        while len(self._last) > MAX_KNOWN:
            self._last.popitem(last=False)
        severity = SeverityNumber.INFO if not incident.is_open else SEVERITIES[str(incident.severity)]
        return LogRecord(
            timestamp=nano(now),
            observed_timestamp=nano(now),
            context=span_context(incident.job, created, incident.attempt),
            severity_text=str(incident.severity) if incident.is_open else "resolved",
            severity_number=severity,
            body=label(_body(incident), MAX_TEXT),
            attributes=_attributes(incident, links),
            event_name=EVENT,
        )


def span_context(job: str, created: float, attempt: int) -> Context:
    """The context of an attempt's span."""
    context = SpanContext(
        ids.trace_id(job, created), ids.span_id(job, created, attempt), is_remote=False, trace_flags=TraceFlags(1)
    )
    return set_span_in_context(NonRecordingSpan(context), Context())


def _body(incident: Incident) -> str:
    if incident.is_open:
        return incident.headline
    return f"{incident.rule} closed at step {incident.closed_step}: {incident.reason}"


def _cause(incident: Incident) -> str:
    best = None if incident.diagnosis is None else incident.diagnosis.best
    return "unknown" if best is None else best.id


def _attributes(incident: Incident, links: Links) -> dict[str, str | int]:
    witness = incident.witness
    texts = {
        JOB: incident.job,
        "rule": incident.rule,
        "severity": str(incident.severity),
        "incident": incident.id,
        "state": incident.state,
        "cause": _cause(incident),
        "rank": str(witness.ranks[0]) if witness is not None and witness.ranks else "",
        "host": witness.host if witness is not None else "",
        "layer": witness.layers[0] if witness is not None and witness.layers else "",
        "phase": witness.phase if witness is not None else "",
        "runbook_url": links.of_runbook(alert_name(incident.rule), incident.job, incident.number),
        "link": links.of_incident(incident.job, incident.number),
    }
    shown: dict[str, str | int] = {key: label(text, 4 * MAX_LABEL) for key, text in texts.items() if text}
    return {**shown, "attempt": incident.attempt, "onset_step": incident.onset_step}
