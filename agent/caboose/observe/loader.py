"""A watched loader: its waits are timed, its batches counted and, after a rollback, some of them dropped.

A framework iterates over its own loader: there, `FetchWatch` times the waits and counts the batches. Where the iterator
itself passes through it (`timed`), batches can be dropped as well.

Design
------
Everything here runs on the training thread. A rollback takes back the weights and never the data, so the batches before
it are not seen again; `BatchSkip` drops more of those that follow. Skips are counted in steps, equally on every rank:
each iteration that gave the last step batches and has not ended drops as many per step as it gave. So loaders that are
iterated in parallel stay in step, and a validation in between is not affected. A skip ends with its epoch, because
ranks may have epochs of different lengths; if they are known to be equal, it continues in the next epoch of the same
loader. An epoch may end with its last batch, a break or an exception: each iteration is an object, with its own skip.
"""

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Batch = TypeVar("Batch")


class Epoch:
    """One iteration over a loader, from its first batch to wherever it stops."""

    __slots__ = ("loader", "num_given")

    def __init__(self, loader: object) -> None:
        self.loader = loader
        self.num_given = 0
        """Batches since the last boundary."""


class BatchSkip:
    """Which batches are to be dropped, and how many have been."""

    def __init__(self) -> None:
        self.source: Epoch | None = None
        """The iteration that gave the last batch, of those that have not ended."""
        self.num_dropped = 0
        self._in_use: list[Epoch] = []
        """Iterations that gave batches since the last boundary and have not ended."""
        self._left: dict[Epoch, int] = {}
        self._crosses_epochs = False

    @property
    def batches_per_step(self) -> int:
        """Batches of the loader in use since the last boundary."""
        return 1 if self.source is None else max(1, self.source.num_given)

    def gave(self, epoch: Epoch) -> None:
        """A batch is passed to the loop."""
        if not epoch.num_given:
            self._in_use.append(epoch)
        epoch.num_given += 1
        self.source = epoch

    def left(self, epoch: Epoch) -> None:
        """An iteration has ended; another that has not becomes the source."""
        if epoch in self._in_use:
            self._in_use.remove(epoch)
        if self.source is epoch and self._in_use:
            self.source = self._in_use[-1]

    def end_step(self) -> None:
        for epoch in self._in_use:
            epoch.num_given = 0
        self._in_use.clear()

    def ask(self, num_steps: int, *, batches_per_step: int = 1, crosses_epochs: bool) -> int:
        """Drops the next batches of the iterations in use; returns how many of the last one, 0 if no loader is watched.

        `batches_per_step` is what all ranks agreed on for the last one.
        """
        self._left = {epoch: num_steps * epoch.num_given for epoch in self._in_use}
        self._crosses_epochs = crosses_epochs
        if self.source is None:
            return 0
        self._left[self.source] = num_steps * batches_per_step
        return self._left[self.source]

    def takes(self, epoch: Epoch) -> bool:
        """Whether the next batch of this iteration is to be dropped."""
        if not self._left:
            return False
        if epoch not in self._left and self._crosses_epochs:
            before = next((known for known in self._left if known.loader is epoch.loader), None)
            if before is not None:
                self._left[epoch] = self._left.pop(before)
        num = self._left.get(epoch, 0)
        if not num:
            self._left.pop(epoch, None)
            return False
        self._left[epoch] = num - 1
        self.num_dropped += 1
        return True

    def length(self) -> int:
        """Batches per epoch of the loader in use; -1 if unknown."""
        try:
            return -1 if self.source is None else len(self.source.loader)  # type: ignore[arg-type]  # it may have none
        except (TypeError, NotImplementedError):
            return -1


