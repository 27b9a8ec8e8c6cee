"""The alerts on training: for every rule a page and a ticket, both reading incidents.

Design
------
An alert's labels are its identity: a label that changes makes a second page for the same cause. So the labels are the
job, the lead rule (fixed when the incident opens), the severity and the team. They contain nothing about where the
daemon runs (`instance` and `pod` change when it moves) and nothing that is found out later. The annotations query
culprit and cause.

A ticket is silent for one hour after a page on the same job and rule: an incident that was critical and is recovering
has already been notified.

An incident whose series is missing for less than five minutes is not over: the daemon restarted or moved to another
address, or the problem came back, which the daemon treats as the same incident. A page bridges that gap in its
expression and not with `keep_firing_for`, because it must end at once when the incident is acknowledged (the series is
0): the last value at every address has to be 1. A ticket cannot do that, as its `for` would count time in which the
incident was over. It uses `keep_firing_for`, which pages no one.
"""

from collections.abc import Mapping

from catalogue import CATALOGUE, AlertText

from caboose_daemon.rules.parts.describe import alert_name

RUNBOOKS = "https://runbooks.example/caboose"
"""A placeholder for the address of dashboards/runbooks at your site; docs/alerts.md describes how to change it."""
TEAM = "training"
BRIDGED = "5m"
"""How long the series of an incident may be missing without ending its alert. The resolve is late by as much."""
PAGED_LATELY = "1h"

DETAILS = "Evidence and exact change: caboose diagnose {{ $labels.training_job }}"

_INFO = "caboose_incident_info{training_job=%[1]q,rule=%[2]q,severity=%[3]q}"
_INCIDENTS = (
    f'query (printf "{_INFO} or on (training_job, rule, severity) last_over_time({_INFO}[{BRIDGED}])"'
    " $labels.training_job $labels.rule $labels.severity)"
)
"""The open incidents; if there are none, those of the last five minutes."""
_PLACE = (
    "{{ if .Labels.rank }}rank {{ .Labels.rank }}{{ if .Labels.host }} on {{ .Labels.host }}{{ end }}"
    "{{ else }}no single rank{{ end }}"
    "{{ if .Labels.layer }}, layer {{ .Labels.layer }}{{ end }}"
    "{{ if .Labels.phase }}, in the {{ .Labels.phase }} phase{{ end }}"
    " ({{ .Labels.incident }})"
)
CULPRIT = (
    f"{{{{ with {_INCIDENTS} }}}}"
    f'{{{{ range $i, $_ := sortByLabel "incident" . }}}}{{{{ if $i }}}}; {{{{ end }}}}{_PLACE}{{{{ end }}}}'
    "{{ else }}not known{{ end }}"
)
CAUSE = (
    f"{{{{ with {_INCIDENTS} }}}}"
    '{{ range $i, $_ := sortByLabel "incident" . }}{{ if $i }}; {{ end }}{{ .Labels.cause }}{{ end }}'
    "{{ else }}unknown{{ end }}"
)
PAGE = (
    '{{ with query (printf "caboose_job_up{training_job=%q}" $labels.training_job) }}'
    'http://{{ . | first | label "instance" }}/?job={{ $labels.training_job | urlquery }}'
    f"{{{{ with {_INCIDENTS} }}}}"
    '#incident={{ sortByLabel "incident" . | first | label "incident" | reReplaceAll ".*/" "" }}'
    "{{ end }}"
    "{{ else }}the live page of the daemon{{ end }}"
)
"""The daemon's live page, opened at the incident, at the address that Prometheus scrapes."""


def open_incident(rule: str, severity: str) -> str:
    """PromQL that is true while such an incident is open and not acknowledged."""
    return f"max without (instance, pod) ({_series(rule, severity)}) == 1"


def _series(rule: str, severity: str) -> str:
    return f'caboose_incident_open{{rule="{rule}",severity="{severity}"}}'


def annotations(rule: str, text: AlertText) -> dict[str, str]:
    """The annotations, the same for both severities."""
    return {
        "summary": f"{{{{ $labels.training_job }}}}: {text.summary}",
        "culprit": CULPRIT,
        "cause": CAUSE,
        "first_fix": f"{text.first_fix} {text.avoid} {DETAILS}",
        "runbook_url": f"{RUNBOOKS}/{alert_name(rule)}.md",
        "dashboard": PAGE,
    }


def page(rule: str, text: AlertText) -> dict[str, object]:
    """The critical alert of a rule."""
    return {
        "alert": alert_name(rule),
        "expr": (
            f"{open_incident(rule, 'critical')}\n"
            f"or min without (instance, pod) (last_over_time({_series(rule, 'critical')}[{BRIDGED}])) == 1"
        ),
        "labels": {"severity": "critical", "team": TEAM},
        "annotations": annotations(rule, text),
    }


def ticket(rule: str, text: AlertText) -> dict[str, object]:
    """The warning of a rule."""
    return {
        "alert": alert_name(rule),
        "expr": (
            f"{open_incident(rule, 'warning')}\n"
            f"unless ignoring (severity, instance, pod) max_over_time({_series(rule, 'critical')}[{PAGED_LATELY}]) == 1"
        ),
        "for": text.ticket_after,
        "keep_firing_for": BRIDGED,
        "labels": {"severity": "warning", "team": TEAM},
        "annotations": annotations(rule, text),
    }


def training() -> Mapping[str, object]:
    """The content of training.yml: one group for pages, one for tickets."""
    kinds = (("caboose-training-pages", page), ("caboose-training-tickets", ticket))
    return {
        "groups": [
            {"name": name, "rules": [make(rule, text) for rule, text in CATALOGUE.items()]} for name, make in kinds
        ]
    }
