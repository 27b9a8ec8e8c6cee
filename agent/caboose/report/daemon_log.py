"""Log lines that a daemon causes: few, short, and without its control characters.

Design
------
Whoever answers at the endpoint chooses how many messages come and what is in them, and the log belongs to the training
run. So every line that a message of the daemon causes goes through one `DaemonLog` of the process: at most
`MAX_PER_MINUTE` lines a minute and `MAX_LINES` in all, then a line that states it. Words of the daemon are escaped and
cut, there and in the text of exceptions. Used on the sender's, the helper's and the training thread; a line too many in
a race is harmless, so there is no lock.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger("caboose")

MAX_PER_MINUTE = 10
MAX_LINES = 100
MAX_CHARACTERS = 200


def printable(text: str, limit: int = MAX_CHARACTERS) -> str:
    """The text on one line: what does not print is escaped, and what is longer is cut."""
    cut = text[:limit]
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return f"{escaped[:limit]}..." if len(escaped) > limit or len(text) > limit else escaped


class DaemonLog:
    """Limits the lines of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=MAX_PER_MINUTE)
        self._num_lines = 0
        self._has_warned = False

    def log(self, level: int, text: str, *words: object) -> None:
        """Logs a line, unless there were too many; texts among `words` are made printable."""
        if not logger.isEnabledFor(level):
            return
        now = self._clock()
        is_fast = len(self._times) == MAX_PER_MINUTE and now - self._times[0] < 60.0
        if is_fast or self._num_lines >= MAX_LINES:
            self._warn()
            return
        self._times.append(now)
        self._num_lines += 1
        logger.log(level, text, *(printable(word) if isinstance(word, str) else word for word in words))

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = "caboose: the daemon's messages cause too many lines; %d a minute and %d in all are logged"
            logger.warning(text, MAX_PER_MINUTE, MAX_LINES)


daemon_log = DaemonLog()
"""Of this process."""
