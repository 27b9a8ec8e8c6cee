"""A thread for the work on snapshots that the training thread must not wait for.

Design
------
One daemon thread, started with the first task; tasks run in order. They allocate and touch buffers, wait for copies off
the device, and compute checksums. A task that raises is logged and dropped, and so is one for which no thread can be
started: the snapshot stays unchecked, and an unchecked snapshot is never used.

The process must not end in the middle of a task: a thread that is killed inside torch takes the process down with
SIGABRT, and a run that has ended well would seem to have failed. So `close` waits for the task at hand, and drops those
that have not begun.
"""

import logging
import queue
import threading
from collections.abc import Callable

from caboose.report import threads

logger = logging.getLogger("caboose")

CLOSE_SECONDS = 20.0
"""How long the end of a run waits for a task, such as the checksum of a snapshot of some gigabytes on a busy host."""


class Inspector:
    """Runs tasks in the background."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

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

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Ends the thread after its current task; those after it are dropped."""
        self._is_closed = True
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(timeout)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_closed:
            try:
                task()
            except Exception as error:  # noqa: BLE001 - see Design
                logger.warning("caboose: a snapshot could not be checked and will not be used: %r", error)
            del task  # it holds a slot, and with it the model
