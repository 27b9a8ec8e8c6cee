"""A finding: one rule's verdict on one step."""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """critical pages, warning opens a ticket, info is only recorded."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Order of severities, for comparison."""
        return _ORDER[self]


_ORDER = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule found, where, since which step, and the numbers behind it."""

    rule: str
    severity: Severity
    step: int
    onset_step: int
    """The first step of the condition; all findings of one episode share it."""
    summary: str
    """One sentence for people: what, the number, its reference, where. No code reads it."""
    ranks: tuple[int, ...] = ()
    """The ranks it started on; empty where unknown, or where it concerns all."""
    layers: tuple[str, ...] = ()
    phase: str = ""
    """input, forward, backward or update, where that is known."""
    state: str = "open"
    """open, recovering, lingering, diverging; resolved when the condition ended."""
    values: dict[str, float] = {}
    part: str = ""
    """The part of the job that it is about, where several models are trained."""
