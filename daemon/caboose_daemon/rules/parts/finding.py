"""A finding: one rule's verdict on one step."""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """critical pages, warning makes a ticket, info is for the record."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """For comparing severities."""
        return _ORDER[self]


_ORDER = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule saw, where, since when, and the numbers that made it say so."""

    rule: str
    severity: Severity
    step: int
    onset_step: int
    """The first step of what this finding is about; earlier findings of the same episode share it."""
    summary: str
    ranks: tuple[int, ...] = ()
    """The ranks it began on; empty when it is not known or concerns all."""
    layers: tuple[str, ...] = ()
    phase: str = ""
    """input, forward, backward or update, where that is known."""
    state: str = "open"
    """open, recovering, lingering, diverging; resolved when the rule saw it end."""
    values: dict[str, float] = {}
