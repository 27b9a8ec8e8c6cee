"""Simulated ranks that train, keep snapshots and carry out commands by themselves, over real sockets, without torch."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from caboose_wire import Ack, Command, Held, Hello, HelloRequest, Holdings, Message, Terms
from caboose_wire.signing import is_signed
from support.ranks import SimulatedRank, a_report, simulated_ranks

STEP_SECONDS = 0.02


class Obedient(threading.Thread):
    """All ranks of a job, on one thread; they act together, or veto with `refusal`."""

    def __init__(self, ranks: list[SimulatedRank], *, every: int = 10, secret: bytes | None = None) -> None:
        super().__init__(daemon=True)
        self.ranks = ranks
        self.every = every
        self.secret = secret
        self.step = 0
        self.attempt = 0
        self.loss: Callable[[int], float] = lambda step: 2.0 + 0.02 * ((step * 7919) % 11 - 5)
        self.refusal = ""
        self.on_command: Callable[[Command], None] = lambda command: None
        self.deaf: set[int] = set()
        self.num_ignored = 0
        """Commands that ranks were deaf to."""
        self.commands: list[Command] = []
        self.terms: list[Terms] = []
        self.acted: list[tuple[int, Command]] = []
        self.snapshots: list[Held] = []
        self._armed: Command | None = None
        self._num_left = 3
        self._last_number = 0
        self._ending = threading.Event()

    def run(self) -> None:
        """Trains until it is asked to end."""
        self._tell_holdings()
        while not self._ending.is_set():
            self._train()
            self._listen()
            if self._armed is not None and self.step >= self._armed.boundary:
                self._act(self._armed)
            time.sleep(STEP_SECONDS)

    def end(self) -> None:
        """Ends the thread."""
        self._ending.set()
        self.join(5)

    def _train(self) -> None:
        self.step += 1
        for rank in self.ranks:
            rank.send(a_report(self.step, attempt=self.attempt, time=time.time(), loss=self.loss(self.step)))
        is_holding = bool(self.terms) and self.terms[-1].is_holding
        if not self.step % self.every and not is_holding:
            self.snapshots = [*self.snapshots[-5:], Held(self.step, self.step, time.time())]
            self._tell_holdings()

    def _listen(self) -> None:
        for rank in self.ranks:
            while rank.socket.poll(0):
                message = rank.receive(0.1)
                if rank.hello.rank in self.deaf:
                    self.num_ignored += isinstance(message, Command)
                elif message is not None:
                    self._hear(rank, message)

    def _hear(self, rank: SimulatedRank, message: Message) -> None:
        if isinstance(message, HelloRequest):
            rank.send(rank.hello)
            rank.send(self._holdings())
        elif isinstance(message, Terms):
            self.terms.append(message)
        elif isinstance(message, Command):
            self.commands.append(message)
            self.on_command(message)
            number = message.number
            if self.secret is not None and not is_signed(message, self.secret):
                rank.send(Ack(command=number, outcome="refused", detail="not signed"))
            elif self.refusal:
                rank.send(Ack(command=number, outcome="refused", detail=self.refusal, step=self.step))
            elif number >= self._last_number:
                self._last_number = number
                self._armed = message
                rank.send(Ack(command=number, outcome="accepted", step=self.step))

    def _act(self, command: Command) -> None:
        self._armed = None
        self.acted.append((self.step, command))
        if command.kind == "rollback":
            self.attempt += 1
            self._num_left -= 1
            self.snapshots = [held for held in self.snapshots if held.step <= command.target]
        for rank in self.ranks:
            rank.send(Ack(command=command.number, outcome="done", step=self.step, seconds=0.01))
            if command.kind == "rollback":
                rank.hello = _after(rank.hello, self.attempt, self.step)
                rank.send(rank.hello)
        self._tell_holdings()

    def _tell_holdings(self) -> None:
        for rank in self.ranks:
            rank.send(self._holdings())

    def _holdings(self) -> Holdings:
        return Holdings(
            group="group-of-these-ranks",
            last_number=self._last_number,
            snapshots=tuple(self.snapshots),
            snapshot_every=self.every,
            budget_left=self._num_left,
            can_skip=True,
            can_clip=True,
        )


def _after(hello: Hello, attempt: int, step: int) -> Hello:
    return msgspec.structs.replace(hello, attempt=attempt, start_step=step)


@contextlib.contextmanager
def obedient_ranks(endpoint: str, world: int = 2, *, secret: bytes | None = None, **hello: Any) -> Iterator[Obedient]:
    """A job that trains by itself until the block ends."""
    with simulated_ranks(endpoint, world, {"rollback": "auto", **hello}) as ranks:
        job = Obedient(ranks, secret=secret)
        job.start()
        try:
            yield job
        finally:
            job.end()
