"""How much of a log is over.

Design
------
"It has not fallen since its start" is true of nearly every run for some time, and how long that may be has no unit that
fits every log: a row is a step in one and an epoch in another. A log has its own measure, because its length is known
before it is judged. What is said about its start is not said before `JUDGED` of it is over: a loss that falls after
that began late, and one that does not has had its time. A live run's length is rarely known, and its steps are counted
instead.
"""

import math

from caboose_daemon.steps.view import JobView

LOSSES = "num_losses"
"""Fact under which the reader of a log states in how many of its rows there is a loss."""
JUDGED = 0.5
"""Share of a log after which it is judged."""


def is_too_early(view: JobView, num: int) -> bool:
    """Whether more than half of a log is still to come after so many losses."""
    total = view.setting(LOSSES)
    return total is not None and num < JUDGED * total


def is_last(view: JobView, num: int) -> bool:
    """Whether this many losses are all of a log."""
    return view.setting(LOSSES) == num


def share_of(view: JobView, share: float, least: int) -> float:
    """This share of a log's losses, at least `least`; infinite where its length is unknown."""
    total = view.setting(LOSSES)
    return math.inf if total is None else max(least, int(share * total))
