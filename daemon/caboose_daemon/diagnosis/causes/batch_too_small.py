"""The batch is so small that its gradients are mostly noise."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

TINY = 4
"""Samples in the whole batch, at which noise is a likely guess even where it was not measured."""


class BatchTooSmall(Cause):
    """Noise is what the run is made of."""

    id = "batch_too_small"
    title = "the batch is too small"
    explains = frozenset({"batch_size", "oscillation", "plateau", "loss_spike", "not_learning", "underfitting"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The gradient noise scale against the batch."""
        ratio, batch = case.value("batch_size", "ratio"), case.batch
        of = "the batch" if batch is None else f"the batch of {batch:.0f}"
        if ratio is not None and ratio > 1:
            yield supports(STRONG, f"the gradient noise scale is {ratio:.3g} times {of}")
            if "batch_size" in case.reportable_rules:
                yield supports(FAIR, "the loss no longer falls, and noise is what is left")
        elif ratio is not None:
            yield opposes(STRONG, f"{of} is {1 / max(ratio, 1e-9):.3g} times the gradient noise scale")
        elif case.world > 1 and case.sees("local_gradients") and case.is_quiet("batch_size"):
            yield opposes(FAIR, f"the gradient noise scale is not far above {of}")
        elif batch is not None and batch <= TINY:
            yield supports(FAIR, f"a step sees {batch:.0f} samples")
        elif batch is not None and batch >= 256:
            yield opposes(FAIR, f"a step sees {batch:.0f} samples")

    def advise(self, case: Case) -> Advice:
        """Accumulate, with the numbers measured."""
        ratio, batch = case.value("batch_size", "ratio"), case.batch
        times = 8 if ratio is None or ratio <= 1 else min(64, 2 ** max(2, round(ratio / 4).bit_length()))
        to = "" if batch is None else f", from {batch:.0f} to {batch * times:.0f} samples"
        return Advice(
            first_fix=f"accumulate gradients over {times} batches{to}; or lower the learning rate by as much",
            code=f"if step % {times} == 0: optimizer.step(); optimizer.zero_grad()  # and (loss / {times}).backward()",
            avoid="do not train longer: more steps of the same noise stay at the same level",
            verify="the gradient noise scale falls below ten batches, and the loss falls again",
        )
