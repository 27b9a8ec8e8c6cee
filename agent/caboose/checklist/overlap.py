"""overlap: whether samples of the validation set are in the training set too.

Design
------
Two subsets of one dataset are compared by their indices, which is exact and free. Otherwise samples are read and
hashed, spread evenly over both sets, for a bounded time; how many were read is said, for what was not read is not
known. Only inputs are hashed, as they are after the transforms: a leak behind random augmentation is not seen. A
training set that can only be streamed is not read again: of it the batches count that were read for all checks.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch

from caboose.checklist.flight import Flight
from caboose.checklist.verdict import Verdict, failed, passed, skipped
from caboose.trials.batches import Unreadable, digest, parted, samples
from caboose.trials.sources import Source

ASKS = "Are validation samples in the training set?"
FIX = "split before shuffling, by group or by source, and remove duplicates"
MAX_READ = 100_000


def run(flight: Flight) -> Verdict:
    """Indices first, then hashes."""
    if flight.validation is None:
        return skipped("no validation loader was given", "pass validation_loader=")
    by_index = _by_index(flight.train.dataset, flight.validation.dataset)
    if by_index is not None and by_index[0]:
        shared, total = by_index
        return failed(
            f"{shared} of {total}", f"{shared} of {total} validation indices are training indices as well", FIX
        )
    half = flight.overlap_seconds / 2
    try:
        known = _hashes(flight, flight.validation, half, "validation")
        seen = _hashes(flight, flight.train, half, "training")
    except Unreadable as error:
        if by_index is not None:
            return passed("0 shared", "no index is in both")
        return skipped(f"a sample holds {error}", "pass split=lambda batch: (inputs, targets), with tensors as inputs")
    shared = len(known & seen)
    read = f"{len(seen)} training and {len(known)} validation samples read"
    if shared:
        return failed(f"{shared} of {len(known)}", f"{shared} validation samples are in the training set ({read})", FIX)
    exact = ", and no index is in both" if by_index is not None else ""
    return passed("0 shared", f"{read}{exact}")


def _by_index(train: Any, validation: Any) -> tuple[int, int] | None:
    """Shared and all validation indices of two subsets of one dataset; None if they are not that."""
    subset = torch.utils.data.Subset
    if train is None or validation is None:
        return None
    if isinstance(train, subset) and isinstance(validation, subset) and train.dataset is validation.dataset:
        own = {int(index) for index in validation.indices}
        return len(own & {int(index) for index in train.indices}), len(own)
    if train is validation:
        return len(validation), len(validation)
    return None


def _hashes(flight: Flight, source: Source, seconds: float, what: str) -> set[bytes]:
    end = time.monotonic() + seconds
    found: set[bytes] = set()
    for sample in _inputs(flight, source):
        found.add(digest(sample))
        if len(found) % 500 == 0:
            flight.bar.tell(f"overlap: {len(found)} {what} samples")
        if time.monotonic() > end or len(found) >= MAX_READ:
            break
    return found


def _inputs(flight: Flight, source: Source) -> Iterator[Any]:
    dataset = source.dataset
    if dataset is not None:
        for index in _spread(len(dataset)):
            sample = dataset[index]
            yield parted(sample, flight.split)[0] if not isinstance(sample, tuple) or len(sample) == 2 else sample[0]
        return
    for batch in source.pass_over() if not source.is_stream or source is not flight.train else flight.batches:
        yield from samples(parted(batch, flight.split)[0])


def _spread(num: int) -> Iterator[int]:
    """All indices, in an order that is spread evenly over them wherever it is left off."""
    stride = max(1, int(num * 0.6180339887))
    while _gcd(stride, num) != 1:
        stride += 1
    yield from ((place * stride) % num for place in range(num))


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a
