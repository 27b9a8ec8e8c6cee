"""What the ranks of a run wrote, read while they run, and when each of their processes ended."""

import contextlib
import json
import os
import select
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Life:
    """One process of one rank; torchrun may restart it."""

    rank: int
    restart: int
    pid: int = 0
    losses: list[str] = field(default_factory=list)
    rollbacks: list[int] = field(default_factory=list)
    """The boundaries at which it went back."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    ended: float | None = None
    """When its training loop ended, by the monotonic clock of this machine."""
    exited: float | None = None
    waited: float = 0.0
    """Of the seconds between the two, those in which a thread of it waited for a core: what a busy machine adds."""
    _waits_before: dict[str, int] = field(default_factory=dict)

    def sample_waits(self) -> None:
        """Called while the process ends; the last call before its end counts."""
        for thread in Path(f"/proc/{self.pid}/task").glob("*"):
            with contextlib.suppress(OSError, IndexError):
                waited = int((thread / "schedstat").read_text().split()[1])
                before = self._waits_before.setdefault(thread.name, waited)
                self.waited = max(self.waited, (waited - before) / 1e9)

    def answered(self, *outcomes: str) -> set[int]:
        """The commands that it answered so."""
        return {answer["command"] for answer in self.answers if answer["outcome"] in outcomes}


class Ranks:
    """All lives of all ranks of one run; `read` takes in what is new."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._positions: dict[Path, int] = {}
        self._lives: dict[Path, Life] = {}
        self._lock = threading.Lock()
        self._watching: dict[int, Life] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def lives(self) -> list[Life]:
        self.read()
        return sorted(self._lives.values(), key=lambda life: (life.restart, life.rank))

    @property
    def newest(self) -> list[Life]:
        """The lives of the last restart."""
        lives = self.lives
        last = max((life.restart for life in lives), default=0)
        return [life for life in lives if life.restart == last]

    def step(self, restart: int = 0) -> int:
        """The step that all ranks of a restart have reached; 0 before the first."""
        lives = [life for life in self.lives if life.restart >= restart]
        return min((len(life.losses) for life in lives), default=0) if len(lives) >= 2 else 0

    def most(self) -> int:
        """The step that the first rank of the newest lives has reached."""
        return max((len(life.losses) for life in self.newest), default=0)

    def read(self) -> None:
        with self._lock:
            for path in self._out.glob("rank*.jsonl"):
                self._read(path)

    def _read(self, path: Path) -> None:
        if path not in self._lives:
            rank, restart = path.name.removeprefix("rank").split(".")[:2]
            self._lives[path] = Life(int(rank), int(restart))
        life, position = self._lives[path], self._positions.get(path, 0)
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._positions[path] = position + len(whole)
        for line in whole.splitlines():
            self._take(life, json.loads(line))

    def _take(self, life: Life, line: dict[str, Any]) -> None:
        kind = line["kind"]
        if kind == "begin":
            life.pid = line["pid"]
            try:
                self._watching[os.pidfd_open(life.pid)] = life
            except ProcessLookupError:  # gone already
                life.exited = time.monotonic()
        elif kind == "step":
            life.losses.append(line["loss"])
        elif kind == "rollback":
            life.rollbacks.append(line["step"])
        elif kind == "answer":
            life.answers.append(line)
        elif kind == "end":
            life.ended = line["at"]

    def _watch(self) -> None:
        """Notes when processes end."""
        while not self._is_closed:
            self.read()
            for life in list(self._watching.values()):
                if life.ended is not None:
                    life.sample_waits()
            poll = select.poll()
            for descriptor in list(self._watching):
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(20) if self._watching else []:
                self._watching.pop(descriptor).exited = time.monotonic()
                os.close(descriptor)
            if not self._watching:
                time.sleep(0.02)

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(5)
        for descriptor in self._watching:
            os.close(descriptor)


def exit_seconds(lives: list[Life]) -> float:
    """From the end of the training loop to the end of the process, of the slower rank.

    The longest wait of one thread for a core is not counted: the ranks leave together, so each waits for that thread.
    """
    seconds = max((life.exited - life.ended for life in lives if life.exited and life.ended), default=0.0)
    return max(0.0, seconds - max((life.waited for life in lives), default=0.0))
