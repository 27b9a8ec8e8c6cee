"""The data changes at some step without a declared event: a broken shard, another source, changed preprocessing."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import curves
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS, IN_VALIDATION
from caboose_daemon.incidents.diagnosis_record import Advice

SUDDEN, GRADUAL = 0.5, 0.15
"""Largest share of a rise in one step: above the first it is sudden, below the second gradual."""
SUNK = 0.3
"""Share of its level below which the gradient norm shows a dead model, and not other data."""
LONG = 40
"""Points after which a new level counts as lasting."""
KEPT, LEFT = 0.5, 0.2
"""Shares of a jump that are left a few steps later: more of other data, less of one batch."""
RECOVERS = 0.3
"""Share of a rise that is gone before that in a recovering run."""


class DataChanged(Cause):
    """A shift of the data without a declared event."""

    id = "data_changed"
    title = "undeclared change of the data"
    rarity = 0.5
    explains = (BREAKS - {"non_finite"}) | IN_VALIDATION | {"bad_batch", "oscillation", "lr_too_high"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        left = curves.validation_left(case)
        if left is not None:
            text = f"validation loss went from {left[0]:.3g} to {left[1]:.3g} and stays, while training came back"
            yield supports(DECISIVE, f"{text}: it learned the new data, and validation has the old")
        if case.jump is None:
            return
        before, after, share = case.jump
        later = case.since("loss")
        if share > SUDDEN:
            # An outlier batch looks the same, until it shows whether the rise lasts.
            weight = FAIR if len(later) >= LONG else SLIGHT
            yield supports(weight, f"loss rose from {before:.3g} to {after:.3g}, {100 * share:.0f} % of it in one step")
        elif share < GRADUAL:
            yield opposes(FAIR, f"loss rose gradually: at most {100 * share:.0f} % of the rise in one step")
        if left is None:
            yield from self._lasts(case, before, after, share)
        if case.value("metric_divergence", "noisy"):
            yield supports(STRONG, "evaluations are answered as before: their data is still the old one")
        if case.found("dead_units", "activation_collapse", "saturation"):
            yield opposes(FAIR, "layers died or saturated: data alone seldom causes that")
        if case.found("lr_schedule"):
            yield opposes(FAIR, "the learning rate changed at that time")
        if case.found("replica_desync"):
            yield opposes(STRONG, "the replicas differ since then: the loss rose with the weights")
        elif (parted := curves.ranks_parted(case)) is not None:
            yield opposes(FAIR, f"a rank's loss stayed near {parted.low:.3g}: not the data of all")
        if case.came_first("lr_too_high", 0) or case.came_first("oscillation"):
            yield opposes(FAIR, "steps are too large for any data")
        jump = curves.early_jump(case)
        if jump is not None:
            text = f"loss had jumped from {jump.first:.3g} to {jump.peak:.3g} soon after the start"
            yield opposes(STRONG, f"{text}, on the first data")
        elif case.began_early and case.is_live:
            yield opposes(FAIR, f"began at step {case.onset:,}, before the run was used to any data")
        before_norms, norms = case.before("grad_norm"), case.since("grad_norm")
        if len(before_norms) >= 20 and len(norms) >= LONG:
            was, now = float(np.median(before_norms)), float(np.median(norms[-20:]))
            if now < SUNK * was:
                text = f"gradient norm fell from {was:.2g} to {now:.2g}"
                yield opposes(STRONG, f"{text}: on other data it would rise")
        rates = np.concatenate([case.before("lr", 20), case.since("lr")[:20]])
        if len(rates) >= 10 and share > SUDDEN and rates.max() <= 1.2 * max(rates.min(), 1e-30):
            yield supports(SLIGHT, f"learning rate {rates[0]:.2g} before and after")

    def _lasts(self, case: Case, before: float, after: float, share: float) -> Iterator[Evidence]:
        """Whether the rise lasts, as that of other data does until they are learned."""
        later = case.since("loss")
        kept = case.sustained
        if kept is not None and share > SUDDEN and kept > KEPT:
            yield supports(SLIGHT, f"{100 * kept:.0f} % of the rise was left a few steps later: every batch was odd")
        elif kept is not None and kept < LEFT:
            yield opposes(FAIR, f"only {100 * kept:.0f} % of the rise was left a few steps later: one batch was odd")
        gone = case.regained
        if gone is not None and gone > RECOVERS and len(later) < LONG:
            yield opposes(FAIR, f"loss recovers: {100 * gone:.0f} % of the rise gone after {len(later)} points")
        if len(later) >= LONG:
            ends = float(np.median(later[-20:]))
            stays = (ends - before) / (after - before)
            if stays < 0.2 and (kept is None or kept < KEPT):
                yield opposes(FAIR, f"loss recovered to {ends:.3g} on the same data")
            elif share > SUDDEN and stays < 2:
                yield supports(
                    FAIR, f"loss constant at {ends:.3g} for {len(later)} points: neither recovering nor diverging"
                )
            elif stays > 4:
                yield opposes(FAIR, f"loss diverges to {ends:.3g}: data alone does not cause that")
            chance = case.chance
            if chance is not None and share > SUDDEN and before < 0.8 * chance and abs(ends / chance - 1) < 0.05:
                yield supports(FAIR, f"new level is chance ({chance:.3g}): labels no longer match the inputs")
        spike = case.episode("loss_spike")
        if spike is not None and not spike.is_open and not case.found("divergence") and spike.last.state == "resolved":
            yield opposes(FAIR, "the loss recovered without a change")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix=f"compare the batches before and after step {case.onset:,}: source, shard, labels, normalisation",
            code='monitor.event("data_switch")  # if the change is intended; else fix the loader and roll back',
            avoid="do not lower the learning rate, which did not change, and do not roll back into the same data",
            verify=f"after the fix, a checkpoint from before step {case.onset:,} has its old loss on the new batches",
        )
