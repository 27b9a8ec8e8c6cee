"""What a rollback is expected to lose: the same calculation in the agent's log and in the daemon's answers."""

import math

MIN_NOTICE = 4
"""Minimum steps between the newest seen step and the boundary."""
NOTICE_SECONDS = 0.5
"""Until every agent has read its socket and armed, with a margin for busy hosts; the lag of reports is added."""
MARGIN_STEPS = 2
"""Steps before the onset by which a snapshot must have been taken, unless configured.

The update that does the damage is the one before the loss shows it: the state before that update is the last that is
known to be good."""


def notice_steps(step_seconds: float, lag_seconds: float = 0.0) -> int:
    """Steps between the newest one seen and the boundary of a first command."""
    steps = math.ceil((NOTICE_SECONDS + 2.0 * max(0.0, lag_seconds)) / max(step_seconds, 1e-6)) + 2
    return max(MIN_NOTICE, steps)


def steps_lost(every: int, step_seconds: float, lag_seconds: float = 0.0, margin: int = MARGIN_STEPS) -> int:
    """Steps that a rollback after a sudden fault loses, besides those until it is decided.

    A fault begins half a cadence after a snapshot on average; one less than the margin before it is not used.
    """
    return round(every / 2 + min(margin, every)) + notice_steps(step_seconds, lag_seconds)
