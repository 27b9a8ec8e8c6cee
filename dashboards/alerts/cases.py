"""The promtool tests of training.yml: every page and every ticket, just before and just after it fires and ends.

Expected annotations are built here in Python, independently of the templates they are compared with.
"""

from collections.abc import Mapping

from incident_alerts import BRIDGED

from caboose_daemon.incidents.alert_catalogue import CATALOGUE, AlertEntry
from caboose_daemon.rules.parts.describe import alert_name

TICK = 30
"""Seconds between two evaluations, and between two samples."""
BEGINS = 120
LASTS = 3600
AT = "caboose-0:9757"
URL = "https://monitor.test/caboose"
GRAFANA = "https://grafana.test/d/caboose-run?var-job=paged"

Alert = dict[str, object]


def training_cases() -> Mapping[str, object]:
    """The content of tests/training.yml: one timeline, because promtool evaluates every rule in every test."""
    lasting = f"1x{LASTS // TICK}"
    here = f'instance="{AT}",job="caboose"'
    series = {f'caboose_job_up{{training_job="{job}",{here}}}': lasting for job in ("paged", "ticketed")}
    series[f'caboose_daemon_links_info{{url="{URL}",runbooks="{URL}/runbooks",{here}}}'] = lasting
    for rule, text in CATALOGUE.items():
        series |= _series(rule, text)
    tests = [test for rule, text in CATALOGUE.items() for test in _tests(rule, text)]
    case = {
        "interval": f"{TICK}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": tests,
    }
    return {"rule_files": ["../training.yml"], "evaluation_interval": f"{TICK}s", "tests": [case]}


def seconds(duration: str) -> int:
    """Converts a duration in minutes, such as "5m"."""
    return 60 * int(duration.removesuffix("m"))


def _times(text: AlertEntry) -> tuple[int, int]:
    """The times at which the ticket fires and at which both incidents end."""
    fires = BEGINS + seconds(text.ticket_after)
    return fires, fires + 2 * TICK


def _series(rule: str, text: AlertEntry) -> dict[str, str]:
    _, ends = _times(text)
    values = f"_x{BEGINS // TICK} 1x{(ends - BEGINS) // TICK - 1} stale"
    here = f'rule="{rule}",instance="{AT}",job="caboose"'
    place = 'rank="3",host="node-b",layer="blocks.3.mlp",phase="backward",cause="lr_too_high"'
    paged, ticketed = 'training_job="paged",severity="critical"', 'training_job="ticketed",severity="warning"'
    return {
        f"caboose_incident_open{{{paged},{here}}}": values,
        f'caboose_incident_info{{{paged},incident="paged/7",{place},{here}}}': values,
        f'caboose_incident_text{{{paged},incident="paged/7",{_words("paged", 7, rule)},{here}}}': values,
        f"caboose_incident_open{{{ticketed},{here}}}": values,
        f'caboose_incident_info{{{ticketed},incident="ticketed/2",cause="unknown",{here}}}': values,
    }


def _words(job: str, number: int, rule: str) -> str:
    """The labels of the words that the daemon exports."""
    links = f'page="{URL}/?job={job}#incident={number}",runbook="{URL}/runbooks/{alert_name(rule)}?job={job}"'
    return f'summary="{job}: {rule} at step 401",description="Where: rank 3\\nFirst: stop",{links},grafana="{GRAFANA}"'


def _tests(rule: str, text: AlertEntry) -> list[dict[str, object]]:
    fires, ends = _times(text)
    resolved = ends + seconds(BRIDGED)
    paged, ticketed = _paged(rule), _ticketed(rule, text)
    timeline: list[tuple[int, list[Alert]]] = [
        (BEGINS - TICK, []),
        (BEGINS, [paged]),
        (fires - TICK, [paged]),
        (fires, [paged, ticketed]),
        (resolved - 2 * TICK, [paged, ticketed]),
        (resolved, []),
    ]
    return [{"eval_time": f"{at}s", "alertname": alert_name(rule), "exp_alerts": alerts} for at, alerts in timeline]


def _paged(rule: str) -> Alert:
    """With the words that the daemon exports."""
    return {
        "exp_labels": _labels("paged", rule, "critical"),
        "exp_annotations": {
            "summary": f"paged: {rule} at step 401",
            "description": "Where: rank 3\nFirst: stop",
            "culprit": "rank 3 on node-b, layer blocks.3.mlp, in the backward phase (paged/7)",
            "cause": "lr_too_high",
            "runbook_url": f"{URL}/runbooks/{alert_name(rule)}?job=paged",
            "dashboard": f"{URL}/?job=paged#incident=7",
            "grafana": GRAFANA,
        },
    }


def _ticketed(rule: str, text: AlertEntry) -> Alert:
    """Without: a daemon of an earlier version, or more incidents than have words."""
    return {
        "exp_labels": _labels("ticketed", rule, "warning"),
        "exp_annotations": {
            "summary": f"ticketed: {text.summary}",
            "description": f"{text.first_fix} {text.avoid} Evidence and exact change: caboose diagnose ticketed",
            "culprit": "no single rank (ticketed/2)",
            "cause": "unknown",
            "runbook_url": f"{URL}/runbooks/{alert_name(rule)}",
            "dashboard": f"http://{AT}/?job=ticketed",
            "grafana": "",
        },
    }


def _labels(job: str, rule: str, severity: str) -> dict[str, str]:
    return {"job": "caboose", "training_job": job, "rule": rule, "severity": severity, "team": "training"}
