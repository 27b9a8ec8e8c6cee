"""How long things take on a machine that has other things to do."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def run_queue_seconds() -> float:
    """How long threads of this process were ready to run and had no core, so far: what a busy machine adds.

    All of them, because a thread that lost its core while it held the interpreter's lock makes the others wait as well.
    """
    waited = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            waited += int(task.read_text().split()[1])
    return waited / 1e9


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes, less waits for a core."""
    waited, begun = run_queue_seconds(), time.monotonic()
    call()
    return time.monotonic() - begun - max(0.0, run_queue_seconds() - waited)
