"""The promtool tests of training.yml: every page and every ticket, just before and just after it fires and ends.

Expected annotations are built here in Python, independently of the templates they are compared with.
"""

from collections.abc import Mapping

from catalogue import CATALOGUE, AlertText
from incident_alerts import BRIDGED, RUNBOOKS

from caboose_daemon.rules.parts.describe import alert_name

TICK = 30
"""Seconds between two evaluations, and between two samples."""
BEGINS = 120
LASTS = 3600
AT = "caboose-0:9757"

Alert = dict[str, object]


def training_cases() -> Mapping[str, object]:
    """The content of tests/training.yml: one timeline, because promtool evaluates every rule in every test."""
    lasting = f"1x{LASTS // TICK}"
    here = f'instance="{AT}",job="caboose"'
    series = {f'caboose_job_up{{training_job="{job}",{here}}}': lasting for job in ("paged", "ticketed")}
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


def _times(text: AlertText) -> tuple[int, int]:
    """The times at which the ticket fires and at which both incidents end."""
    fires = BEGINS + seconds(text.ticket_after)
    return fires, fires + 2 * TICK


def _series(rule: str, text: AlertText) -> dict[str, str]:
    _, ends = _times(text)
    values = f"_x{BEGINS // TICK} 1x{(ends - BEGINS) // TICK - 1} stale"
    here = f'rule="{rule}",instance="{AT}",job="caboose"'
    place = 'rank="3",host="node-b",layer="blocks.3.mlp",phase="backward",cause="lr_too_high"'
    paged, ticketed = 'training_job="paged",severity="critical"', 'training_job="ticketed",severity="warning"'
    return {
        f"caboose_incident_open{{{paged},{here}}}": values,
        f'caboose_incident_info{{{paged},incident="paged/7",{place},{here}}}': values,
        f"caboose_incident_open{{{ticketed},{here}}}": values,
        f'caboose_incident_info{{{ticketed},incident="ticketed/2",cause="unknown",{here}}}': values,
    }


def _tests(rule: str, text: AlertText) -> list[dict[str, object]]:
    fires, ends = _times(text)
    resolved = ends + seconds(BRIDGED)
    paged, ticketed = _alert(rule, text, "critical"), _alert(rule, text, "warning")
    timeline: list[tuple[int, list[Alert]]] = [
        (BEGINS - TICK, []),
        (BEGINS, [paged]),
        (fires - TICK, [paged]),
        (fires, [paged, ticketed]),
        (resolved - 2 * TICK, [paged, ticketed]),
        (resolved, []),
    ]
    return [{"eval_time": f"{at}s", "alertname": alert_name(rule), "exp_alerts": alerts} for at, alerts in timeline]


def _alert(rule: str, text: AlertText, severity: str) -> Alert:
    is_page = severity == "critical"
    job = "paged" if is_page else "ticketed"
    return {
        "exp_labels": {"job": "caboose", "training_job": job, "rule": rule, "severity": severity, "team": "training"},
        "exp_annotations": {
            "summary": f"{job}: {text.summary}",
            "culprit": (
                "rank 3 on node-b, layer blocks.3.mlp, in the backward phase (paged/7)"
                if is_page
                else "no single rank (ticketed/2)"
            ),
            "cause": "lr_too_high" if is_page else "unknown",
            "first_fix": f"{text.first_fix} {text.avoid} Evidence and exact change: caboose diagnose {job}",
            "runbook_url": f"{RUNBOOKS}/{alert_name(rule)}.md",
            "dashboard": f"http://{AT}/?job={job}#incident={7 if is_page else 2}",
        },
    }
