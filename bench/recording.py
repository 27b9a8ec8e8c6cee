"""Records what agents send to a daemon, and judges a recording again without training.

    python bench/recording.py DIRECTORY daemon --listen tcp://127.0.0.1:0 ...    # the real daemon, with a tap

Design
------
The tap writes every message with its peer and its time, one file for each job, before the daemon handles it. `replay`
gives the same messages, at the same times, to the daemon's own receiver and pipeline. So a change of the rules is
judged in seconds on runs that took an hour to train.
"""

import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from caboose_daemon.config import Config
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.ingest.receiver import Receiver, Reply
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline, Sink
from caboose_daemon.jobs.state import State
from caboose_daemon.out.api import json_shapes
from caboose_daemon.rollback.commander import Commander
from caboose_daemon.rollback.policy import Policy
from caboose_daemon.rules import RULES
from caboose_wire import Hello, decode
from caboose_wire.codec import HELLO_START

SUFFIX = ".frames"
TURN = 0.1
"""Seconds between two turns of the daemon's loop that has nothing to do."""
LONGEST = 10.0
"""Seconds of silence that are replayed turn by turn; more changes nothing in runs without silent ranks."""
AFTER = 5.0


class Line(msgspec.Struct, frozen=True, array_like=True):
    """A message that arrived."""

    now: float
    peer: bytes
    frames: list[bytes]


class Tap:
    """Writes what arrives; what a peer sends before its Hello waits for it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._jobs: dict[bytes, str] = {}
        self._waiting: dict[bytes, list[Line]] = {}

    def note(self, peer: bytes, frames: Sequence[bytes], now: float) -> None:
        line = Line(now, peer, [bytes(frame) for frame in frames])
        if line.frames and line.frames[0] == HELLO_START:
            hello = decode(line.frames)
            if isinstance(hello, Hello):
                self._jobs[peer] = hello.job
        job = self._jobs.get(peer)
        self._waiting.setdefault(peer, []).append(line)
        if job is not None:
            self._write(job, self._waiting.pop(peer))

    def _write(self, job: str, lines: list[Line]) -> None:
        with (self._directory / f"{job}{SUFFIX}").open("ab") as file:
            for line in lines:
                packed = msgspec.msgpack.encode(line)
                file.write(len(packed).to_bytes(4, "little") + packed)


def pack(source: Path, target: Path) -> None:
    """Compresses a recording that is complete, and removes the source."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(zlib.compress(source.read_bytes(), 6))
    os.replace(partial, target)
    source.unlink()


def read(path: Path) -> Iterator[Line]:
    """The messages of a compressed recording."""
    raw, place = zlib.decompress(path.read_bytes()), 0
    while place < len(raw):
        size = int.from_bytes(raw[place : place + 4], "little")
        yield msgspec.msgpack.decode(raw[place + 4 : place + 4 + size], type=Line)
        place += 4 + size


class Kept(Sink):
    """The last state of every episode and incident."""

    def __init__(self) -> None:
        self.episodes: dict[str, Episode] = {}
        self.incidents: dict[str, Incident] = {}

    def episode_changed(self, job: Job, episode: Episode) -> None:
        self.episodes[str(episode.id)] = episode

    def incident_changed(self, job: Job, incident: Incident) -> None:
        self.incidents[incident.id] = incident


def replay(path: Path) -> tuple[list[Any], list[Any]]:
    """Findings and incidents of a recording, in the shapes of the HTTP API."""
    config, sink = Config(), Kept()
    state = State(rule_configs=config.rules, started=0.0, rules=RULES)
    pipeline = Pipeline(
        state,
        sink,
        min_deadline=config.alignment.min_deadline_seconds,
        deadline_steps=config.alignment.deadline_steps,
        abandoned_seconds=config.daemon.abandoned_seconds,
    )
    policy = Policy(state, pipeline, sink, config.rollback, Commander(sink))
    receiver = Receiver(state, pipeline, policy)

    def turn(now: float) -> list[Reply]:
        replies = receiver.advance(now)
        pipeline.advance(now)
        return replies

    last = 0.0
    for line in read(path):
        now = max(last, line.now - LONGEST)
        while last and now < line.now - TURN:
            now += TURN
            turn(now)
        receiver.handle(line.peer, line.frames, line.now)
        turn(line.now)
        last = line.now
    for number in range(round(AFTER / TURN)):
        turn(last + number * TURN)
    return (
        [json_shapes.episode(episode) for episode in sink.episodes.values()],
        [json_shapes.incident(incident) for incident in sink.incidents.values()],
    )


def main() -> None:
    """Runs the daemon with a tap; the first argument is the directory, the others are the daemon's."""
    tap = Tap(Path(sys.argv[1]))
    handle = Receiver.handle

    def handle_noted(self: Receiver, peer: bytes, frames: Sequence[bytes], now: float, key: str = "") -> list[Reply]:
        tap.note(peer, frames, now)
        return handle(self, peer, frames, now, key)

    Receiver.handle = handle_noted  # type: ignore[method-assign]
    from caboose_daemon.entry import main as daemon

    sys.argv[1:] = sys.argv[2:]
    daemon()


if __name__ == "__main__":
    main()
