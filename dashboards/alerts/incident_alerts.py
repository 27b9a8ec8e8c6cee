"""The alerts on training: for every rule a page and a ticket, both reading incidents.

Design
------
An alert's labels are its identity: a label that changes makes a second page for the same cause. So the labels are the
job, the lead rule (fixed when the incident opens), the severity and the team. They contain nothing about where the
daemon runs (`instance` and `pod` change when it moves) and nothing that is found out later. The annotations query the
words that the daemon exports for the incident (`caboose_incident_text`), culprit and cause.

A ticket is silent for one hour after a page on the same job and rule: an incident that was critical and is recovering
has already been notified.

An incident whose series is missing for less than five minutes is not over: the daemon restarted or moved to another
address, or the problem came back, which the daemon treats as the same incident. A page bridges that gap in its
expression and not with `keep_firing_for`, because it must end at once when the incident is acknowledged (the series is
0): the last value at every address has to be 1. A ticket cannot do that, as its `for` would count time in which the
incident was over. It uses `keep_firing_for`, which pages no one.

The end of a run resolves nothing: an alert that fired then keeps firing while `caboose_incident_unresolved` is 1, until
somebody acknowledges the incident or the job is launched again. An alert that did not fire then does not begin to.
`CabooseEndedUnresolved` fires beside it and inhibits it, so that nobody is notified again about a run that is over.

Nor does an outage of the daemon: while none is scraped, what fired keeps firing for an hour, and CabooseAbsent pages.
"""

from collections.abc import Mapping

from caboose_daemon.incidents.alert_catalogue import CATALOGUE, AlertEntry
from caboose_daemon.rules.parts.describe import alert_name

TEAM = "training"
BRIDGED = "5m"
"""How long the series of an incident may be missing without ending its alert. The resolve is late by as much."""
PAGED_LATELY = "1h"
AWAY = "1h"
"""How long a daemon may be away without ending its alerts. A daemon that ends with its job does not come back."""
ENDED = "CabooseEndedUnresolved"
NOTIFIED_BEFORE = "15m"
"""Time in which a page of the last minute of a run is surely sent, before `ENDED` keeps it from being repeated."""


def _of_incidents(metric: str) -> str:
    """A template's query for the series of the alert's incidents; if there are none, of the last five minutes."""
    series = f"{metric}{{training_job=%[1]q,rule=%[2]q,severity=%[3]q}}"
    return (
        f'query (printf "{series} or on (training_job, rule, severity) last_over_time({series}[{BRIDGED}])"'
        " $labels.training_job $labels.rule $labels.severity)"
    )


def _each(metric: str, text: str, between: str, otherwise: str) -> str:
    """A template that writes `text` for each incident of the alert."""
    return (
        f"{{{{ with {_of_incidents(metric)} }}}}"
        f'{{{{ range $i, $_ := sortByLabel "incident" . }}}}{{{{ if $i }}}}{between}{{{{ end }}}}{text}{{{{ end }}}}'
        f"{{{{ else }}}}{otherwise}{{{{ end }}}}"
    )


def _first(metric: str, label: str, otherwise: str) -> str:
    """A template that writes one label of the first incident of the alert."""
    return (
        f'{{{{ with {_of_incidents(metric)} }}}}{{{{ sortByLabel "incident" . | first | label "{label}" }}}}'
        f"{{{{ else }}}}{otherwise}{{{{ end }}}}"
    )


INFO, TEXT = "caboose_incident_info", "caboose_incident_text"
_PLACE = (
    "{{ if .Labels.rank }}rank {{ .Labels.rank }}{{ if .Labels.host }} on {{ .Labels.host }}{{ end }}"
    "{{ else }}no single rank{{ end }}"
    "{{ if .Labels.layer }}, layer {{ .Labels.layer }}{{ end }}"
    "{{ if .Labels.phase }}, in the {{ .Labels.phase }} phase{{ end }}"
    " ({{ .Labels.incident }})"
)
CULPRIT = _each(INFO, _PLACE, "; ", "not known")
CAUSE = _each(INFO, "{{ .Labels.cause }}", "; ", "unknown")
PAGE = _first(
    TEXT,
    "page",
    '{{ with query (printf "caboose_job_up{training_job=%q}" $labels.training_job) }}'
    'http://{{ . | first | label "instance" }}/?job={{ $labels.training_job | urlquery }}'
    "{{ else }}the live page of the daemon{{ end }}",
)
"""The live page, opened at the incident."""
DASHBOARD = _first(TEXT, "grafana", "")


def runbook_of_rule(alert: str) -> str:
    """The runbook as the daemon serves it, filled with the incident."""
    return _first(TEXT, "runbook", runbook_of(alert))


