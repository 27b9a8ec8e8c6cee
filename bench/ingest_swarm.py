"""Simulated ranks on real sockets: Hello, heartbeats, and a report of each step, at the times that it is given.

    python bench/ingest_swarm.py ENDPOINT FIRST COUNT '{"world": 512, "layers": 200, ...}'

Design
------
One process for several hundred ranks, one thread. Reports are like an agent's: the norms of the rank's part of the
layers at every step, on sampled steps also what `rules.Workload` has for them. A step's arrays are made once and shared
by the ranks, so that the swarm costs less than the daemon that is measured. With `endpoints` in the plan each node
reports to one of them, and the ranks of a node one after the other, as a collective at the end of a step makes them.
With `jobs` in the plan each node is a job of its own. With `ends` the ranks send a Bye after the last step.
"""

import json
import random
import select
import sys
import time
from typing import Any

import numpy as np
import zmq

from caboose_wire import (
    Batch,
    Bye,
    Group,
    Heartbeat,
    Hello,
    HelloRequest,
    Layer,
    Mode,
    Module,
    Phases,
    StepReport,
    decode,
    encode,
)
from caboose_wire.messages import HISTOGRAM_BINS

VISIBLE = ("loss", "lr", "phases", "weights", "modes", "gradients", "local_gradients", "fingerprint", "activations")
HEARTBEAT_SECONDS = 2.0
RANKS_PER_NODE = 8


