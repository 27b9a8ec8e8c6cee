"""Reads batches from the user's loader and restores it.

Design
------
A `DataLoader` itself is never iterated: a shallow copy of it is, in this process and without workers, so that no
worker is started and a running epoch (also of persistent workers) is not disturbed. What reading changes in shared
objects (generators, counters of samplers, datasets, transforms) is restored. Another loader is restored by its
`state_dict` if it has one, and by its attributes. A bare iterator cannot be restored, and is refused. State outside of
this process (a file's position, a server's cursor) cannot be restored; docs/preflight.md lists this.
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
    """A loader that is read temporarily."""

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
        """One pass over the loader, which may stop at any batch."""
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
        """Batches without end, pass after pass."""
        while True:
            is_empty = True
            for batch in self.pass_over():
                is_empty = False
                yield batch
            if is_empty:
                raise ValueError(f"{self._tool}({self._name}=...): it has no batches; is the dataset empty?")

    @property
    def is_stream(self) -> bool:
        """Whether it can only be read from its beginning, at unknown cost."""
        return self.dataset is None and not isinstance(self.loader, list | tuple)

    @property
    def dataset(self) -> Any:
        """The dataset, if it can be read by index; else None."""
        if not isinstance(self.loader, DataLoader):
            return None
        dataset = self.loader.dataset
        is_map = not isinstance(dataset, torch.utils.data.IterableDataset) and hasattr(dataset, "__len__")
        return dataset if is_map and hasattr(dataset, "__getitem__") else None

    @property
    def indices(self) -> torch.Tensor | None:
        """The indices that the loader takes; None if there are none, or only its sampler knows them."""
        if self.dataset is None:
            return None
        sampler, kind = self._sampler, type(self._sampler)
        if kind in (SequentialSampler, RandomSampler):  # not their subclasses, which may do anything
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
        """Why the indices are unknown; empty if they are known, or there is no dataset."""
        is_known = self.dataset is None or self.indices is not None
        return "" if is_known else f"only its {type(self._sampler).__name__} knows which samples are taken"

    @property
    def _sampler(self) -> Any:
        batches = self.loader.batch_sampler
        if batches is None:
            return self.loader.sampler
        return batches.sampler if type(batches) is BatchSampler else batches


def as_loader(data: Any) -> Any:
    """A loader as it is; one batch (a mapping, a tensor, tensors side by side) as a loader of that batch."""
    is_tensors = isinstance(data, tuple | list) and bool(data) and all(isinstance(part, torch.Tensor) for part in data)
    return [data] if is_tensors or isinstance(data, torch.Tensor | Mapping) else data


def _is_one_batch(loader: Any) -> bool:
    """Whether it is a batch: tensors of different shapes side by side; the batches of a loader are alike."""
    if isinstance(loader, torch.Tensor | Mapping):
        return True
    if not isinstance(loader, list | tuple) or not all(isinstance(part, torch.Tensor) for part in loader):
        return False
    return len({(part.dtype, part.dim()) for part in loader}) > 1