def runbook_of(alert: str) -> str:
    """The runbook as the daemon serves it. A daemon that is gone serves none: then its last known address."""
    return (
        '{{ with query "caboose_daemon_links_info or on () last_over_time(caboose_daemon_links_info[1d])" }}'
        f'{{{{ . | first | label "runbooks" }}}}/{alert}'
        f"{{{{ else }}}}the file {alert}.md in dashboards/runbooks{{{{ end }}}}"
    )


def ended_with(rule: str, severity: str) -> str:
    """PromQL that keeps an alert firing which fired when its run ended: the end resolves nothing."""
    left = f'caboose_incident_unresolved{{rule="{rule}",severity="{severity}"}}'
    return f"max without (instance, pod) ({left}) == 1 and on (training_job, rule) {_fired(rule, severity)}"


def while_no_daemon(rule: str, severity: str) -> str:
    """PromQL that keeps an alert firing while no daemon is scraped: nobody knows then that it recovered."""
    fired = f"max without (alertname, alertstate, team) ({_fired(rule, severity)})"
    return f"{fired} unless on () caboose_daemon_info and on () last_over_time(caboose_daemon_info[{AWAY}])"


def _fired(rule: str, severity: str) -> str:
    return f'ALERTS{{alertname="{alert_name(rule)}",severity="{severity}",alertstate="firing"}}'


def open_incident(rule: str, severity: str) -> str:
    """PromQL that is true while such an incident is open and not acknowledged."""
    return f"max without (instance, pod) ({_series(rule, severity)}) == 1"


def _series(rule: str, severity: str) -> str:
    return f'caboose_incident_open{{rule="{rule}",severity="{severity}"}}'


def annotations(rule: str, text: AlertEntry) -> dict[str, str]:
    """The annotations, the same for both severities."""
    job = "{{ $labels.training_job }}"
    static = f"{text.first_fix} {text.avoid} Evidence and exact change: caboose diagnose {job}"
    return {
        "summary": _each(TEXT, "{{ .Labels.summary }}", "; ", f"{job}: {text.summary}"),
        "description": _each(TEXT, "{{ .Labels.description }}", "\n\n", static),
        "culprit": CULPRIT,
        "cause": CAUSE,
        "runbook_url": runbook_of_rule(alert_name(rule)),
        "dashboard": PAGE,
        "grafana": DASHBOARD,
    }


def page(rule: str, text: AlertEntry) -> dict[str, object]:
    """The critical alert of a rule."""
    return {
        "alert": alert_name(rule),
        "expr": (
            f"{open_incident(rule, 'critical')}\n"
            f"or min without (instance, pod) (last_over_time({_series(rule, 'critical')}[{BRIDGED}])) == 1\n"
            f"or {ended_with(rule, 'critical')}\n"
            f"or ({while_no_daemon(rule, 'critical')})"
        ),
        "labels": {"severity": "critical", "team": TEAM},
        "annotations": annotations(rule, text),
    }


def ticket(rule: str, text: AlertEntry) -> dict[str, object]:
    """The warning of a rule."""
    paged = f"max_over_time({_series(rule, 'critical')}[{PAGED_LATELY}]) == 1"
    return {
        "alert": alert_name(rule),
        "expr": (
            f"{open_incident(rule, 'warning')}\n"
            f"unless ignoring (severity, instance, pod) {paged}\n"
            f"or {ended_with(rule, 'warning')}\n"
            f"or ({while_no_daemon(rule, 'warning')})"
        ),
        "for": text.ticket_after,
        "keep_firing_for": BRIDGED,
        "labels": {"severity": "warning", "team": TEAM},
        "annotations": annotations(rule, text),
    }


def ended() -> dict[str, object]:
    """The alert that shows what runs ended with, and keeps their other alerts from being sent again."""
    job, rule = "{{ $labels.training_job }}", "{{ $labels.rule }}"
    return {
        "alert": ENDED,
        "expr": "max without (instance, pod, severity) (caboose_incident_unresolved) == 1",
        "for": NOTIFIED_BEFORE,
        "labels": {"severity": "none", "team": TEAM},
        "annotations": {
            "summary": f"{job} is over, and {rule} was open at its end: nobody has acknowledged it",
            "description": "The run has ended, so nothing is urgent. Read how it ended with caboose jobs, then"
            " acknowledge its incident, or start the job again. Do not take its last checkpoint before you know why"
            f" {rule} was open.",
            "runbook_url": runbook_of(ENDED),
        },
    }


def training() -> Mapping[str, object]:
    """The content of training.yml: one group for pages, one for tickets, one for runs that are over."""
    kinds = (("caboose-training-pages", page), ("caboose-training-tickets", ticket))
    groups: list[dict[str, object]] = [
        {"name": name, "rules": [make(rule, text) for rule, text in CATALOGUE.items()]} for name, make in kinds
    ]
    return {"groups": [*groups, {"name": "caboose-training-ended", "rules": [ended()]}]}
