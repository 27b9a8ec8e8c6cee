"""The words of an incident's alert, kept with the incident.

Design
------
Numbers of an open incident change at every step, and a label whose value changes makes a new series. So the words are
made once, when the incident opens, and again only when it gets worse or opens again: that is when people are notified.
"""

import msgspec


class AlertText(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says about one incident."""

    severity: str
    """Of the incident when this was written."""
    num_reopened: int
    """Of the incident when this was written."""
    summary: str
    """One line: job, rank, host, layer, step, numbers."""
    description: str
    """Where and since when, what it means, what to do first, the evidence, what not to do."""
