"""The alerts on training: for every rule a page and a ticket, both reading incidents.

Design
------
An alert's labels are its identity: whatever changes in them makes a new page for an old cause. So they are the job, the
lead rule (fixed when the incident opens), the severity and the team, and nothing of where a daemon runs (`instance` and
`pod` change when it is moved) or of what is found out later. Culprit and cause are asked for by the annotations.

A ticket is silent for an hour after a page on the same job and rule: an incident that was critical and is on the mend
has been told already.

What is out of sight for less than five minutes is not over: the daemon was restarted or moved to another address, or
what healed comes again, which to the daemon is the same incident. A page bridges that in its expression and not by
`keep_firing_for`, because it must end at once when somebody takes the incident in hand (the series stands at 0): what
was last said, at every address, has to be that it is open. A ticket cannot, as its `for` would count what is over; it
keeps firing, which wakes nobody.
"""

from collections.abc import Mapping

from catalogue import CATALOGUE, Words

from caboose_daemon.rules.parts.describe import alert_name

RUNBOOKS = "https://runbooks.example/caboose"
"""Stands for the place where your people find dashboards/runbooks; docs/alerts.md says how to change it."""
TEAM = "training"
BRIDGED = "5m"
"""How long an incident may be out of sight and still be the same alert; the resolve comes later by as much."""
PAGED_LATELY = "1h"

_INFO = "caboose_incident_info{training_job=%[1]q,rule=%[2]q,severity=%[3]q}"
_INCIDENTS = (
    f'query (printf "{_INFO} or on (training_job, rule, severity) last_over_time({_INFO}[{BRIDGED}])"'
    " $labels.training_job $labels.rule $labels.severity)"
)
"""Those that are open; while none is in sight, those that were last."""
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
    return f"max without (instance, pod) ({_series(rule, severity)}) == 1"


def _series(rule: str, severity: str) -> str:
    return f'caboose_incident_open{{rule="{rule}",severity="{severity}"}}'


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
        "expr": (
            f"{open_incident(rule, 'critical')}\n"
            f"or min without (instance, pod) (last_over_time({_series(rule, 'critical')}[{BRIDGED}])) == 1"
        ),
        "labels": {"severity": "critical", "team": TEAM},
        "annotations": annotations(rule, words),
    }


def ticket(rule: str, words: Words) -> dict[str, object]:
    """The alert that is read in the morning."""
    return {
        "alert": alert_name(rule),
        "expr": (
            f"{open_incident(rule, 'warning')}\n"
            f"unless ignoring (severity, instance, pod) max_over_time({_series(rule, 'critical')}[{PAGED_LATELY}]) == 1"
        ),
        "for": words.ticket_after,
        "keep_firing_for": BRIDGED,
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
