"""overlap: whether samples of the validation or test set are in the training set too, or of one in the other.

Design
------
For one dataset, the indices of subsets and samplers are compared: exact and free. Samples are also read and hashed,
spread evenly over both sets, for a bounded time; the number of samples read is reported. Only inputs are hashed, after
the transforms: a leak behind random augmentation is not seen. A training set that can only be streamed is not read
again: only the batches that were read for all checks count.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch

from caboose.checklist.flight import Flight
from caboose.checklist.verdict import CheckResult, failed, passed, skipped
from caboose.trials.batches import Unreadable, digest, parted, samples
from caboose.trials.sources import BatchSource

ASKS = "Are validation or test samples in the training set?"
FIX = "split before shuffling, by group or by source, and remove duplicates"
MAX_READ = 100_000


def run(flight: Flight) -> CheckResult:
    """Training against validation, and a test set against both; the first pair that shares samples fails."""
    if flight.validation is None and flight.test is None:
        return skipped("no validation loader was given", "pass validation_loader=")
    pairs = [
        (first, first_name, second, second_name)
        for first, first_name, second, second_name in (
            (flight.train, "training", flight.validation, "validation"),
            (flight.train, "training", flight.test, "test"),
            (flight.validation, "validation", flight.test, "test"),
        )
        if first is not None and second is not None
    ]
    results = [_compared(flight, *pair, seconds=flight.overlap_seconds / len(pairs)) for pair in pairs]
    worst = max(results, key=lambda result: ("pass", "skipped", "fail").index(result.grade))
    return worst if worst.grade != "pass" else passed("0 shared", "; ".join(result.says for result in results))


def _compared(
    flight: Flight, first: BatchSource, first_name: str, second: BatchSource, second_name: str, *, seconds: float
) -> CheckResult:
    """Indices first, then hashes."""
    secret = first.secret or second.secret
    if secret:
        return skipped(secret, "pass loaders with samplers of torch's own, or of a Subset each")
    by_index = _by_index(first, second)
    if by_index is not None and by_index[0]:
        shared, total = by_index
        text = f"{shared} of {total} {second_name} indices are {first_name} indices as well"
        return failed(f"{shared} of {total}", text, FIX)
    try:
        known = _hashes(flight, second, seconds / 2, second_name)
        seen = _hashes(flight, first, seconds / 2, first_name)
    except Unreadable as error:
        if by_index is not None:
            return passed("0 shared", "no index is in both")
        return skipped(f"a sample holds {error}", "pass split=lambda batch: (inputs, targets), with tensors as inputs")
    shared = len(known & seen)
    read = f"{len(seen)} {first_name} and {len(known)} {second_name} samples read"
    if shared:
        text = f"{shared} {second_name} samples are in the {first_name} set ({read})"
        return failed(f"{shared} of {len(known)}", text, FIX)
    exact = ", and no index is in both" if by_index is not None else ""
    return passed("0 shared", f"{read}{exact}")


def _by_index(train: BatchSource, validation: BatchSource) -> tuple[int, int] | None:
    """Shared and all validation indices if both are of one dataset; else None."""
    taken, own = train.indices, validation.indices
    if taken is None or own is None:
        return None
    (whole, taken), (other, own) = _rooted(train.dataset, taken), _rooted(validation.dataset, own)
    return (int(torch.isin(own, taken).sum()), len(own)) if whole is other else None


def _rooted(dataset: Any, indices: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """The dataset below all subsets, and the indices there, each once."""
    while isinstance(dataset, torch.utils.data.Subset):
        indices = torch.tensor([int(dataset.indices[index]) for index in indices.tolist()])
        dataset = dataset.dataset
    return dataset, indices.unique()  # type: ignore[no-untyped-call]


def _hashes(flight: Flight, source: BatchSource, seconds: float, what: str) -> set[bytes]:
    end = time.monotonic() + seconds
    found: set[bytes] = set()
    for sample in _inputs(flight, source):
        found.add(digest(sample))
        if len(found) % 500 == 0:
            flight.bar.show(f"overlap: {len(found)} {what} samples")
        if time.monotonic() > end or len(found) >= MAX_READ:
            break
    return found


def _inputs(flight: Flight, source: BatchSource) -> Iterator[Any]:
    dataset, indices = source.dataset, source.indices
    if indices is not None:
        for place in _spread(len(indices)):
            sample = dataset[int(indices[place])]
            yield parted(sample, flight.split)[0] if not isinstance(sample, tuple) or len(sample) == 2 else sample[0]
        return
    for batch in source.pass_over() if not source.is_stream or source is not flight.train else flight.batches:
        yield from samples(parted(batch, flight.split)[0])


def _spread(num: int) -> Iterator[int]:
    """All indices, in an order that is spread evenly wherever it stops."""
    stride = max(1, int(num * 0.6180339887))
    while _gcd(stride, num) != 1:
        stride += 1
    yield from ((place * stride) % num for place in range(num))


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a
