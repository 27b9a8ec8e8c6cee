"""Compares the cost of waiting with the cost of a rollback, both in lost steps of training.

Design
------
Waiting loses the shares of the run's progress that were lost since the loss left its level, and those that still will
be (see `futures` for the model). A rollback loses every step from the snapshot to the boundary, whatever it was worth,
those whose batches are skipped, and the time to restore, in steps. It does not end bad data or a rate that is too high:
what a disturbance that goes on still loses is lost after it too. A rollback is also a risk, so the expected cost of
waiting must exceed it by a factor (`caution`). If it does even in the best of the likely futures, nothing else is
asked.

Waiting is not for ever: a rollback can be decided later. After some steps it costs as many steps more, and much may
have become clear by then. So for several numbers of steps the expected cost of deciding after them is estimated, with
what the heights until then would show in each future. While one of these is less than a rollback now, it is waited
for. A rollback that proves needless costs trust too: in this comparison it counts as `patience` steps more.

Most spikes are over soon, and their first steps look like those of the others. A spike is *short* if it is over
`spike_steps` after it began: no more than a tenth of its height is left (or of the run's progress, where that is less),
or the loss is within its noise. While that
is not unlikely, it is waited for, even where a rollback is expected to cost less: the earlier a rollback, the more
evidence it needs. Losses that are not finite need no such evidence.

What a falling loss still loses is never more than the steps of learning between it and its level: learning again is not
slower than learning was. The same holds for a flat loss if the snapshot is no better than what the run has now. A flat
loss with a better snapshot available gets no such cap: it is not learning again yet, and may never.
"""

import math
from dataclasses import replace

import msgspec
import numpy as np
from msgspec.structs import replace as replace_fields

from caboose_daemon.rollback_state.futures import Futures
from caboose_daemon.rollback_state.loss_level import SURE
from caboose_daemon.rollback_state.triage import UNSURE, Triage

OVER = 0.1
"""Share of a spike's height, or of the run's progress where that is less, that is left when it counts as over."""
DOUBT = 0.07
"""Probability of a short spike up to which a rollback may be decided."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The two costs, in steps."""

    waiting: float
    """Infinity if waiting cannot help."""
    going_back: float
    caution: float
    least: float = 0.0
    """The cost of waiting if all goes well: the lower end of its band."""
    most: float = math.inf
    """The cost of waiting if it does not: the upper end."""

    later: float = math.inf
    """The expected cost of deciding some steps later."""
    after: float = 0.0
    """That number of steps."""
    short: float = 0.0
    """Probability that it is a short spike, which is over soon by itself."""

    @property
    def is_worth_it(self) -> bool:
        if self.short > DOUBT:
            return False
        return self.is_certain or (self.is_cheaper and self.going_back <= self.later)

    @property
    def is_cheaper(self) -> bool:
        """Whether a rollback is likely to cost less than waiting to the end."""
        return self.waiting > self.caution * self.going_back

    @property
    def is_certain(self) -> bool:
        """Whether waiting costs more even if all goes well."""
        return self.least > self.going_back

    @property
    def reason(self) -> str:
        waiting = f"{self.waiting:.0f} steps" if math.isfinite(self.waiting) else "everything"
        if self.short > DOUBT and (self.is_cheaper or self.is_certain):
            costs = f"waiting is expected to lose {waiting}, a rollback {self.going_back:.0f} steps"
            return f"too early: with a probability of {self.short:.0%} this is a short spike ({costs})"
        if math.isfinite(self.waiting) and self.is_certain:
            least = f"waiting loses {waiting}, at least {self.least:.0f} > {self.going_back:.0f} steps of a rollback"
            return f"rollback is cheaper: {least}"
        sign = ">" if self.is_cheaper else "<="
        worth = "rollback is cheaper" if self.is_cheaper else "waiting is cheaper"
        costs = f"{worth}: waiting loses {waiting} {sign} {self.caution:g} x {self.going_back:.0f} steps of a rollback"
        if self.is_cheaper and not self.is_worth_it:
            return f"{costs}, but deciding {self.after:.0f} steps later is expected to cost {self.later:.0f}"
        return costs


def weigh(
    triage: Triage,
    *,
    target: int,
    boundary: int,
    skip: int,
    caution: float,
    patience: float = 0.0,
    spike_steps: float = 0.0,
    restore_steps: float = 0.0,
) -> Cost:
    """The cost of each choice."""
    is_better = triage.began - triage.as_of < target
    is_capped = triage.verdict == "recovering" or (triage.verdict == "lingering" and not is_better)
    cap = triage.as_of if is_capped else math.inf
    going_back = boundary - target + skip + restore_steps
    futures = triage.futures
    cost = Cost(
        waiting=triage.lost + min(triage.remaining, cap),
        least=triage.lost + min(triage.least, cap),
        most=triage.lost + min(triage.most, cap),
        going_back=going_back,
        caution=caution,
    )
    if futures is None:
        return cost
    short = _is_short(triage, futures, spike_steps)
    futures = replace(futures, remaining=np.minimum(futures.remaining, cap))
    waiting = triage.lost + futures.likely
    cost = replace_fields(cost, waiting=waiting, going_back=going_back + futures.goes_on, short=short)
    if not cost.is_worth_it or cost.is_certain:
        return cost  # whatever a later decision would cost
    later, after = futures.if_decided_later(triage.lost, going_back + patience)
    return replace_fields(cost, later=later - patience, after=after)


def _is_short(triage: Triage, futures: Futures, spike_steps: float) -> float:
    """The probability that it is over within `spike_steps` of its beginning; 0 once it has lasted longer."""
    left = spike_steps - (triage.step - triage.began + 1)
    if left < 0.0:
        return 0.0
    height = min(triage.peak, triage.progress)  # a tenth of a giant loss is a giant loss
    return futures.is_back(left, max(OVER * height, SURE * UNSURE * triage.noise))
