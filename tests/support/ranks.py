"""Simulated ranks: they speak the real wire over real sockets, without torch."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import zmq

from caboose_wire import Group, Hello, Layer, Message, Phases, StepReport, decode, encode

EVERYTHING = ("loss", "lr", "phases", "weights", "modes", "gradients", "local_gradients", "activations", "clipping")
"""What an agent that is blind to nothing says it sees."""
LAYERS = tuple(Layer(name=f"blocks.{i}.weight", numel=100 * (i + 1), kind="Linear") for i in range(4))


def a_hello(**changes: Any) -> Hello:
    """A Hello; a test names only what it is about."""
    rank = changes.get("rank", 0)
    fields: dict[str, Any] = {
        "job": "train",
        "rank": rank,
        "world": 2,
        "host": f"node{rank}",
        "pid": 100 + rank,
        "incarnation": f"incarnation-{rank}",
        "launch": "run-1",
        "layers": LAYERS,
        "groups": (Group(name="0", optimizer="AdamW", settings={"lr": 1e-3}),),
        "visible": ("loss", "lr", "phases", "gradients", "local_gradients"),
        "wrapper": "DistributedDataParallel",
    }
    return Hello(**{**fields, **changes})


def a_report(step: int = 1, **changes: Any) -> StepReport:
    """A healthy report of one step."""
    norms = np.linspace(0.1, 0.4, len(LAYERS), dtype=np.float32)
    fields: dict[str, Any] = {
        "attempt": 0,
        "seq": step,
        "step": step,
        "model_step": step,
        "time": 1000.0 + step,
        "loss": 2.0,
        "lr": (1e-3,),
        "phases": Phases(total=0.1, data=0.01, forward=0.03, backward=0.05, optimizer=0.01),
        "agent_seconds": 0.0005,
        "arrays": {"grad_norm": norms},
    }
    return StepReport(**{**fields, **changes})


class SimulatedRank:
    """A DEALER that says what a test tells it to."""

    def __init__(self, socket: "zmq.Socket[bytes]", hello: Hello) -> None:
        self.socket = socket
        self.hello = hello

    def send(self, message: Message) -> None:
        """Sends one message."""
        self.socket.send_multipart(encode(message))

    def send_raw(self, frames: list[bytes]) -> None:
        """Sends whatever bytes."""
        self.socket.send_multipart(frames)

    def receive(self, timeout: float = 5.0) -> Message | None:
        """The next message from the daemon; None if there is none in time."""
        if not self.socket.poll(int(timeout * 1000)):
            return None
        return decode(self.socket.recv_multipart())


@contextlib.contextmanager
def simulated_ranks(
    endpoint: str,
    world: int,
    hello: Mapping[str, Any] | None = None,
    *,
    per_host: int = 1,
    endpoints: Sequence[str] = (),
) -> Iterator[list[SimulatedRank]]:
    """Connected and introduced ranks, whose sockets are closed afterwards; `endpoints` are taken in turn, by host."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, max(1023, world + 1))
    ranks = []
    try:
        for rank in range(world):
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 500)
            socket.connect(endpoints[rank // per_host % len(endpoints)] if endpoints else endpoint)
            fields = {"rank": rank, "world": world, "host": f"node{rank // per_host}", **(hello or {})}
            if "job" in fields:  # two jobs are never the same processes
                fields.setdefault("incarnation", f"incarnation-{rank}-{fields['job']}"[:64])
            simulated = SimulatedRank(socket, a_hello(**fields))
            simulated.send(simulated.hello)
            ranks.append(simulated)
        yield ranks
    finally:
        for simulated in ranks:
            simulated.socket.close()
        context.term()


def send_steps(ranks: list[SimulatedRank], first: int, last: int, **changes: Any) -> None:
    """Every rank reports these steps, with a little scatter around a loss of 2."""
    for step in range(first, last + 1):
        for simulated in ranks:
            fields = {"loss": 2.0 + 0.02 * math.sin(step) + 0.1 * simulated.hello.rank, **changes}
            simulated.send(a_report(step, **fields))


def send_spike(ranks: list[SimulatedRank], step: int) -> None:
    """Loss and gradient norm jump for one step."""
    norms = np.full(len(LAYERS), 9.0, dtype=np.float32)
    send_steps(ranks, step, step, loss=9.0, arrays={"grad_norm": norms})
