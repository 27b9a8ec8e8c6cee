"""Every batch has the same inputs: an index that never moves, a file that was not read, a mask that covers all."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, SLIGHT, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class ConstantInput(Cause):
    """Inputs that do not vary."""

    id = "constant_input"
    title = "inputs that never change"
    is_plain = True
    explains = STANDS_STILL | {
        *("overfitting", "metric_divergence", "lr_too_low", "frozen_parameters"),
        *("dead_units", "gradient_vanishing", "activation_collapse"),
    }

    def weigh(self, case: Case) -> Iterator[Evidence]:
        seen = case.input_ranges
        if len(seen) < model_facts.min_samples(case) or model_facts.has_embedding(case):
            return
        ranges = {(one.lowest, one.highest, one.mean) for one in seen}
        if all(low == high for low, high, _ in ranges):
            text = f"every element of {len(seen)} sampled batches was {seen[-1].lowest:.3g}"
            yield supports(
                DECISIVE, text if len(ranges) == 1 else f"all elements of a batch are equal in {len(seen)} samples"
            )
        elif len(ranges) == 1:
            low, high, mean = next(iter(ranges))
            text = f"{len(seen)} sampled batches all range from exactly {low:.6g} to exactly {high:.6g}"
            text += "" if mean is None else f", with the same mean {mean:.6g}"
            yield supports(DECISIVE if model_facts.are_the_same(low, high, mean) else SLIGHT, text)
        else:
            yield opposes(DECISIVE, f"range or mean of the inputs differ between {len(seen)} sampled batches")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="print two batches and compare them: look for a fixed index, a cache, or a file that is not read",
            code="a, b = itertools.islice(loader, 2); assert not torch.equal(a[0], b[0]); assert a[0].std() > 0",
            avoid="do not change learning rate or model: there is nothing in these inputs to learn from",
            verify="the range of the inputs differs from one sampled batch to the next",
        )
