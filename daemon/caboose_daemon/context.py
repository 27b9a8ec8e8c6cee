"""What the HTTP side may touch of a running daemon."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.history import HistoryReader
from caboose_daemon.live import Broker
from caboose_daemon.pipeline import Pipeline
from caboose_daemon.state import State
from caboose_daemon.thresholds import Thresholds


@dataclass
class Context:
    """Handed to every endpoint."""

    state: State
    pipeline: Pipeline
    thresholds: Thresholds
    broker: Broker
    history: HistoryReader
    clock: Callable[[], float]
    is_receiving: Callable[[], bool]
    _history_lock: threading.Lock = field(default_factory=threading.Lock)

    def series(self, job: str, points: int) -> list[dict[str, Any]]:
        """A job's curves; one reader at a time on the journal's reading connection."""
        with self._history_lock:
            return self.history.series(job, points)

    def problems(self) -> list[str]:
        """What keeps the daemon from doing its work."""
        problems = []
        if not self.is_receiving():
            problems.append("the receiving loop has stopped")
        if self.state.journal_error:
            problems.append(f"the journal cannot be written: {self.state.journal_error}")
        return problems
