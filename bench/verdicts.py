"""What the rules raise in many logs: judged by several processes, and remembered until code or log changes.

Design
------
A verdict depends on the log, the thresholds and the code of the daemon, and on nothing else. The three are hashed, and
verdicts are kept in one file per code and thresholds under `build/bench-verdicts/`, a line per log. A change of any
source file of the daemon starts a new file; the files of the ten last versions are kept.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

import caboose_daemon
from caboose_daemon.config import Config
from caboose_daemon.offline.replay.logs import Log
from caboose_daemon.offline.replay.player import play

CACHE = Path("build/bench-verdicts")
KEPT = 10
JUDGING = ("rules", "steps", "jobs", "incidents", "diagnosis", "offline/replay")
"""Folders of the daemon that a verdict depends on."""
AHEAD = 64
"""Logs that wait for a process, at most: they are made as they are needed."""


class Raised(NamedTuple):
    """A finding above info."""

    rule: str
    step: int
    is_page: bool


def judged(log: Log, config: Config) -> list[Raised]:
    """Every finding above info in a log."""
    return [Raised(f.rule, f.step, f.severity == "critical") for f in play(log, config.rules).findings]


def progress(text: str) -> None:
    """Rewrites one line on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Verdicts:
    """Judges logs by one configuration."""

    def __init__(self, config: Config, processes: int = 2, *, cache: Path | None = CACHE) -> None:
        self._config = config
        self._processes = processes
        self._known: dict[str, list[Raised]] = {}
        self._path = None if cache is None else cache / f"{_hash_of_code(config)}.jsonl"
        if self._path is not None:
            self._open(self._path)

    def of(self, logs: Iterable[tuple[str, Log]], total: int | None = None) -> Iterator[list[Raised]]:
        """The verdict on each log, in order; `logs` are pairs of a name, which is shown, and a log."""
        start = time.monotonic()
        with ProcessPoolExecutor(self._processes, initializer=_set_config, initargs=(self._config,)) as pool:
            waiting: list[tuple[str, str, Future[list[Raised]] | None]] = []
            for num, (name, log) in enumerate(logs, start=1):
                key = _hash_of(log)
                is_new = key not in self._known
                waiting.append((name, key, pool.submit(_judge, log) if is_new else None))
                while len(waiting) > AHEAD:
                    yield self._take(waiting.pop(0))
                _show(name, num, total, time.monotonic() - start)
            for entry in waiting:
                yield self._take(entry)
        progress("")

    def _take(self, entry: tuple[str, str, Future[list[Raised]] | None]) -> list[Raised]:
        _, key, future = entry
        if future is None:
            return self._known[key]
        raised = self._known[key] = [Raised(*values) for values in future.result()]
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, raised]) + "\n")
        return raised

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        for old in sorted(path.parent.glob("*.jsonl"), key=os.path.getmtime)[:-KEPT]:
            old.unlink()
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                key, raised = json.loads(line)
            except ValueError:
                continue  # a run was stopped while it wrote
            self._known[key] = [Raised(*values) for values in raised]


def _show(name: str, num: int, total: int | None, seconds: float) -> None:
    if not total:
        progress(f"{num} logs, {seconds:.0f} s: {name}")
        return
    bar = "#" * (30 * num // total)
    left = seconds / num * (total - num)
    progress(f"[{bar:<30}] {num} of {total}, about {left:.0f} s left: {name}")


_config: Config | None = None


def _set_config(config: Config) -> None:
    global _config
    _config = config


def _judge(log: Log) -> list[Raised]:
    assert _config is not None, "set when the process started"
    return judged(log, _config)


def _hash_of_code(config: Config) -> str:
    root = Path(caboose_daemon.__file__).parent
    digest = hashlib.sha256(repr(sorted(config.rules.items())).encode())
    for folder in JUDGING:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _hash_of(log: Log) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(log.steps).tobytes())
    for name, column in sorted(log.columns.items()):
        has = column.is_logged
        digest.update(name.encode() + has.tobytes() + np.where(has, column.values, 0.0).tobytes())
    digest.update(repr((sorted(log.restarts), log.is_stepwise, sorted(log.events))).encode())
    return digest.hexdigest()[:24]
