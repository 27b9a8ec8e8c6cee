"""What the diagnosis of an open incident would have the learning rate multiplied by."""

from typing import Any

from caboose_daemon.jobs.job import Job

SCALES = {"lr_too_high": 0.1}
"""By cause: what its advice comes to. Others are not cured by another rate."""


def offer(job: Job) -> dict[str, Any] | None:
    """The fix that a command can bring about, with whose it is; None where no diagnosis calls for one."""
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
