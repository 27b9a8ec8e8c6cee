"""Trains the draws beside one recorded daemon, and keeps of each what it did and what was found.

Design
------
Draws go in chunks to worker processes that import torch once: single processes side by side, ranks under torchrun one
launch at a time. A chunk whose process ends early or hangs loses the draw that it was at, and its rest is started
again. A line of JSON is appended to the results for each draw, so an interrupted measurement continues with the rest.
"""

import contextlib
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

import recording

from caboose_daemon.ops.processes import READY_SECONDS, ProcessError, end, start, tail
from caboose_daemon.out.api.client import Client, ClientError
from caboose_drills import randomised
from caboose_drills.randomised.draw import Draw

CHUNK = 14
PREFIX = "draw"
HANG_SECONDS = 180.0
"""A worker without a line for this long is taken to hang; a busy machine may need most of it to import torch."""
SETTLE_SECONDS = 20.0
STEADY_SECONDS = 0.5
OVER = ("ended", "crashed")


def fingerprint() -> str:
    """Of everything that makes the draws: results of another generator are not continued."""
    files = sorted(Path(randomised.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


@dataclass
class Results:
    """The results in a directory: one JSON line each, and the recordings."""

    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "results.jsonl"

    def load(self) -> dict[str, dict[str, Any]]:
        """The results of this generator, by the draw's id."""
        if not self.file.exists():
            return {}
        lines = [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        return {line["id"]: line for line in lines if line["generator"] == fingerprint()}

    def add(self, result: dict[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**result, "generator": fingerprint()}) + "\n")

    def recording(self, name: str) -> Path:
        return self.directory / "recordings" / f"{name}.z"


@dataclass
class Worker:
    """A process that trains a chunk."""

    todo: list[Draw]
    process: "subprocess.Popen[bytes]"
    log: Path
    lines: "queue.SimpleQueue[bytes | None]" = field(default_factory=queue.SimpleQueue)
    last_line: float = field(default_factory=time.monotonic)
    slots: int = 1

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True).start()


def _read(stream: IO[bytes], lines: "queue.SimpleQueue[bytes | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


class Runs:
    """A daemon and its workers."""

    def __init__(self, results: Results, slots: int, directory: Path) -> None:
        self._results, self._slots, self._directory = results, slots, directory
        self._workers: list[Worker] = []
        self._settling: dict[str, tuple[Draw, dict[str, Any], int, float, float]] = {}
        self._daemon: subprocess.Popen[bytes] | None = None
        self._client = Client("127.0.0.1:0")
        self._endpoint = ""
        self._num_chunks = 0

    def __enter__(self) -> "Runs":
        ready, log = self._directory / "ready.json", self._directory / "daemon.log"
        command = [sys.executable, recording.__file__, str(self._directory), "daemon", "--listen", "tcp://127.0.0.1:0"]
        command += ["--http", "127.0.0.1:0", "--data-dir", str(self._directory / "data"), "--ready-file", str(ready)]
        self._daemon = start(command, self._directory, log, {})
        deadline = time.monotonic() + 4 * READY_SECONDS
        while not ready.exists():
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise ProcessError(f"the daemon did not start:\n{tail(log)}")
            time.sleep(0.1)
        addresses = json.loads(ready.read_text(encoding="utf-8"))
        self._endpoint, self._client = addresses["endpoint"], Client(addresses["url"].rstrip("/"))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process."""
        for worker in self._workers:
            end(worker.process)
        self._workers.clear()
        if self._daemon is not None:
            end(self._daemon)

    def run(self, wanted: Sequence[Draw], on_done: Callable[[str], None]) -> None:
        """Trains all of them; `on_done` is called with each id."""
        waiting = _chunks(wanted)
        while waiting or self._workers or self._settling:
            free = self._slots - sum(worker.slots for worker in self._workers)
            place = next((i for i, chunk in enumerate(waiting) if min(chunk[0].world, self._slots) <= free), None)
            if place is not None:
                self._workers.append(self._launch(waiting.pop(place)))
            for worker in list(self._workers):
                rest = self._follow(worker)
                if rest is not None:
                    self._workers.remove(worker)
                    waiting = [rest, *waiting] if rest else waiting
            for name in self._harvest():
                on_done(name)
            time.sleep(0.05)

    def _launch(self, chunk: list[Draw]) -> Worker:
        self._num_chunks += 1
        file = self._directory / f"chunk-{self._num_chunks}.json"
        file.write_text(json.dumps([draw.plain() for draw in chunk]), encoding="utf-8")
        world, command = chunk[0].world, [sys.executable, "-m"]
        if world > 1:
            command += ["torch.distributed.run", "--nproc-per-node", str(world), "--rdzv-backend", "c10d"]
            command += ["--rdzv-endpoint", "127.0.0.1:0", "-m"]
        command += ["caboose_drills.randomised", str(file), PREFIX]
        log = self._directory / f"chunk-{self._num_chunks}.log"
        env = {"CABOOSE_ENDPOINT": self._endpoint, "OMP_NUM_THREADS": "1", "TMPDIR": str(self._directory)}
        process = start(command, self._directory, log, env, stdout=subprocess.PIPE)
        return Worker(list(chunk), process, log, slots=min(world, self._slots))

    def _follow(self, worker: Worker) -> list[Draw] | None:
        """Reads the worker's lines; None while it runs, then what it left undone."""
        while True:
            try:
                line = worker.lines.get_nowait()
            except queue.Empty:
                if time.monotonic() - worker.last_line < HANG_SECONDS:
                    return None
                return self._lost(worker, "hangs")
            worker.last_line = time.monotonic()
            if line is None:
                worker.process.wait()
                return self._lost(worker, f"exit code {worker.process.returncode}") if worker.todo else []
            message = _parsed(line)
            for draw in [draw for draw in worker.todo if draw.id == message.get("id")]:
                worker.todo.remove(draw)
                did = message.get("done") or {"error": message.get("error", "no result")}
                now = time.monotonic()
                self._settling[draw.id] = (draw, did, -1, now, now)

    def _lost(self, worker: Worker, why: str) -> list[Draw]:
        end(worker.process)
        if not worker.todo:
            return []
        draw, now = worker.todo[0], time.monotonic()
        did = {"error": f"{why}:\n{tail(worker.log)}"}
        self._settling[draw.id] = (draw, did, -1, now, now)
        return worker.todo[1:]

    def _harvest(self) -> Iterator[str]:
        """Keeps what was found in the runs whose last step is judged."""
        for name, (draw, did, steps, since, began) in list(self._settling.items()):
            now, path = time.monotonic(), f"/api/v1/jobs/{PREFIX}-{name}"
            detail = self._get(path) or {"num_steps": -1, "state": ""}
            if detail["num_steps"] != steps:
                self._settling[name] = (draw, did, detail["num_steps"], now, began)
                continue
            is_steady = now - since >= STEADY_SECONDS and detail["state"] in OVER
            if not is_steady and now - began < SETTLE_SECONDS:
                continue
            del self._settling[name]
            findings = self._get(f"{path}/findings") or {"findings": []}
            incidents = self._get(f"{path}/incidents") or {"incidents": []}
            self._keep(draw, did, findings["findings"], incidents["incidents"])
            yield name

    def _keep(self, draw: Draw, did: dict[str, Any], findings: list[Any], incidents: list[Any]) -> None:
        frames = self._directory / f"{PREFIX}-{draw.id}{recording.SUFFIX}"
        with contextlib.suppress(OSError):
            recording.pack(frames, self._results.recording(draw.id))
        self._results.add({"id": draw.id, "did": did, "findings": findings, "incidents": incidents})

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = self._client.get(path)
        except ClientError:
            return None
        return answer


def _chunks(wanted: Sequence[Draw]) -> list[list[Draw]]:
    """Draws of one kind of worker together, in the order in which they were wanted."""
    kinds: dict[tuple[int, str], list[Draw]] = {}
    for draw in wanted:
        kind = draw.loop if draw.loop in ("trainer", "lightning") else ""
        kinds.setdefault((draw.world, kind), []).append(draw)
    chunks = [some[i : i + CHUNK] for some in kinds.values() for i in range(0, len(some), CHUNK)]
    places = {draw.id: place for place, draw in enumerate(wanted)}
    return sorted(chunks, key=lambda chunk: places[chunk[0].id])


def in_mixed_order(chosen: Sequence[Draw]) -> list[Draw]:
    """The draws in a fixed random order, so that a part of them is like the whole."""
    return sorted(chosen, key=lambda draw: hashlib.sha256(f"order {draw.id}".encode()).digest())


def with_twins(chosen: Sequence[Draw], every: Sequence[Draw]) -> list[Draw]:
    """These draws and their healthy twins, which are among these."""
    needed = {draw.base for draw in chosen} | {draw.id for draw in chosen}
    return [draw for draw in every if draw.id in needed]


def _parsed(line: bytes) -> dict[str, Any]:
    """A worker's line; empty for other output."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


@contextlib.contextmanager
def ending(runs: Runs) -> Iterator[None]:
    """Ctrl-C and SIGTERM end all processes, and a second one does not interrupt that."""
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        runs.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, previous)


def num_slots() -> int:
    """Processes that train at the same time."""
    return max(2, len(os.sched_getaffinity(0)))
