"""The numbers of the HTML report's charts: curves in a bounded number of buckets, and marks."""

from typing import Any

import numpy as np

from caboose_daemon.offline.runs.run import RATES, Floats, Run

MAX_BUCKETS = 1500
MAX_MARKS = 200
EXTREMES = ("loss", "grad_norm", "step_seconds", *RATES)
"""Curves drawn with each bucket's minimum and maximum, so that a single outlier is visible."""


def figures(run: Run) -> dict[str, Any]:
    """Curves, validations and marks, ready for JSON; None for unknown."""
    buckets = _buckets(run)
    curves = {name: _column(name, values, buckets) for name, values in run.curves.items()}
    for name in EXTREMES:
        if name in run.curves:
            curves.setdefault(f"{name}_min", _reduced(run.curves[name], buckets, np.nanmin))
            curves.setdefault(f"{name}_max", _reduced(run.curves[name], buckets, np.nanmax))
    bad = run.steps[run.num_bad > 0][:MAX_MARKS]
    return {
        "is_thinned": len(buckets) < len(run.steps) or run.steps_per_row > 1,
        "steps": [int(run.steps[rows[-1]]) for rows in buckets],
        "attempts": [int(run.attempts[rows[-1]]) for rows in buckets],
        "curves": curves,
        "bad_steps": bad.tolist(),
        "validations": [[step, _plain(value)] for step, value, _ in run.validations if np.isfinite(value)],
        "incidents": [_incident(incident, run.last_step) for incident in run.incidents[-MAX_MARKS:]],
        "rollbacks": [_decision(d) for d in run.decisions if d["kind"] == "rollback" and d["state"] == "committed"],
        "layers": run.latest_sample,
    }


def _buckets(run: Run) -> list[Any]:
    """Rows of each bucket; no bucket has rows of two attempts."""
    rows = np.arange(len(run.steps))
    parts = [rows[run.attempts == number] for number in dict.fromkeys(run.attempts.tolist())]
    size = max(1, -(-len(rows) // MAX_BUCKETS))
    return [part[i : i + size] for part in parts for i in range(0, len(part), size)]


def _column(name: str, values: Floats, buckets: list[Any]) -> list[float | None]:
    """The maximum of `_max` and of the learning rate, the minimum of `_min`, the mean of all others."""
    highest = name.endswith("_max") or name == "lr"
    return _reduced(values, buckets, np.nanmax if highest else np.nanmin if name.endswith("_min") else np.nanmean)


def _reduced(values: Floats, buckets: list[Any], how: Any) -> list[float | None]:
    return [_plain(how(values[rows])) if np.isfinite(values[rows]).any() else None for rows in buckets]


def _plain(value: Any) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _incident(incident: dict[str, Any], last: int) -> dict[str, Any]:
    return {
        "number": incident["number"],
        "rule": incident["rule"],
        "severity": incident["worst"],
        "onset": incident["onset_step"],
        "seen": incident["opened_step"],
        "end": incident["closed_step"] if incident["closed_step"] is not None else last,
        "summary": incident["summary"],
    }


def _decision(decision: dict[str, Any]) -> dict[str, Any]:
    return {"step": decision["boundary"] or decision["step"], "target": decision["target"], "id": decision["id"]}
