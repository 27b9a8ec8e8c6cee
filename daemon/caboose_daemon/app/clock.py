"""The daemon's clock: reads like the wall clock, but never jumps."""

import time


class SteadyClock:
    """Unix time at the start, advanced by the monotonic clock, so that a corrected wall clock makes nobody silent."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now, in seconds since the epoch."""
        return self._offset + time.monotonic()
