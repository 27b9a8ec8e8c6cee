"""Which run of a job a mirror writes to: the same while steps advance, a new one when steps or weights go back.

Design
------
A job restarted from a checkpoint repeats steps. In one curve that would run backwards, so repeated steps start a new
run: `<job>/run-2`. So does a rollback, after which steps advance with older weights: one curve through both would look
as if the run had recovered without help. A restart that continues where the last one ended stays in its run. The
position is kept in a small file beside the runs, for a restarted daemon; one file per job, because daemons of several
jobs may share the directory.
"""

import json
import os
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

FILE = "caboose-run.json"


@dataclass(frozen=True)
class MirrorRun:
    """One run of one job."""

    job: str
    number: int
    last_step: int
    nonce: str
    """Distinguishes it from another run of the same name."""

    @property
    def name(self) -> str:
        """Name of its directory."""
        return f"run-{self.number}"


class RunBook:
    """The runs of one job."""

    def __init__(self, directory: Path, job: str) -> None:
        self.directory = directory / folder_name(job)
        self._job = job
        self._run = self._read()
        self._written = self._run

    @property
    def last(self) -> MirrorRun:
        """The run written last; a new one if there is none."""
        self._run = self._run or self._next(-1)
        return self._run

    def at(self, step: int, rewound_at: int | None = None) -> MirrorRun:
        """The run of this step: a new one if the step was written before, or is the first after a rollback.

        `rewound_at` is the boundary of the rollback that started this step's attempt.
        """
        is_rewound = rewound_at is not None and self._run is not None and self._run.last_step <= rewound_at
        if self._run is None or step <= self._run.last_step or is_rewound:
            self._run = self._next(step)
        else:
            self._run = replace(self._run, last_step=step)
        return self._run

    def save(self) -> None:
        """Saves the position."""
        if self._run is None or self._run == self._written:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        aside = self.directory / f"{FILE}.{os.getpid()}"
        run = self._run
        content = {"job": run.job, "number": run.number, "last_step": run.last_step, "nonce": run.nonce}
        aside.write_text(json.dumps(content) + "\n", encoding="utf-8")
        aside.replace(self.directory / FILE)
        self._written = run

    def _next(self, step: int) -> MirrorRun:
        there = (re.fullmatch(r"run-(\d+)", path.name) for path in self.directory.glob("run-*"))
        used = [int(match.group(1)) for match in there if match] + [self._run.number if self._run else 0]
        return MirrorRun(self._job, max(used) + 1, step, secrets.token_hex(4))

    def _read(self) -> MirrorRun | None:
        try:
            content = json.loads((self.directory / FILE).read_text(encoding="utf-8"))
            run = MirrorRun(
                str(content["job"]), int(content["number"]), int(content["last_step"]), str(content["nonce"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None  # missing or damaged: a new run is always correct
        return run if run.job == self._job else None


def folder_name(job: str) -> str:
    """A job's name as a folder name that cannot leave its parent (no leading dots)."""
    return re.sub(r"[^A-Za-z0-9_.:@-]", "_", re.sub(r"^\.+", lambda dots: "_" * len(dots.group()), job))
