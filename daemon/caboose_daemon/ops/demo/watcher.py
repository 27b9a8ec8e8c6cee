"""What the demo knows of its run, asked from the daemon's API as any client would."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.format import to_float
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import DaemonSource

POINTS = 2000


@dataclass
class Watcher:
    """The run as of the last `look`."""

    source: DaemonSource
    job: str
    detail: dict[str, Any] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Newest first."""

    @property
    def page(self) -> str:
        """Where the run's live page is."""
        return f"{self.source.where}/?job={self.job}"

    def look(self) -> None:
        """Asks the daemon; keeps what it knew if it does not answer in time."""
        with contextlib.suppress(RunError):
            self.detail = self.source.detail(self.job)
            self.incidents = self.source.incidents(self.job)
            self.decisions = self.source.decisions(self.job)
            self.steps = self.source.series(self.job, POINTS)

    def curve(self, name: str) -> list[float]:
        """One column of the steps; a number that is not taken on every step keeps its last value."""
        values: list[float] = []
        for step in self.steps:
            value = step.get(name)
            values.append(values[-1] if value is None and values else to_float(value))
        return values
