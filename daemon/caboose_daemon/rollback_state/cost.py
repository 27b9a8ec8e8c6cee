"""Compares the cost of waiting with the cost of a rollback, both in lost steps of training.

Design
------
Waiting loses the steps since the loss left its level and those until it is back. A rollback loses the steps from the
snapshot to the boundary and those whose batches are skipped. Steps already lost are in both. A rollback is also a risk,
so it must be cheaper by a factor (`caution`).

The remaining cost of waiting is capped at the steps of learning between the current loss and its level, if the loss
falls or if the snapshot is no better than what the run has now. A flat loss with a better snapshot available gets no
cap: it is not learning again yet, and may never.
"""

import math

import msgspec

from caboose_daemon.rollback_state.triage import Triage


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The two costs, in steps."""

    waiting: float
    """Infinity if waiting cannot help."""
    going_back: float
    caution: float

    @property
    def is_worth_it(self) -> bool:
        return self.waiting > self.caution * self.going_back

    @property
    def reason(self) -> str:
        waiting = f"{self.waiting:.0f} steps" if math.isfinite(self.waiting) else "everything"
        sign = ">" if self.is_worth_it else "<="
        worth = "rollback is cheaper" if self.is_worth_it else "waiting is cheaper"
        return f"{worth}: waiting loses {waiting} {sign} {self.caution:g} x {self.going_back:.0f} steps of a rollback"


def weigh(triage: Triage, *, target: int, boundary: int, skip: int, caution: float) -> Cost:
    """The cost of each choice."""
    remaining = triage.remaining
    is_better = triage.began - triage.as_of < target
    if triage.verdict == "recovering" or (triage.verdict == "lingering" and not is_better):
        remaining = min(remaining, triage.as_of)
    return Cost(waiting=triage.age + remaining, going_back=float(boundary - target + skip), caution=caution)