class Swarm:
    """These ranks of a job."""

    def __init__(self, endpoint: str, first: int, count: int, plan: dict[str, Any]) -> None:
        self.plan, self.first = plan, first
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, count + 64)
        self.sockets = [self.context.socket(zmq.DEALER) for _ in range(count)]
        self.poller = zmq.Poller()
        endpoints = plan.get("endpoints") or [endpoint]
        for number, socket in enumerate(self.sockets):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 100)
            socket.connect(endpoints[(first + number) // RANKS_PER_NODE % len(endpoints)])
            self.poller.register(socket, zmq.POLLIN)
        self.ranks = {socket: first + number for number, socket in enumerate(self.sockets)}
        num = plan["layers"]
        self.layers = tuple(Layer(name=f"model.layers.{i}.weight", numel=1_000_000, kind="Linear") for i in range(num))
        self.modules = tuple(Module(name=f"model.layers.{i}", kind="GELU", num_units=1024) for i in range(num // 2))
        self.num_dropped = 0

    def place(self, number: int) -> tuple[str, int]:
        """The job of a rank, and its number there."""
        if not self.plan.get("jobs"):
            return self.plan["job"], number
        return f"{self.plan['job']}-{number // RANKS_PER_NODE}", number % RANKS_PER_NODE

    def hello(self, number: int) -> Hello:
        """What a rank introduces itself with."""
        job, rank = self.place(number)
        return Hello(
            job=job,
            rank=rank,
            world=self.plan["world"],
            host=f"node{number // RANKS_PER_NODE}",
            pid=1000 + number,
            incarnation=f"incarnation-{number}",
            launch="launch-1",
            layers=self.layers,
            groups=(Group(name="0", optimizer="AdamW", settings={"lr": 3e-4}),),
            modules=self.modules,
            visible=VISIBLE,
            wrapper="DistributedDataParallel",
            is_batching=True,
        )

    def introduce(self) -> None:
        """Sends every Hello."""
        for socket, rank in self.ranks.items():
            socket.send_multipart(encode(self.hello(rank)))

    def answer(self) -> None:
        """Reads what the daemon sent, and introduces again whom it does not know."""
        for socket, _ in self.poller.poll(0):
            while socket.poll(0):
                if isinstance(decode(socket.recv_multipart()), HelloRequest):
                    socket.send_multipart(encode(self.hello(self.ranks[socket])))

    def wait(self) -> str:
        """The line that starts the run; until then the ranks live, so that one that had to wait is admitted."""
        next_heartbeat = time.time() + HEARTBEAT_SECONDS
        while not select.select([sys.stdin], [], [], 0.05)[0]:
            self.answer()
            if time.time() >= next_heartbeat:
                next_heartbeat = time.time() + HEARTBEAT_SECONDS
                for socket in self.ranks:
                    self.send(socket, encode(Heartbeat(step=0)))
        return sys.stdin.readline()

    def run(self) -> None:
        """Every step at its time, the ranks spread over `spread` seconds."""
        plan, draw = self.plan, random.Random(self.first)  # noqa: S311 - an order
        ranks = list(self.ranks.items())
        together = RANKS_PER_NODE if plan.get("endpoints") or plan.get("jobs") else 1
        nodes = [ranks[at : at + together] for at in range(0, len(ranks), together)]
        next_heartbeat = time.time() + HEARTBEAT_SECONDS
        for step in range(1, plan["steps"] + 1):
            begins = plan["start"] + step * plan["step_seconds"]
            draw.shuffle(nodes)
            order = [one for node in nodes for one in node]
            for number, (socket, rank) in enumerate(order):
                wait = begins + plan["spread"] * number / len(order) - time.time()
                if wait > 0.002:
                    time.sleep(wait)
                self.send(socket, encode(self.report(self.place(rank)[1], step)))
            self.answer()
            if time.time() >= next_heartbeat:
                next_heartbeat = time.time() + HEARTBEAT_SECONDS
                for socket, _ in order:
                    self.send(socket, encode(Heartbeat(step=step)))
        for socket in self.ranks if plan.get("ends") else ():
            socket.send_multipart(encode(Bye(step=plan["steps"])))

    def send(self, socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self.num_dropped += 1

    def report(self, rank: int, step: int) -> StepReport:
        """A healthy report."""
        is_sampled = step % self.plan["sample_every"] == 0
        arrays, slices = self.arrays(rank, step, is_sampled=is_sampled)
        return StepReport(
            attempt=0,
            seq=step,
            step=step,
            model_step=step,
            time=time.time(),
            loss=2.0 + 0.01 * (rank % 7),
            num_samples=32,
            num_tokens=65536,
            lr=(3e-4,),
            phases=Phases(1.1, 0.02, 0.3, 0.7, 0.05, 0.0, 0.01, 0.02),
            local_grad_norm=1.5 if is_sampled else None,
            agent_seconds=0.001,
            is_sampled=is_sampled,
            sample_every=self.plan["sample_every"],
            num_scheduler_steps=step,
            batch=Batch(step, 0, (32, 2048)),
            mode=Mode(),
            fingerprint=12345 + step if is_sampled else None,
            slices=slices,
            arrays=arrays,
        )

    def arrays(self, rank: int, step: int, *, is_sampled: bool) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
        """The rank's part of the layers; on a sampled step all that an agent sends then."""
        num, world = len(self.layers), self.plan["world"]
        first = (rank + step) * num // world % num
        mine = min(max(1, num // world), num - first)
        norms = np.full(mine, 0.1, dtype=np.float32)
        arrays, slices = {"grad_norm": norms}, {"grad_norm": (first, 1)}
        if not is_sampled:
            return arrays, slices
        for name in ("grad_zero_fraction", "weight_norm", "update_ratio"):
            arrays[name], slices[name] = norms * 0.01, (first, 1)
        for name in ("grad_histogram", "weight_histogram"):
            arrays[name] = np.full((mine, HISTOGRAM_BINS), 1 / HISTOGRAM_BINS, dtype=np.float32)
            slices[name] = (first, 1)
        arrays["local_grad_norm"] = np.full(num, 0.1, dtype=np.float32)
        arrays["layer_fingerprint"] = np.arange(num, dtype=np.float32) + step
        for name in ("std", "max", "zero_fraction", "saturated", "dead"):
            arrays[f"activation_{name}"] = np.full(len(self.modules), 0.1, dtype=np.float32)
        bins = np.full((len(self.modules), HISTOGRAM_BINS), 1 / HISTOGRAM_BINS, dtype=np.float32)
        arrays["activation_histogram"] = bins
        arrays["activation_order"] = np.arange(len(self.modules), dtype=np.float32)
        return arrays, slices


def main() -> int:
    """Introduces the ranks, waits for the start and reports."""
    endpoint, first, count, plan = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    swarm = Swarm(endpoint, first, count, plan)
    swarm.introduce()
    sys.stdout.write("introduced\n")
    sys.stdout.flush()
    plan["start"] = float(swarm.wait())
    swarm.run()
    sys.stdout.write(json.dumps({"num_dropped": swarm.num_dropped}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()  # connected until everything was read
    return 0


if __name__ == "__main__":
    sys.exit(main())
