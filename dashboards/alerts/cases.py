"""promtool's tests of training.yml: every page and every ticket, on both sides of its `for` and of its end.

Expected annotations are put together here, in plain Python, and not by the templates they are to be compared with.
"""

from collections.abc import Mapping

from catalogue import CATALOGUE, Words
from incident_alerts import BRIDGED, RUNBOOKS

from caboose_daemon.rules.parts.describe import alert_name

TICK = 30
"""Seconds between two evaluations, and between two samples."""
BEGINS = 120
LASTS = 3600
AT = "caboose-0:9757"

Alert = dict[str, object]


def training_cases() -> Mapping[str, object]:
    """The whole of tests/training.yml: one timeline, because promtool evaluates every rule in every test."""
    lasting = f"1x{LASTS // TICK}"
    here = f'instance="{AT}",job="caboose"'
    series = {f'caboose_job_up{{training_job="{job}",{here}}}': lasting for job in ("paged", "told")}
    for rule, words in CATALOGUE.items():
        series |= _series(rule, words)
    tests = [test for rule, words in CATALOGUE.items() for test in _tests(rule, words)]
    case = {
        "interval": f"{TICK}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": tests,
    }
    return {"rule_files": ["../training.yml"], "evaluation_interval": f"{TICK}s", "tests": [case]}


def seconds(duration: str) -> int:
    """Of a duration in minutes."""
    return 60 * int(duration.removesuffix("m"))


def _times(words: Words) -> tuple[int, int]:
    """When the ticket fires, and when both incidents are over."""
    fires = BEGINS + seconds(words.ticket_after)
    return fires, fires + 2 * TICK


def _series(rule: str, words: Words) -> dict[str, str]:
    _, ends = _times(words)
    values = f"_x{BEGINS // TICK} 1x{(ends - BEGINS) // TICK - 1} stale"
    here = f'rule="{rule}",instance="{AT}",job="caboose"'
    place = 'rank="3",host="node-b",layer="blocks.3.mlp",phase="backward",cause="lr_too_high"'
    paged, told = 'training_job="paged",severity="critical"', 'training_job="told",severity="warning"'
    return {
        f"caboose_incident_open{{{paged},{here}}}": values,
        f'caboose_incident_info{{{paged},incident="paged/7",{place},{here}}}': values,
        f"caboose_incident_open{{{told},{here}}}": values,
        f'caboose_incident_info{{{told},incident="told/2",cause="unknown",{here}}}': values,
    }


def _tests(rule: str, words: Words) -> list[dict[str, object]]:
    fires, ends = _times(words)
    forgotten = ends + seconds(BRIDGED)
    paged, told = _alert(rule, words, "critical"), _alert(rule, words, "warning")
    timeline: list[tuple[int, list[Alert]]] = [
        (BEGINS - TICK, []),
        (BEGINS, [paged]),
        (fires - TICK, [paged]),
        (fires, [paged, told]),
        (forgotten - 2 * TICK, [paged, told]),
        (forgotten, []),
    ]
    return [{"eval_time": f"{at}s", "alertname": alert_name(rule), "exp_alerts": alerts} for at, alerts in timeline]


def _alert(rule: str, words: Words, severity: str) -> Alert:
    is_page = severity == "critical"
    job = "paged" if is_page else "told"
    return {
        "exp_labels": {"job": "caboose", "training_job": job, "rule": rule, "severity": severity, "team": "training"},
        "exp_annotations": {
            "summary": f"{job}: {words.wrong}",
            "culprit": (
                "rank 3 on node-b, layer blocks.3.mlp, in backward (paged/7)" if is_page else "no single rank (told/2)"
            ),
            "cause": "lr_too_high" if is_page else "unknown",
            "first_fix": f"{words.fix} The line to change: caboose diagnose {job}",
            "runbook_url": f"{RUNBOOKS}/{alert_name(rule)}.md",
            "dashboard": f"http://{AT}/?job={job}#incident={7 if is_page else 2}",
        },
    }
