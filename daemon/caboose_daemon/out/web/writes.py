"""Hands HTTP writes to the loop's thread and waits until they are committed.

Design
------
The loop is the only writer of the state. An endpoint submits a function that prepares its change; the loop calls it,
commits the change, makes it, and answers. The loop wakes at once, and takes writes between any two messages or jobs of
its turn. An endpoint waits `WAIT_SECONDS`. Then it withdraws a write that the loop has not begun: it is never applied.
If the loop has begun, the outcome is not known here, and the answer states that.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from starlette.responses import Response

from caboose_daemon.jobs.pipeline import Change
from caboose_daemon.out.web.replies import error

logger = logging.getLogger("caboose.daemon")
WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Prepared:
    """The answer to a write, once its change is made; None: there is nothing to change."""

    answer: Response
    change: Change | None = None
    is_journaled: bool = True
    """False: it is made also while the journal cannot be written."""


Prepare = Callable[[], Prepared]
"""Called on the loop's thread with the state's lock held; changes nothing."""


class Write:
    """One write, from its submission to its answer."""

    def __init__(self, prepare: Prepare) -> None:
        self.prepare = prepare
        self.answered: Future[Response] = Future()

    def begin(self) -> bool:
        """Whether the loop may apply it; False once it was withdrawn."""
        return self.answered.set_running_or_notify_cancel()

    def withdraw(self) -> bool:
        """Whether it will never be applied; False if the loop has begun."""
        return self.answered.cancel()

    def refuse(self, problem: str) -> None:
        """The journal cannot keep it."""
        self.answered.set_result(error(503, f"the journal cannot be written: {problem}; nothing was changed"))


class Writes:
    """The writes that wait for the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Write] = deque()
        self._lock = threading.Lock()
        self.wake: Callable[[], None] = lambda: None
        """Set by the loop."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def submit(self, prepare: Prepare) -> Write:
        """May be called on any thread."""
        write = Write(prepare)
        with self._lock:
            self._waiting.append(write)
        self.wake()
        return write

    def take(self) -> Write | None:
        """The next write; None if there is none."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    async def ask(self, prepare: Prepare) -> Response:
        """The answer to a write, after its commit; 503 if the loop does not answer in time."""
        write = self.submit(prepare)
        answered = asyncio.wrap_future(write.answered)
        done, _ = await asyncio.wait([answered], timeout=WAIT_SECONDS)
        if done:
            return answered.result()
        if write.withdraw():
            return error(503, f"the daemon was busy for {WAIT_SECONDS:g} s; nothing was changed, try again")
        text = f"the daemon has begun this write and not finished it in {WAIT_SECONDS:g} s: its outcome is unknown"
        return error(503, f"{text}; read it back before you try again", outcome="unknown")
