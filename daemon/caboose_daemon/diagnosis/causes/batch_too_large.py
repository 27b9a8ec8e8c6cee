"""The batch is far larger than the gradient noise requires: few updates, each hardly better than a small batch's."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_UPDATES = 20.0


class BatchTooLarge(Cause):
    """A batch far above the gradient noise scale."""

    id = "batch_too_large"
    title = "batch too large"
    explains = frozenset({"batch_size", "lr_too_low", "plateau", "not_learning", "underfitting"})
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        ratio, batch, size = case.value("batch_size", "ratio"), case.batch, case.setting("dataset_length")
        of = "batch" if batch is None else f"batch of {batch:,.0f}"
        if ratio is not None and ratio < 1:
            yield supports(STRONG, f"{of} is {1 / max(ratio, 1e-9):.3g}x the gradient noise scale")
        elif ratio is not None:
            yield opposes(STRONG, f"gradient noise scale is {ratio:.3g}x the {of}")
        elif case.world > 1 and case.sees("local_gradients") and case.is_quiet("batch_size"):
            yield opposes(FAIR, f"{of} is not far above the gradient noise scale")
        if batch and size and size / batch < FEW_UPDATES:
            yield supports(FAIR, f"only {max(1.0, size / batch):.3g} updates per epoch of {size:,.0f} samples")

    def advise(self, case: Case) -> Advice:
        lr = case.lr_now
        rate = f", or raise the learning rate of {lr:.2g} with the batch (for Adam with its square root)" if lr else ""
        each = case.setting("batch_size")
        size, was = (
            (str(max(1, int(each) // 4)), f"was {each:.0f}") if each else ("loader.batch_size // 4", "a quarter of it")
        )
        return Advice(
            first_fix=f"use a quarter of the batch{rate}",
            code=f"loader = DataLoader(dataset, batch_size={size})  # {was}",
            avoid="do not add ranks at the same batch per rank: the batch grows further",
            verify="the loss falls as much per step with the smaller batch",
        )
