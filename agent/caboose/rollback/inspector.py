"""A thread for the work on snapshots that the training thread must not wait for.

Design
------
One daemon thread, started with the first task; tasks run in order. They allocate and touch buffers, wait for copies off
the device, and compute checksums. A task that raises is logged and dropped, and so is one for which no thread can be
started: the snapshot stays unchecked, and an unchecked snapshot is never used.
"""

import logging
import queue
import threading
from collections.abc import Callable

from caboose.report import threads

logger = logging.getLogger("caboose")


class Inspector:
    """Runs tasks in the background."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, task: Callable[[], None]) -> None:
        """Queues a task; returns at once."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="caboose-snapshots", daemon=True)
            try:
                threads.start(thread)
            except (RuntimeError, MemoryError) as error:  # this may be a boundary at which all ranks act
                logger.warning("caboose: a snapshot cannot be checked now and will not be used: %r", error)
                return
            self._thread = thread
        self._tasks.put(task)

    def close(self, timeout: float = 0.5) -> None:
        """Ends the thread after its current task."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(timeout)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:  # noqa: BLE001 - see Design
                logger.warning("caboose: a snapshot could not be checked and will not be used: %r", error)
            del task  # it holds a slot, and with it the model
