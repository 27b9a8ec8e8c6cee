"""A loader that is watched: its waits are timed, its batches counted and, after a rollback, some of them dropped.

Design
------
Everything here runs on the training thread. A rollback moves the weights back and never the data, so the batches of the
bad stretch are behind the run already; `skip` drops some more of those that are next. It is counted in steps, and meant
for what fed the last one, on every rank alike: each way through a loader that gave that step batches and is not at its
end drops as many a step as it gave, so that loaders that are gone through side by side stay so, and a validation in
between is not touched. It ends with that epoch, because ranks may have epochs of different lengths, unless they are
known to be equal; then it goes on in the next one of the same loader. An epoch may end at its last batch, by a break or
by an exception: each way through a loader is an object of its own, and what is left of a skip is only that one's.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Batch = TypeVar("Batch")


class Epoch:
    """One way through a loader, from its first batch to wherever it is left."""

    __slots__ = ("loader", "num_given")

    def __init__(self, loader: object) -> None:
        self.loader = loader
        self.num_given = 0
        """Batches since the last boundary."""


class BatchSkip:
    """Which batches are still to be dropped, and how many have been."""

    def __init__(self) -> None:
        self.source: Epoch | None = None
        """What gave the last batch, of what is not at its end."""
        self.num_dropped = 0
        self._in_use: list[Epoch] = []
        """What has given batches since the last boundary and is not at its end."""
        self._left: dict[Epoch, int] = {}
        self._crosses_epochs = False

    @property
    def batches_per_step(self) -> int:
        """Of the loader in use, since the last boundary."""
        return 1 if self.source is None else max(1, self.source.num_given)

    def gave(self, epoch: Epoch) -> None:
        """A batch is on its way into the loop."""
        if not epoch.num_given:
            self._in_use.append(epoch)
        epoch.num_given += 1
        self.source = epoch

    def left(self, epoch: Epoch) -> None:
        """An epoch is at its end; one that is still gone through is what feeds the step."""
        if epoch in self._in_use:
            self._in_use.remove(epoch)
        if self.source is epoch and self._in_use:
            self.source = self._in_use[-1]

    def end_step(self) -> None:
        """A boundary was passed."""
        for epoch in self._in_use:
            epoch.num_given = 0
        self._in_use.clear()

    def ask(self, num_steps: int, *, batches_per_step: int = 1, crosses_epochs: bool) -> int:
        """Drops the next batches of what is in use; returns how many of the last one's, 0 where none is watched.

        `batches_per_step` is what all ranks agreed on for that one.
        """
        self._left = {epoch: num_steps * epoch.num_given for epoch in self._in_use}
        self._crosses_epochs = crosses_epochs
        if self.source is None:
            return 0
        self._left[self.source] = num_steps * batches_per_step
        return self._left[self.source]

    def takes(self, epoch: Epoch) -> bool:
        """Whether this epoch's next batch is to be dropped."""
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
        """Batches of an epoch of the loader in use; -1 where that is not known."""
        try:
            return -1 if self.source is None else len(self.source.loader)  # type: ignore[arg-type]  # it may have none
        except (TypeError, NotImplementedError):
            return -1


class WatchedLoader(Generic[Batch]):
    """A loader whose waits are timed; every other attribute is the loader's own. None of the callables may raise."""

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
