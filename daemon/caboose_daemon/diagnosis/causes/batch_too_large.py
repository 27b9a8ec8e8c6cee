"""The batch is far larger than its gradients need: few updates, each hardly better than a small batch's."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

FEW_UPDATES = 20.0


class BatchTooLarge(Cause):
    """Samples that teach nothing, at a rate that was not raised with them."""

    id = "batch_too_large"
    title = "the batch is larger than pays off"
    explains = frozenset({"batch_size", "lr_too_low", "plateau", "not_learning", "underfitting"})
    rarity = 1.0

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The gradient noise scale, and how many updates an epoch has."""
        ratio, batch, size = case.value("batch_size", "ratio"), case.batch, case.setting("dataset_length")
        of = "the batch" if batch is None else f"the batch of {batch:.0f}"
        if ratio is not None and ratio < 1:
            yield supports(STRONG, f"{of} is {1 / max(ratio, 1e-9):.3g} times the gradient noise scale")
        elif ratio is not None:
            yield opposes(STRONG, f"the gradient noise scale is {ratio:.3g} times {of}")
        elif case.world > 1 and case.sees("local_gradients") and case.is_quiet("batch_size"):
            yield opposes(FAIR, f"{of} is not far above the gradient noise scale")
        if batch and size and size / batch < FEW_UPDATES:
            yield supports(FAIR, f"an epoch of {size:.0f} samples has {max(1.0, size / batch):.3g} updates")

    def advise(self, case: Case) -> Advice:
        """Smaller, or a rate that fits."""
        lr = case.lr_now
        rate = f"; or raise the rate of {lr:.2g} with the batch, by its square root for Adam" if lr else ""
        each = case.setting("batch_size")
        size, was = (str(max(1, int(each) // 4)), f"was {each:.0f}") if each else ("...", "a quarter of what it is")
        return Advice(
            first_fix=f"take a quarter of the batch{rate}",
            code=f"loader = DataLoader(dataset, batch_size={size})  # {was}",
            avoid="do not add ranks at the same batch per rank: it grows further",
            verify="the loss falls as much per step with fewer samples",
        )
