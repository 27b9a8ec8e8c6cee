"""A loader that is watched: its waits are timed, its batches counted and, after a rollback, some of them dropped.

Design
------
Everything here runs on the training thread. A rollback moves the weights back and never the data, so the batches of the
bad stretch are behind the run already; `skip` drops some more of those that are next. It is meant for the epoch that
gave the step's last batch, on every rank alike, and for no other (a validation in between is not touched). It ends
with that epoch, because ranks may have epochs of different lengths, unless they are known to be equal; then it goes on
in the next one of the same loader. An epoch may end at its last batch, by a break or by an exception, so its end is not
waited for: each way through a loader is an object of its own, and what is left of a skip is only that one's.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from caboose.monitor import Monitor

Batch = TypeVar("Batch")


class Epoch:
    """One way through a loader, from its first batch to wherever it is left."""

    __slots__ = ("loader",)

    def __init__(self, loader: object) -> None:
        self.loader = loader


class Skip:
    """Which batches are still to be dropped, and how many have been."""

    def __init__(self) -> None:
        self.source: Epoch | None = None
        """What gave the last batch."""
        self.num_dropped = 0
        self._left = 0
        self._of: Epoch | None = None
        self._crosses_epochs = False

    def ask(self, num_batches: int, *, crosses_epochs: bool) -> int:
        """Drops the next batches of the loader in use; returns how many will be, 0 where none is watched."""
        self._of, self._left, self._crosses_epochs = self.source, num_batches, crosses_epochs
        if self._of is None:
            self._left = 0
        return self._left

    def takes(self, epoch: Epoch) -> bool:
        """Whether this epoch's next batch is to be dropped."""
        if not self._left or self._of is None:
            return False
        if epoch is not self._of and not (self._crosses_epochs and epoch.loader is self._of.loader):
            return False
        self._left -= 1
        self.num_dropped += 1
        return True

    def length(self) -> int:
        """Batches of an epoch of the loader in use; -1 where that is not known."""
        try:
            return -1 if self.source is None else len(self.source.loader)  # type: ignore[arg-type]  # it may have none
        except (TypeError, NotImplementedError):
            return -1


class Watched(Generic[Batch]):
    """A loader whose waits are timed; everything else about it is the loader's own."""

    def __init__(self, loader: Iterable[Batch], monitor: "Monitor") -> None:
        self._loader = loader
        self._monitor = monitor

    def __iter__(self) -> Iterator[Batch]:
        monitor, skip = self._monitor, self._monitor._skip
        mark = monitor.guard.protect("watch", monitor.clock.mark)
        see = monitor.guard.protect("watch", monitor._see_batch)
        monitor.guard.protect("watch", monitor._begin_epoch)()
        epoch = Epoch(self._loader)
        mark("data")
        for batch in self._loader:
            if skip.takes(epoch):
                continue
            mark("other")
            see(batch)
            skip.source = epoch
            yield batch
            mark("data")
        mark("other")

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length raises its own TypeError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
