"""The batch was changed and the learning rate was not: a larger batch takes fewer steps, a smaller one is noisier."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, line_to_set, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

CHANGED = 1.8
"""Factor between two batch sizes from which a rate should follow."""
KEPT = 1.25
"""Factor up to which the rate is the same."""
NEAR = 10
"""Steps on each side of the change whose medians are compared."""


class BatchChange(NamedTuple):
    """The largest change of the batch among the steps that are kept, with the rates around it."""

    step: int
    before: float
    after: float
    lr_before: float
    lr_after: float

    @property
    def factor(self) -> float:
        return self.after / self.before

    @property
    def is_followed(self) -> bool:
        """Whether the rate changed with it, by the square root at least."""
        lr = self.lr_after / self.lr_before if self.lr_before > 0 else 1.0
        return lr > KEPT if self.factor > 1 else lr < 1 / KEPT


class RateNotScaled(Cause):
    """A learning rate that did not follow the batch."""

    id = "rate_not_scaled"
    title = "learning rate not scaled with the batch"
    is_plain = True
    explains = STANDS_STILL | {*("lr_too_low", "lr_too_high", "batch_size", "loss_spike", "divergence", "oscillation")}
    rarity = 1.5

    def weigh(self, case: Case) -> Iterator[Evidence]:
        change = batch_change(case)
        if change is None:
            return
        text = f"batch went from {change.before:.0f} to {change.after:.0f} samples at step {change.step:,}"
        if change.is_followed:
            yield opposes(FAIR, f"{text}, and the learning rate followed, to {change.lr_after:.3g}")
            return
        yield supports(DECISIVE, f"{text}, and the learning rate stayed at {change.lr_after:.3g}")
        is_slow = bool(set(case.reportable_rules) & (STANDS_STILL | {"lr_too_low"}))
        if case.onset >= change.step - case.gap and is_slow == (change.factor > 1):
            yield supports(FAIR, f"began at step {case.onset:,}, after that")
        elif case.onset < change.step - case.gap:
            yield opposes(STRONG, f"began at step {case.onset:,}, before that")

    def advise(self, case: Case) -> Advice:
        change = batch_change(case)
        factor, lr = (change.factor, change.lr_after) if change is not None else (1.0, case.lr or 0.0)
        is_adam = "Adam" in case.optimizer
        scale = factor**0.5 if is_adam else factor
        how = "with the square root of the batch's factor, as for Adam" if is_adam else "by the batch's factor"
        return Advice(
            first_fix=f"change the learning rate {how} ({scale:.3g}), over a warm-up of some hundred steps",
            code=line_to_set(case, "lr", f"{lr * scale:.2g}", f"was {lr:.2g}, for {factor:.3g}x the batch"),
            avoid="do not compare runs of different batches at one rate: the larger one takes fewer, equal steps",
            verify="the loss over samples seen (not over steps) is that of the earlier batch",
        )


def batch_change(case: Case) -> BatchChange | None:
    """None where the size of batches is not known, or did not change by much."""
    samples, rates = case.curve("num_samples"), case.curve("lr")
    known = np.isfinite(samples) & np.isfinite(rates) & (samples > 0)
    steps, samples, rates = case.steps[known], samples[known], rates[known]
    if len(samples) < 2 * NEAR:
        return None
    ratios = np.abs(np.log(samples[1:] / samples[:-1]))
    at = int(np.argmax(ratios)) + 1
    near, far = slice(max(0, at - NEAR), at), slice(at, at + NEAR)
    before, after = float(np.median(samples[near])), float(np.median(samples[far]))
    if not max(before / after, after / before) > CHANGED or len(samples[far]) < NEAR:
        return None
    return BatchChange(int(steps[at]), before, after, float(np.median(rates[near])), float(np.median(rates[far])))
