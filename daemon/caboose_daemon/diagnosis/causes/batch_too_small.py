"""The batch is so small that its gradients are mostly noise."""

from collections.abc import Iterator

import numpy as np

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

TINY = 4
"""Samples per step at which noise is likely even where it was not measured."""
SHRUNK, MANY = 0.25, 10
"""Samples of the last steps over those of the first, at which a batch was made much smaller."""
PAIR = 2
"""Samples of which a batch norm leaves nothing but a sign."""


class BatchTooSmall(Cause):
    """A batch far below the gradient noise scale."""

    id = "batch_too_small"
    title = "batch too small"
    is_plain = True
    explains = frozenset(
        {"batch_size", "oscillation", "plateau", "loss_spike", "not_learning", "underfitting", "config_advice"}
        | {"noise_growth"}
    )

    def weigh(self, case: Case) -> Iterator[Evidence]:
        ratio, batch = case.value("batch_size", "ratio"), case.batch
        of = "batch" if batch is None else f"batch of {batch:,.0f}"
        if ratio is not None and ratio > 1:
            yield supports(STRONG, f"gradient noise scale is {ratio:.3g}x the {of}")
            if "batch_size" in case.reportable_rules:
                yield supports(FAIR, "loss no longer falls: the steps are mostly noise")
        elif (grown := case.value("noise_growth", "growth")) is not None:
            scale = f"gradient noise scale is {case.value('noise_growth', 'ratio'):.3g}x the {of}"
            yield supports(DECISIVE, f"{scale}, {grown:.3g}x what it was at first")
        elif ratio is not None:
            yield opposes(STRONG, f"{of} is {1 / max(ratio, 1e-9):.3g}x the gradient noise scale")
        elif case.world > 1 and case.sees("local_gradients") and case.is_quiet("batch_size"):
            yield opposes(FAIR, f"gradient noise scale is not far above the {of}")
        elif batch is not None and batch <= TINY:
            yield supports(FAIR, f"only {batch:.0f} samples per step")
        elif batch is not None and batch >= 256:
            yield opposes(FAIR, f"{batch:,.0f} samples per step")
        samples = case.curve("num_samples")
        samples = samples[np.isfinite(samples)]
        if len(samples) >= 4 * MANY and (now := np.median(samples[-MANY:])) <= SHRUNK * np.median(samples[:MANY]):
            text = f"a step had {np.median(samples[:MANY]):.0f} samples at first, and has {now:.0f}"
            yield supports(STRONG, text)
            if now <= TINY and case.found("overfitting", "loss_spike", "oscillation", "divergence", "lr_too_high"):
                yield supports(FAIR, "what was learned with the larger batch is lost again")
        each = case.samples_per_call
        if each is not None and each <= TINY and model_facts.has_batch_norms(case):
            text = f"batch norms normalise over {each:.0f} samples"
            if each <= PAIR:
                yield supports(DECISIVE, f"{text}: of each, only the sign of its difference is left")
            else:
                yield supports(STRONG, f"{text}: their statistics are noise")

    def advise(self, case: Case) -> Advice:
        ratio, batch = case.value("batch_size", "ratio"), case.batch
        ratio = case.value("noise_growth", "ratio") if ratio is None else ratio
        times = 8 if ratio is None or ratio <= 1 else min(64, 2 ** max(2, round(ratio / 4).bit_length()))
        to = "" if batch is None else f", from {batch:,.0f} to {batch * times:,.0f} samples"
        return Advice(
            first_fix=f"accumulate gradients over {times} batches{to}, or divide the learning rate by {times}",
            code=f"if step % {times} == 0: optimizer.step(); optimizer.zero_grad()  # and (loss / {times}).backward()",
            avoid="do not train longer: more steps with the same noise keep the same loss",
            verify="the gradient noise scale is below ten batches, and the loss falls again",
        )
