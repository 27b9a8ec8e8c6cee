"""One batch unlike the others: mislabelled, corrupt, or simply rare."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

SHORT = 30
"""Points, as they are reported, in which what one batch did heals."""
MANY = 3
COMES_BACK = 0.3
"""Share of the rise that is gone, of one that heals."""


class OutlierBatch(Cause):
    """The data of one or a few steps."""

    id = "outlier_batch"
    title = "a batch unlike the others"
    explains = frozenset({"loss_spike", "gradient_explosion", "bad_batch", "rank_outlier", "divergence"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """A jump out of calm, of short duration, with the batch itself as a witness."""
        spike = next((m for m in case.incident.reportable if m.rule in ("loss_spike", "gradient_explosion")), None)
        away = case.episode("divergence")
        if away is not None and (num := (away.last.step - away.first.onset_step) // case.gap) > 2 * SHORT:
            yield opposes(STRONG, f"the loss stayed up for {num} points: one batch does not do that")
        if case.found("bad_batch"):
            yield supports(STRONG, "the batch itself stood out: its values lie outside of what was usual")
        if spike is not None:
            points = (spike.last.step - spike.first.onset_step) // case.gap + 1
            if not spike.is_open and points <= SHORT:
                yield supports(FAIR, f"it was over after {points} points")
            elif points > 2 * SHORT:
                yield opposes(FAIR, f"it has lasted for {points} points: one batch does not do that")
            num = sum(member.rule == spike.rule for member in case.incident.reportable)
            if num >= MANY:
                yield opposes(FAIR, f"it came {num} times within this incident")
        if case.regained is not None and case.regained > COMES_BACK and not case.found("divergence"):
            yield supports(FAIR, f"the loss comes back: {100 * case.regained:.0f} % of its rise are gone")
        norms = case.before("grad_norm")
        if len(norms) >= 20:
            grown = float(np.median(norms[-5:]) / max(np.median(norms), 1e-30))
            if grown < 1.5:
                yield supports(SLIGHT, "loss and gradient norm were as usual until the step before")
        if case.found("lr_schedule", "lr_too_high", "oscillation"):
            yield opposes(FAIR, "the learning rate alone would explain it")
        if case.began_early and case.onset <= 20:
            yield opposes(SLIGHT, "so early there is no usual batch yet")

    def advise(self, case: Case) -> Advice:
        """Look at the batch; leave a run that recovers alone."""
        return Advice(
            first_fix=f"look at the batch of step {case.onset} and the one before; let a run that recovers go on",
            code="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()",
            avoid="do not roll back at once: most such spikes heal within some tens of steps",
            verify="the loss is back at its level from before, and the batch does not come again in the next epoch",
        )
