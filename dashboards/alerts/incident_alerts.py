"""The alerts on training: for every rule a page and a ticket, both reading incidents.

Design
------
An alert's labels are its identity: whatever changes in them makes a new page for an old cause. So they are the job, the
lead rule (fixed when the incident opens), the severity and the team, and nothing of where a daemon runs (`instance` and
`pod` change when it is moved) or of what is found out later. Culprit and cause are asked for by the annotations.

A ticket is silent for an hour after a page on the same job and rule: an incident that was critical and is on the mend
has been told already. `keep_firing_for` bridges a restart of the daemon, so that it does not resolve and page again.
"""

from collections.abc import Mapping

from catalogue import CATALOGUE, Words

from caboose_daemon.rules.describe import alert_name

RUNBOOKS = "https://runbooks.example/caboose"
"""Stands for the place where your people find dashboards/runbooks; docs/alerts.md says how to change it."""
TEAM = "training"
KEEP_FIRING = "1m"
PAGED_LATELY = "1h"

_INCIDENTS = (
    'query (printf "caboose_incident_info{training_job=%q,rule=%q,severity=%q}"'
    " $labels.training_job $labels.rule $labels.severity)"
)
_PLACE = (
    "{{ if .Labels.rank }}rank {{ .Labels.rank }}{{ if .Labels.host }} on {{ .Labels.host }}{{ end }}"
    "{{ else }}no single rank{{ end }}"
    "{{ if .Labels.layer }}, layer {{ .Labels.layer }}{{ end }}"
    "{{ if .Labels.phase }}, in {{ .Labels.phase }}{{ end }}"
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
"""The daemon's own page, at the address under which Prometheus scrapes it, open at the incident."""


def open_incident(rule: str, severity: str) -> str:
    """PromQL that holds while such an incident is open and in nobody's hand."""
    return f'max without (instance, pod) (caboose_incident_open{{rule="{rule}",severity="{severity}"}}) == 1'


def annotations(rule: str, words: Words) -> dict[str, str]:
    """What is written on the page; the same for both severities."""
    return {
        "summary": f"{{{{ $labels.training_job }}}}: {words.wrong}",
        "culprit": CULPRIT,
        "cause": CAUSE,
        "first_fix": f"{words.fix} The line to change: caboose diagnose {{{{ $labels.training_job }}}}",
        "runbook_url": f"{RUNBOOKS}/{alert_name(rule)}.md",
        "dashboard": PAGE,
    }


def page(rule: str, words: Words) -> dict[str, object]:
    """The alert that wakes somebody."""
    return {
        "alert": alert_name(rule),
        "expr": open_incident(rule, "critical"),
        "keep_firing_for": KEEP_FIRING,
        "labels": {"severity": "critical", "team": TEAM},
        "annotations": annotations(rule, words),
    }


def ticket(rule: str, words: Words) -> dict[str, object]:
    """The alert that is read in the morning."""
    paged = f'caboose_incident_open{{rule="{rule}",severity="critical"}}'
    return {
        "alert": alert_name(rule),
        "expr": (
            f"{open_incident(rule, 'warning')}\n"
            f"unless ignoring (severity, instance, pod) max_over_time({paged}[{PAGED_LATELY}]) == 1"
        ),
        "for": words.ticket_after,
        "keep_firing_for": KEEP_FIRING,
        "labels": {"severity": "warning", "team": TEAM},
        "annotations": annotations(rule, words),
    }


def training() -> Mapping[str, object]:
    """The whole of training.yml: one group for pages, one for tickets."""
    kinds = (("caboose-training-pages", page), ("caboose-training-tickets", ticket))
    return {
        "groups": [
            {"name": name, "rules": [make(rule, words) for rule, words in CATALOGUE.items()]} for name, make in kinds
        ]
    }
