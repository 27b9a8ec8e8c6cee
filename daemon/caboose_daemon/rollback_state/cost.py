"""Weighs waiting against going back, both in steps of training that are lost.

Design
------
A run that waits loses the steps since the loss left its level and those until it is back. A run that goes back loses
the steps from the snapshot to the boundary, and those whose batches are skipped. What is lost already is in both. Going
back is also a risk, so it must be cheaper by a factor (`caution`).

What is still to come is no more than the steps of learning that lie between the loss as it is and its level, where it
falls, or where the snapshot is no better than what the run has now. A loss that stands where a better one is at hand
gets no such credit: it has not begun to learn anew, and may never.
"""

import math

import msgspec

from caboose_daemon.rollback_state.triage import Triage


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The two costs, in steps."""

    waiting: float
    """Infinity where waiting cannot help."""
    going_back: float
    caution: float

    @property
    def is_worth_it(self) -> bool:
        """Whether to go back."""
        return self.waiting > self.caution * self.going_back

    @property
    def reason(self) -> str:
        """The comparison in a line."""
        waiting = f"{self.waiting:.0f} steps" if math.isfinite(self.waiting) else "everything"
        sign = ">" if self.is_worth_it else "<="
        worth = "going back is cheaper" if self.is_worth_it else "waiting is cheaper"
        return f"{worth}: waiting loses {waiting} {sign} {self.caution:g} x {self.going_back:.0f} steps of going back"


def weigh(triage: Triage, *, target: int, boundary: int, skip: int, caution: float) -> Cost:
    """What each way would cost."""
    remaining = triage.remaining
    is_better = triage.began - triage.as_of < target
    if triage.verdict == "recovering" or (triage.verdict == "lingering" and not is_better):
        remaining = min(remaining, triage.as_of)
    return Cost(waiting=triage.age + remaining, going_back=float(boundary - target + skip), caution=caution)
