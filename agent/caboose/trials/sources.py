"""Reads batches from the user's loader and leaves it where it was.

Design
------
A `DataLoader` itself is never iterated: a shallow copy of it is, in this process and without workers, so that no
worker is started and an epoch under way (also that of persistent workers) is not disturbed. What reading changes in
the objects that both share (generators, counters of samplers, datasets, transforms) is put back. A loader of another
kind is put back by its `state_dict` if it has one, and by its attributes. A bare iterator cannot be put back, and is
refused. What lies outside of this process (a file's position, a server's cursor) is out of reach; docs/preflight.md
says so.
"""

import copy
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from caboose.observe.loader import WatchedLoader
from caboose.trials.restore_state import Kept


class BatchSource:
    """A loader that is read for a while."""

    def __init__(self, tool: str, loader: Any, name: str = "loader") -> None:
        while isinstance(loader, WatchedLoader):
            loader = loader.watched
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"{tool}({name}=...): expected something to iterate over, got {type(loader).__name__}")
        if _is_one_batch(loader):
            raise TypeError(
                f"{tool}({name}=...): this {type(loader).__name__} looks like one batch; to use that one alone, "
                "pass [batch]"
            )
        self.loader = loader
        self._tool, self._name = tool, name
        self._has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        is_iterator = hasattr(loader, "__next__")
        if is_iterator and not self._has_state:
            raise TypeError(
                f"{tool}({name}=...): a {type(loader).__name__} is an iterator, and what is read from it cannot be put "
                "back; pass the loader that it came from, or a list of some of its batches"
            )
        self._kept = Kept()
        self._state: Any = None

    def __enter__(self) -> "BatchSource":
        loader = self.loader
        if isinstance(loader, DataLoader):
            for part in (loader.generator, loader.sampler, loader.batch_sampler, loader.dataset, loader.collate_fn):
                self._kept.keep(part, is_data=True)
            self._state = None
        elif self._has_state:
            self._state = copy.deepcopy(loader.state_dict())
        if not isinstance(loader, DataLoader | list | tuple):
            self._kept.keep(loader, is_data=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state is not None:
            self.loader.load_state_dict(self._state)
        self._kept.put_back()

    def pass_over(self) -> Iterator[Any]:
        """One pass over the loader, which may be left at any batch."""
        loader = self.loader
        if isinstance(loader, DataLoader):
            loader = copy.copy(loader)
            vars(loader).update(
                num_workers=0,
                persistent_workers=False,
                prefetch_factor=None,
                timeout=0,
                pin_memory=False,
                _iterator=None,
            )
        return iter(loader)

    def take(self, num: int) -> list[Any]:
        """The first batches, fewer if there are fewer."""
        found = []
        batches = self.pass_over()
        for batch in batches:
            found.append(batch)
            if len(found) >= num:
                break
        if not found:
            raise ValueError(f"{self._tool}({self._name}=...): it has no batches; is the dataset empty?")
        return found

    def endlessly(self) -> Iterator[Any]:
        """Batches for as long as they are asked for, pass after pass."""
        while True:
            is_empty = True
            for batch in self.pass_over():
                is_empty = False
                yield batch
            if is_empty:
                raise ValueError(f"{self._tool}({self._name}=...): it has no batches; is the dataset empty?")

    @property
    def is_stream(self) -> bool:
        """Whether it is read from its beginning only, at a cost that nobody knows."""
        return self.dataset is None and not isinstance(self.loader, list | tuple)

    @property
    def dataset(self) -> Any:
        """What can be read by index; None if nothing can."""
        if not isinstance(self.loader, DataLoader):
            return None
        dataset = self.loader.dataset
        is_map = not isinstance(dataset, torch.utils.data.IterableDataset) and hasattr(dataset, "__len__")
        return dataset if is_map and hasattr(dataset, "__getitem__") else None

    @property
    def indices(self) -> torch.Tensor | None:
        """Those of the dataset that the loader takes; None where there are none, or only its sampler knows."""
        if self.dataset is None:
            return None
        sampler, kind = self._sampler, type(self._sampler)
        if kind in (SequentialSampler, RandomSampler):  # what is derived from them may do anything
            return torch.arange(len(sampler.data_source))
        if kind is DistributedSampler:
            return torch.arange(len(sampler.dataset))
        if kind is WeightedRandomSampler:
            return torch.as_tensor(sampler.weights).nonzero().flatten()
        if kind is SubsetRandomSampler:
            return torch.tensor([int(index) for index in sampler.indices], dtype=torch.int64)
        is_listed = isinstance(sampler, list | tuple | range) and all(isinstance(index, int) for index in sampler)
        return torch.tensor(list(sampler), dtype=torch.int64) if is_listed else None

    @property
    def secret(self) -> str:
        """Why nobody knows which samples of its dataset it takes; empty where that is known, or there is no dataset."""
        is_known = self.dataset is None or self.indices is not None
        return "" if is_known else f"which samples are taken only its {type(self._sampler).__name__} knows"

    @property
    def _sampler(self) -> Any:
        batches = self.loader.batch_sampler
        if batches is None:
            return self.loader.sampler
        return batches.sampler if type(batches) is BatchSampler else batches


def _is_one_batch(loader: Any) -> bool:
    """Tensors of several kinds side by side: inputs and targets, where all batches of a loader are alike."""
    if isinstance(loader, torch.Tensor | Mapping):
        return True
    if not isinstance(loader, list | tuple) or not all(isinstance(part, torch.Tensor) for part in loader):
        return False
    return len({(part.dtype, part.dim()) for part in loader}) > 1
