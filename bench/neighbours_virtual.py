"""How late the steps of jobs are judged beside one that floods the daemon, in virtual time.

Design
------
On a machine that has other work, a lag over real sockets is that of its scheduler. So here the daemon's own receiver,
alignment, rules and journal run in turns like those of its loop, on a clock that is the CPU time of the thread. A
message is taken from each connection in turn, as ZeroMQ does. Sockets, HTTP and what else a turn costs are not in it.
"""

import math
import tempfile
import time
from collections import deque
from pathlib import Path

import msgspec
from ingest_swarm import RANKS_PER_NODE, Swarm

from caboose_daemon.app import loop
from caboose_wire import Heartbeat, encode
from support.scenario import JournaledCore

FLOOD_SECONDS = 0.0005
"""Between two steps of the job that floods."""
AHEAD = 16
"""Messages of it that wait at a time in each connection; those that do not fit stay with the sender."""


class Connection:
    """What one rank has sent and the daemon has not read."""

    def __init__(self, peer: bytes, job: str) -> None:
        self.peer, self.job = peer, job
        self.waiting: deque[list[bytes]] = deque()


class Virtual:
    """All jobs, and the daemon that judges them."""

    def __init__(self, core: JournaledCore, swarm: Swarm, num_jobs: int) -> None:
        self._core, self._swarm = core, swarm
        self.now = 1.0
        self._judging_seconds = 0.0
        self.lags: list[tuple[float, float]] = []
        """When a step of a neighbour was judged, and how late."""
        self._newest: dict[tuple[str, int], float] = {}
        self._unjudged: dict[str, int] = {}
        """Jobs of which messages were read, and the step that was judged before."""
        self._coming: deque[tuple[float, Connection, list[bytes]]] = deque()
        """What the neighbours will send, in the order of time."""
        self._ready: dict[bytes, Connection] = {}
        """Connections with something to read."""
        self._connections = []
        for number in range(num_jobs * RANKS_PER_NODE):
            peer, hello = b"%d" % number, swarm.hello(number)
            core.receiver.handle(peer, encode(hello), self.now + number / 70)  # no faster than new jobs are taken
            self._connections.append(Connection(peer, hello.job))
        self.now += num_jobs * RANKS_PER_NODE / 70
        for connection in self._connections:
            core.receiver.handle(connection.peer, encode(Heartbeat(step=0)), self.now)
        self._flood, self._flood_step = self._connections[-RANKS_PER_NODE:], 0

    def sends(self, number: int, step: int, at: float) -> None:
        """A rank of a neighbour will report a step then."""
        connection = self._connections[number]
        report = self._swarm.report(number % RANKS_PER_NODE, step)
        report = msgspec.structs.replace(report, time=at)
        self._coming.append((at, connection, [bytes(frame) for frame in encode(report)]))
        key = (connection.job, step)
        self._newest[key] = max(at, self._newest.get(key, 0.0))

    def floods(self, since: float) -> None:
        """The flooding job has sent what fits into its connections."""
        while since + self._flood_step * FLOOD_SECONDS <= self.now and len(self._flood[0].waiting) < AHEAD:
            self._flood_step += 1
            for rank, connection in enumerate(self._flood):
                frames = [bytes(frame) for frame in encode(self._swarm.report(rank, self._flood_step))]
                connection.waiting.append(frames)
                self._ready[connection.peer] = connection

    def run(self, end: float, flood_since: float = math.inf) -> float:
        """Turns until this time; how much of it the daemon was busy."""
        began, busy = self.now, 0.0
        while self.now < end:
            if self.now >= flood_since:
                self.floods(flood_since)
            used = self._turn()
            busy += used
            self.now += used
            self._note()
            if not self._core.pipeline.is_crowded:
                self._rest(end, is_flooded=self.now >= flood_since)
        return busy / (self.now - began)

    def _rest(self, end: float, *, is_flooded: bool) -> None:
        """Until the next message, where none is left."""
        self._arrive()
        if not self._ready:
            rested = self.now + loop.REST_SECONDS
            coming = self._coming[0][0] if self._coming else end
            self.now = rested if is_flooded else max(rested, min(coming, end))

    def _arrive(self) -> None:
        """What was sent until now can be read."""
        while self._coming and self._coming[0][0] <= self.now:
            _, connection, frames = self._coming.popleft()
            connection.waiting.append(frames)
            self._ready[connection.peer] = connection

    def _turn(self) -> float:
        self._arrive()
        began, num = time.thread_time(), 0
        most = self._judging_seconds if self._core.pipeline.is_crowded else math.inf
        while self._ready and num < loop.MAX_PER_TURN and time.thread_time() - began < most:
            for connection in list(self._ready.values()):
                self._unjudged.setdefault(connection.job, -1)
                self._core.receiver.handle(connection.peer, connection.waiting.popleft(), self.now)
                num += 1
                if not connection.waiting:
                    del self._ready[connection.peer]
        before = time.thread_time()
        self._core.pipeline.advance(self.now)
        self._judging_seconds = time.thread_time() - before
        self._core.journal.commit(self.now)
        return time.thread_time() - began

    def _note(self) -> None:
        for name, before in list(self._unjudged.items()):
            job = self._core.state.jobs[name]
            if job.recent and job.recent[-1].step != before:
                step = self._unjudged[name] = job.recent[-1].step
                if (name, step) in self._newest:
                    self.lags.append((self.now, self.now - self._newest.pop((name, step))))
                if job.attempt is not None and not job.attempt.aligner.is_open:
                    del self._unjudged[name]


def measure(num_jobs: int, step_seconds: float, steps: int, layers: int) -> dict[str, tuple[list[float], float]]:
    """Lags in order of size, and the share of time that the daemon was busy; alone and beside the flood."""
    plan = {"job": "job", "jobs": True, "world": RANKS_PER_NODE, "layers": layers, "sample_every": 10**9}
    swarm = Swarm("inproc://nobody", 0, 0, plan)
    with tempfile.TemporaryDirectory() as home:
        core = JournaledCore(Path(home) / "journal.sqlite")
        virtual = Virtual(core, swarm, num_jobs + 1)
        start = virtual.now + 1.0
        for step in range(2 * steps):
            for job in range(num_jobs):
                at = start + (step + job / num_jobs) * step_seconds
                for rank in range(RANKS_PER_NODE):
                    virtual.sends(job * RANKS_PER_NODE + rank, step + 1, at + 0.0002 * rank)
        middle = start + steps * step_seconds
        found = {}
        for name, since, end in (
            ("alone", math.inf, middle),
            ("beside a flood", middle, middle + steps * step_seconds),
        ):
            busy = virtual.run(end, since)
            first = end - steps * step_seconds + 1.0
            found[name] = (sorted(lag for at, lag in virtual.lags if first <= at < end), busy)
        core.close()
    return found
