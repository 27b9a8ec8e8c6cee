"""validation_repeatable: whether a validation sample is the same each time it is read."""

from itertools import islice

from caboose.checklist.flight import Flight
from caboose.checklist.verdict import CheckResult, failed, passed, skipped, warned
from caboose.trials.batches import Unreadable, digest, samples
from caboose.trials.sources import BatchSource

ASKS = "Is a validation sample the same when read twice?"
NUM_READ = 64


def run(flight: Flight) -> CheckResult:
    """Reads some samples twice, with random numbers continuing in between."""
    source = flight.validation
    if source is None:
        return skipped("no validation loader was given", "pass validation_loader=")
    try:
        return _compared(flight, source)
    except Unreadable as error:
        return skipped(f"a sample holds {error}", "make it of tensors, numbers and text, or compare some yourself")


def _compared(flight: Flight, source: BatchSource) -> CheckResult:
    dataset, indices = source.dataset, source.indices
    if source.secret:
        return skipped(source.secret, "pass a loader with a sampler of torch's own, or of a Subset")
    if indices is not None:
        places = indices[:: max(1, len(indices) // NUM_READ)].tolist()
        first = [digest(dataset[place]) for place in places]
        second = [digest(dataset[place]) for place in places]
    else:
        first, second = (
            [digest(s) for batch in islice(source.pass_over(), len(flight.batches)) for s in samples(batch)]
            for _ in range(2)
        )
    num = len(first)
    if not num:
        return skipped("no validation sample could be read")
    num_changed = sum(a != b for a, b in zip(first, second, strict=False))
    if not num_changed and len(first) == len(second):
        return passed(f"{num} equal", f"{num} samples read twice, bit for bit the same")
    if dataset is None and set(first) == set(second):
        return warned(
            f"{num_changed} moved",
            "the same samples come in another order",
            "do not shuffle validation, or compare by sample",
        )
    return failed(
        f"{num_changed} of {num}",
        f"{num_changed} of {num} validation samples differ when read again: they are augmented",
        "give validation a dataset of its own, without random transforms",
    )
