"""A plain progress bar on stderr, for a person at a terminal; nothing at all elsewhere."""

import sys
from types import TracebackType
from typing import TextIO

WIDTH = 24


class ProgressLine:
    """Progress over `total` units of work."""

    def __init__(self, total: int, *, is_shown: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._is_shown = self._stream.isatty() if is_shown is None else is_shown
        self._total = max(1, total)
        self._num_done = 0.0
        self._last = ""

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown and self._last:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def show(self, what: str, num: float = 0) -> None:
        """`num` more units are done; `what` is in progress."""
        self._num_done = min(self._total, self._num_done + num)
        if not self._is_shown:
            return
        share = self._num_done / self._total
        num_filled = int(share * WIDTH)
        line = f"[{'=' * num_filled}{' ' * (WIDTH - num_filled)}] {share:4.0%}  {what}"[:79]
        if line != self._last:
            self._last = line
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()
