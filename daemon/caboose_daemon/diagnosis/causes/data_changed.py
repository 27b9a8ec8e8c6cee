"""The data is another from some step on: a broken shard, another source, a preprocessing that changed."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import beginnings
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

SUDDEN, GRADUAL = 0.5, 0.15
"""Largest share of a rise in one step, of one that came at once, and of one that crept up."""
SUNK = 0.3
"""Share of its level that the gradient norm keeps, below which the model has died rather than met other data."""
LONG = 40
"""Points after which a new level is one."""
COMES_BACK = 0.3
"""Share of a rise that is gone, before that, of one that heals."""


class DataChanged(Cause):
    """A shift of the data that nobody declared."""

    id = "data_changed"
    title = "the data is another from here on"
    rarity = 0.5
    explains = frozenset({"loss_spike", "divergence", "gradient_explosion", "bad_batch"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """A step up, out of calm, to a level that stays, at an unchanged rate."""
        jump = case.jump
        if jump is None:
            return
        before, after, share = jump
        later = case.since("loss")
        if share > SUDDEN:
            # So does a batch unlike the others, until it is seen what becomes of it.
            weight = FAIR if len(later) >= LONG else SLIGHT
            yield supports(
                weight, f"the loss went from {before:.3g} to {after:.3g} at once, {100 * share:.0f} % in one step"
            )
        elif share < GRADUAL:
            yield opposes(FAIR, f"the loss crept up: no step made more than {100 * share:.0f} % of the rise")
        gone = case.regained
        if gone is not None and gone > COMES_BACK and len(later) < LONG:
            yield opposes(FAIR, f"it comes back: {100 * gone:.0f} % of the rise are gone after {len(later)} points")
        if len(later) >= LONG:
            ends = float(np.median(later[-20:]))
            stays = (ends - before) / (after - before)
            if stays < 0.2:
                yield opposes(FAIR, f"the loss came back to {ends:.3g} on the same data")
            elif share > SUDDEN and stays < 2:
                yield supports(
                    FAIR, f"it has kept a level of {ends:.3g} for {len(later)} points: it neither heals nor runs away"
                )
            elif stays > 4:
                yield opposes(FAIR, f"the loss runs away, to {ends:.3g}: data alone does not do that")
            chance = case.chance
            if chance is not None and share > SUDDEN and before < 0.8 * chance and abs(ends / chance - 1) < 0.05:
                yield supports(FAIR, f"the new level is chance ({chance:.3g}): the labels stopped to fit the inputs")
        if case.found("dead_units", "activation_collapse", "saturation"):
            yield opposes(FAIR, "layers died with it: data alone seldom does that")
        spike = case.episode("loss_spike")
        if spike is not None and not spike.is_open and not case.found("divergence") and spike.last.state == "resolved":
            yield opposes(FAIR, "the loss came back by itself")
        if case.found("lr_schedule"):
            yield opposes(FAIR, "the learning rate changed at that time")
        if case.found("lr_too_high", "oscillation"):
            yield opposes(FAIR, "steps are too large whatever the data is")
        thrown = beginnings.jump(case)
        if thrown is not None:
            text = f"the loss had been thrown from {thrown.first:.3g} to {thrown.peak:.3g} soon after the start"
            yield opposes(STRONG, f"{text}, on the data that it began with")
        elif case.began_early and case.is_live:
            yield opposes(FAIR, f"at step {case.onset} a run has seen little data that it could have got used to")
        before_norms, norms = case.before("grad_norm"), case.since("grad_norm")
        if len(before_norms) >= 20 and len(norms) >= LONG:
            was, now = float(np.median(before_norms)), float(np.median(norms[-20:]))
            if now < SUNK * was:
                text = f"the gradient norm sank from {was:.2g} to {now:.2g} with it"
                yield opposes(STRONG, f"{text}: on other data a model has more to correct, not less")
        rates = np.concatenate([case.before("lr", 20), case.since("lr")[:20]])
        if len(rates) >= 10 and share > SUDDEN and rates.max() <= 1.2 * max(rates.min(), 1e-30):
            yield supports(SLIGHT, f"the learning rate was the same before and after ({rates[0]:.2g})")

    def advise(self, case: Case) -> Advice:
        """Compare the data of both sides of the onset."""
        return Advice(
            first_fix=f"compare the batches before and after step {case.onset}: source, shard, labels, normalisation",
            code='monitor.event("data_switch")  # where a change of data is meant; else fix the loader and roll back',
            avoid="do not lower the learning rate: it did not change; and do not roll back into the same data",
            verify=f"a checkpoint from before step {case.onset} has its old loss on the new batches after the mending",
        )