class WatchedLoader(Generic[Batch]):
    """A loader whose waits are timed; every other attribute is the loader's own. None of the callables may raise.

    Written or copied it is the loader itself, which is not watched and needs no Caboose to be read.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        skip: BatchSkip,
        *,
        mark: Callable[[str], Any],
        on_epoch: Callable[[], Any],
        on_batch: Callable[[Batch], Any],
    ) -> None:
        self._loader = loader
        self._skip = skip
        self._mark = mark
        self._on_epoch = on_epoch
        self._on_batch = on_batch

    @property
    def watched(self) -> Iterable[Batch]:
        """The loader itself."""
        return self._loader

    def __iter__(self) -> Iterator[Batch]:
        skip, mark, on_batch = self._skip, self._mark, self._on_batch
        self._on_epoch()
        epoch = Epoch(self._loader)
        mark("data")
        try:
            for batch in self._loader:
                if skip.takes(epoch):
                    continue
                mark("other")
                on_batch(batch)
                skip.gave(epoch)
                yield batch
                mark("data")
        finally:
            skip.left(epoch)
        mark("other")

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length raises its own TypeError

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, ((self._loader,), 0)

    def __copy__(self) -> Iterable[Batch]:
        return copy.copy(self._loader)

    def __deepcopy__(self, memo: dict[int, Any]) -> Iterable[Batch]:
        return copy.deepcopy(self._loader, memo)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class FetchWatch:
    """The waits for batches that a framework fetches itself. None of the callables may raise."""

    def __init__(
        self,
        *,
        mark: Callable[[str], Any],
        on_epoch: Callable[[int | None], Any],
        on_batch: Callable[[Any], Any],
        skip: BatchSkip,
    ) -> None:
        self._mark = mark
        self._skip = skip
        self._epoch: Epoch | None = None
        self._fetched: Iterator[Any] | None = None
        """The framework's own iterator of this epoch."""
        self.begin_epoch = on_epoch
        """Called with the number of the epoch, or None if it is not known."""
        self.saw = on_batch
        """Called with each batch that has arrived."""

    def begin(self) -> None:
        """A batch is being fetched."""
        self._mark("data")

    def end(self) -> None:
        """It has arrived, or there are no more."""
        self._mark("other")

    def timed(self, batches: Iterator[Batch], loader: object = None) -> "TimedBatches[Batch]":
        """The same iterator, with the wait for each batch timed and batches dropped that are to be skipped.

        It may be asked for again with the same iterator: that is the same epoch.
        """
        if self._epoch is None or batches is not self._fetched:
            self.leave()
            self._epoch, self._fetched = Epoch(batches if loader is None else loader), batches
        return TimedBatches(batches, self, self._epoch)

    def skipping(
        self, batches: Iterator[Batch], loader: object, *, is_last: Callable[[], bool], on_skip: Callable[[], Any]
    ) -> Iterator[Batch]:
        """The same iterator without the batches that are to be skipped, each of which is reported to `on_skip`.

        The last batch of an epoch is passed on in any case, where it is known to be the last: a framework ends its
        epoch with it.
        """
        self.leave()
        self._epoch, self._fetched = Epoch(loader), batches
        return _skipping(batches, self._skip, self._epoch, is_last, on_skip)

    def leave(self) -> None:
        """The epoch is over."""
        if self._epoch is not None:
            self._skip.left(self._epoch)
        self._epoch = self._fetched = None

    def fetch(self, batches: Iterator[Batch], epoch: Epoch) -> Batch:
        """The next batch that is not to be skipped."""
        self.begin()
        try:
            batch = next(batches)
            while self._skip.takes(epoch):
                batch = next(batches)
        except StopIteration:
            self._skip.left(epoch)
            raise
        finally:
            self.end()
        self.saw(batch)
        self._skip.gave(epoch)
        return batch


def _skipping(
    batches: Iterator[Batch], skip: BatchSkip, epoch: Epoch, is_last: Callable[[], bool], on_skip: Callable[[], Any]
) -> Iterator[Batch]:
    for batch in batches:
        if not is_last() and skip.takes(epoch):
            on_skip()
            continue
        skip.gave(epoch)
        yield batch
    skip.left(epoch)


class TimedBatches(Generic[Batch]):
    """An iterator whose waits are timed; every other attribute is the iterator's own."""

    def __init__(self, batches: Iterator[Batch], watch: FetchWatch, epoch: Epoch) -> None:
        self._batches = batches
        self._watch = watch
        self._epoch = epoch

    def __iter__(self) -> "TimedBatches[Batch]":
        return self

    def __next__(self) -> Batch:
        return self._watch.fetch(self._batches, self._epoch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
