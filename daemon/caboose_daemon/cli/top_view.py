"""What `caboose top` knows at a moment, and which job it looks at.

Design
------
Jobs, and of the one that is looked at its ranks, incidents and decisions, are asked for at every look: they are small.
The curves of a long run are not: they are asked for again only once twenty times as long has passed as the last
answer took, and meanwhile each look's newest step is put at their end. A daemon that does not answer leaves what was
known on the screen, with a line that says so.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from caboose_daemon.format import to_float
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import DaemonSource

Json = dict[str, Any]
POINTS = 600
REST = 20.0
"""How many times as long as an answer took the curves are left alone."""


@dataclass
class View:
    """The jobs, and the one that was opened."""

    source: DaemonSource
    job: str | None = None
    """The one that is looked at; None shows all."""
    chosen: int = 0
    jobs: list[Json] = field(default_factory=list)
    detail: Json | None = None
    incidents: list[Json] = field(default_factory=list)
    decisions: list[Json] = field(default_factory=list)
    steps: list[Json] = field(default_factory=list)
    problem: str = ""
    """Why what is shown is old."""
    is_log: bool = False
    _steps_of: str = ""
    _next_steps: float = 0.0

    def look(self) -> None:
        """Asks the daemon; what it does not answer stays as it was."""
        try:
            self.jobs = self.source.jobs()
            if self.job is not None:
                self._look_at(self.job)
            self.problem = ""
        except RunError as error:
            self.problem = str(error)
        self.chosen = max(0, min(self.chosen, len(self.jobs) - 1))

    def _look_at(self, job: str) -> None:
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
        """Looks at the job that is marked."""
        if self.job is None and self.jobs:
            self.job = str(self.jobs[self.chosen]["job"])
            self.detail, self.incidents, self.decisions, self.steps = None, [], [], []

    def press(self, key: str) -> bool:
        """What a key does; False where it ends the command."""
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
        """One column of the steps: a gap where it was not finite; a norm that was not taken stands until one is."""
        values: list[float] = []
        for step in self.steps:
            value = step.get(name)
            is_kept = value is None and name != "loss" and not step.get("num_bad") and values
            values.append(values[-1] if is_kept else to_float(value))
        return values

    def as_object(self) -> Json:
        """For programs."""
        found: Json = {"time": time.time(), "problem": self.problem, "jobs": self.jobs}
        if self.job is not None:
            found |= {"job": self.job, "detail": self.detail, "incidents": self.incidents}
        return found
