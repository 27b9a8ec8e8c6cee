"""The learning rate factor suggested by the diagnosis of an open incident."""

from typing import Any

from caboose_daemon.jobs.job import Job

SCALES = {"lr_too_high": 0.1}
"""By cause. Other causes are not cured by a different learning rate."""


def suggest_lr_scale(job: Job) -> dict[str, Any] | None:
    """The suggested factor with its incident and cause; None if no diagnosis suggests one."""
    for incident in job.incidents.open:
        best = incident.diagnosis.best if incident.diagnosis is not None else None
        if best is not None and best.id in SCALES:
            return {
                "incident": incident.id,
                "cause": best.id,
                "title": best.title,
                "confidence": round(best.confidence, 4),
                "first_fix": best.advice.first_fix,
                "lr_scale": SCALES[best.id],
            }
    return None
