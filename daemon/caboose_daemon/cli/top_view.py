"""The state of `caboose top`: the jobs, and the open job's detail.

Design
------
Jobs, and the open job's ranks, incidents and decisions, are small and read at every refresh. The curves of a long run
are not: they are read again only after 20 times as long as the last answer took; meanwhile each refresh appends the
newest step. If the daemon does not answer, the screen keeps the last values, with a line that reports it.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.cli.jobs import worst_first
from caboose_daemon.format import to_float
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import DaemonSource

Json = dict[str, Any]
POINTS = 600
REST = 20.0
"""Curves are not read again for this many times the duration of the last answer."""


@dataclass
class View:
    """The jobs, and the one that is open."""

    source: DaemonSource
    job: str | None = None
    """The open job; None shows all."""
    chosen: int = 0
    jobs: list[Json] = field(default_factory=list)
    detail: Json | None = None
    incidents: list[Json] = field(default_factory=list)
    decisions: list[Json] = field(default_factory=list)
    steps: list[Json] = field(default_factory=list)
    problem: str = ""
    """Why the values shown are old; empty if they are not."""
    is_log: bool = False
    _steps_of: str = ""
    _next_steps: float = 0.0

    def refresh(self) -> None:
        """Asks the daemon; without an answer, the last values stay."""
        try:
            self._take(self.source.jobs())
            if self.job is not None:
                self._refresh_job(self.job)
            self.problem = ""
        except RunError as error:
            self.problem = str(error)
        self.chosen = max(0, min(self.chosen, len(self.jobs) - 1))

    def _take(self, jobs: list[Json]) -> None:
        """The jobs, the worst first; the marked one stays marked."""
        marked = self.jobs[self.chosen]["job"] if self.chosen < len(self.jobs) else None
        self.jobs = worst_first(jobs)
        names = [row["job"] for row in self.jobs]
        if marked in names and self.chosen:
            self.chosen = names.index(marked)

    def _refresh_job(self, job: str) -> None:
        self.detail = self.source.detail(job)
        self.incidents = self.source.incidents(job)
        self.decisions = self.source.decisions(job)
        now = time.monotonic()
        if self._steps_of != job or now >= self._next_steps:
            self.steps = self.source.series(job, POINTS)
            took = time.monotonic() - now
            self._steps_of, self._next_steps = job, time.monotonic() + REST * took
        last = self.detail["last"] if self.detail else None
        if last is not None and (not self.steps or last["step"] > self.steps[-1]["step"]):
            self.steps.append({**last, "grad_norm_max": last["grad_norm"]})

    def open(self) -> None:
        """Opens the marked job."""
        if self.job is None and self.jobs:
            self.job = str(self.jobs[self.chosen]["job"])
            self.detail, self.incidents, self.decisions, self.steps = None, [], [], []

    def press(self, key: str) -> bool:
        """Handles a key; False if it ends the command."""
        if key == "q":
            return False
        if key in ("up", "down") and self.job is None:
            self.chosen = max(0, min(self.chosen + (1 if key == "down" else -1), len(self.jobs) - 1))
        elif key == "enter":
            self.open()
        elif key == "back":
            self.job = None
        elif key == "l":
            self.is_log = not self.is_log
        return True

    def curve(self, name: str) -> list[float]:
        """One column of the steps, NaN where not finite; a norm that was not taken keeps its last value."""
        values: list[float] = []
        for step in self.steps:
            value = step.get(name)
            is_kept = value is None and name != "loss" and not step.get("num_bad") and values
            values.append(values[-1] if is_kept else to_float(value))
        return values

    def as_object(self) -> Json:
        found: Json = {"time": time.time(), "problem": self.problem, "jobs": self.jobs}
        if self.job is not None:
            found |= {"job": self.job, "detail": self.detail, "incidents": self.incidents}
        return found
