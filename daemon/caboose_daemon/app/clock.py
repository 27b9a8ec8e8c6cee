"""The daemon's clock: wall clock time that never jumps."""

import time


class SteadyClock:
    """Unix time at the start, advanced by the monotonic clock: a corrected wall clock makes no rank look silent."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return self._offset + time.monotonic()
