"""Trace and span ids: derived from the job, so that a restarted daemon gives the same attempt the same ids."""

import hashlib
from functools import cache


@cache
def _prefix(job: str, created: float) -> bytes:
    return f"{job}\0{created!r}\0".encode()


def trace_id(job: str, created: float) -> int:
    """One trace per job."""
    return int.from_bytes(hashlib.sha256(_prefix(job, created)).digest()[:16], "big") or 1


def span_id(job: str, created: float, attempt: int) -> int:
    """One span per attempt."""
    digest = hashlib.sha256(_prefix(job, created) + str(attempt).encode()).digest()
    return int.from_bytes(digest[:8], "big") or 1
