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

ROWS = "num_rows"
"""Fact under which the reader of a log states the number of its rows."""
JUDGED = 0.5
"""Share of a log after which it is judged."""


def is_too_early(view: JobView, num_points: int) -> bool:
    """Whether more than half of a log is still to come."""
    rows = view.setting(ROWS)
    return rows is not None and num_points < JUDGED * rows


def is_last(view: JobView, num_rows: int) -> bool:
    """Whether this many rows are all of a log."""
    return view.setting(ROWS) == num_rows


def share_of(view: JobView, share: float, least: int) -> float:
    """This share of a log's rows, at least `least`; infinite where its length is unknown."""
    rows = view.setting(ROWS)
    return math.inf if rows is None else max(least, int(share * rows))
