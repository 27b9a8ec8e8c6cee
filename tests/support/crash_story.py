"""A short run with everything in it that a journal keeps, told to a daemon that may end at any commit.

Design
------
`Story` plays it over real sockets and HTTP: two ranks that report and obey, checkpoints, notes, a command by hand, a
loss that leaves its level, an acknowledgement and its end, a rollback by the policy. Each part waits until the daemon
has shown the one before. `Died` ends it where the daemon is gone.

Somebody watches meanwhile, over the live stream and the API, and records what is shown (see `witness`).
"""

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from caboose_wire import Command, Event, Held, Message
from caboose_wire.messages import Part
from support.obedient import Obedient
from support.processes import DaemonProcess
from support.ranks import SimulatedRank, a_report, simulated_ranks
from support.witness import Witness

STEP_SECONDS = 0.5
"""By the clock of the ranks; the clock of the daemon is 50 times as fast."""
BURST = 5
PAUSE_SECONDS = 0.02
SPIKE = 46
HIGH_STEPS = 50
"""So many steps the policy needs to see at most, before it decides."""
WAIT_SECONDS = 30.0
KINDS = ("step", "finding", "incident", "event", "decision", "ledger", "attempt")
LISTS = {
    "findings": ("findings", "finding"),
    "incidents": ("incidents", "incident"),
    "decisions": ("decisions", "decision"),
    "ledger": ("entries", "ledger"),
}
"""Lists of the API: where the rows are in the answer, and what each of them is."""


class Died(Exception):
    """The daemon is gone."""


class Bursts(Obedient):
    """Ranks that report some steps at once, up to `limit`, and do what they are commanded."""

    def __init__(self, ranks: list[SimulatedRank]) -> None:
        super().__init__(ranks)
        self.limit = 0
        self.jobs: deque[Callable[[], None]] = deque()
        """Done on the thread of the ranks, whose sockets belong to it."""
        self.received: list[tuple[float, Command]] = []
        """Commands, with the time at which each arrived."""
        self.of_rank: list[tuple[int, Command]] = []
        """Commands by rank."""
        self._began = time.time()

    def run(self) -> None:
        self._tell_holdings()
        while not self._ending.wait(PAUSE_SECONDS):
            while self.jobs:
                self.jobs.popleft()()
            for _ in range(BURST):
                if self.step < self.limit:
                    self._train()
                if self._armed is not None and self.step >= self._armed.boundary:
                    self._act(self._armed)
            self._listen()

    def _train(self) -> None:
        self.step += 1
        is_high = self.attempt == 0 and self.step >= SPIKE
        shown = self._began + STEP_SECONDS * self.step
        for rank in self.ranks:
            loss = 9.0 if is_high else 2.0 + 0.02 * ((self.step * 7919) % 11 - 5)
            is_sampled = self.step % 20 == 0
            rank.send(
                a_report(
                    self.step,
                    attempt=self.attempt,
                    time=shown,
                    loss=loss,
                    part_losses=(loss, 1.0),
                    metrics={"accuracy": 0.5},
                    is_sampled=is_sampled,
                )
            )
        if not self.step % self.every and not (self.terms and self.terms[-1].is_holding):
            self.snapshots = [*self.snapshots[-5:], Held(self.step, self.step, shown)]
            self._tell_holdings()

    def _hear(self, rank: SimulatedRank, message: Message) -> None:
        if isinstance(message, Command):
            self.received.append((time.monotonic(), message))
            self.of_rank.append((rank.hello.rank, message))
            if any(command.number == message.number for _, command in self.acted):
                return  # all ranks have acted: this one's copy is late
        super()._hear(rank, message)

    def declare(self, kind: str, **fields: Any) -> None:
        """Rank 0 declares an event."""
        event = Event(attempt=self.attempt, step=self.step, time=time.time(), kind=kind, fields=fields)
        self.jobs.append(lambda: self.ranks[0].send(event))


class Story:
    """The run, its ranks and whoever watches it; `daemon` is replaced after a restart."""

    def __init__(self, daemon: DaemonProcess, ranks: Bursts) -> None:
        self.daemon = daemon
        self.ranks = ranks
        self.witness = Witness()
        self._client = httpx.Client(trust_env=False, verify=False, timeout=10)
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._stream), threading.Thread(target=self._poll)]

    def tell(self) -> None:
        """Plays it to its end; Died where the daemon ends before."""
        self._begin_to_watch()
        ranks = self.ranks
        ranks.start()
        self._go_on(40)
        ranks.declare("epoch", number=1)
        ranks.declare("checkpoint", path="/checkpoints/40", step=40, world=2, num_bytes=1000)
        self._wait(lambda: any(row["name"] == "/checkpoints/40" for row in self.witness.latest("ledger")))
        self._post("events", {"kind": "note", "fields": {"text": "the first"}}, "event", 201)
        self._post("events", {"kind": "checkpoint", "fields": {"path": "/other/38", "step": 38}}, "event", 201)
        self._post("commands", {"kind": "snapshot", "by": "me"}, "decision", 202)
        self._go_on(SPIKE + 2)
        self._wait(lambda: any(row["state"] == "committed" for row in self.witness.latest("decision")))
        self._wait(lambda: self.witness.latest("incident"))
        number = self.witness.latest("incident")[0]["number"]
        self._post(f"incidents/{number}/ack", {"reason": "looking at it", "by": "me"}, "incident", 200)
        self.witness.undone.add(("incident", number))
        self._post(f"incidents/{number}/ack", {"undo": True}, "incident", 200)
        self._go_on(SPIKE + HIGH_STEPS)
        self._wait(lambda: self._rollback)
        ranks.limit = self._rollback["boundary"] + 2
        self._wait(lambda: self._rollback["state"] == "committed")
        self._go_on(ranks.limit + 10)
        self._post("events", {"kind": "note", "fields": {"text": "the last"}}, "event", 201)
        self._wait(lambda: len(self.witness.latest("event")) == 5)

    @property
    def _rollback(self) -> Any:
        """The decision to roll back; None before it is made."""
        return next((row for row in self.witness.latest("decision") if row["kind"] == "rollback"), None)

    def _go_on(self, step: int) -> None:
        self.ranks.limit = step
        self._wait(lambda: any(row["step"] == step for row in self.witness.latest("step")))

    def _wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if self.daemon.process.poll() is not None:
                raise Died
            assert time.monotonic() < deadline, "the daemon did not show it"
            time.sleep(0.005)

    def _post(self, path: str, body: Any, kind: str, status: int) -> None:
        """A write; what is answered counts as shown."""
        url = f"{self.daemon.url}api/v1/jobs/train/{path}"
        try:
            answer = self._client.post(url, json=body, headers={"authorization": f"Bearer {self.daemon.token}"})
        except httpx.TransportError:
            raise Died from None
        assert answer.status_code == status, answer.text
        self.witness.see(kind, answer.json())

    def _begin_to_watch(self) -> None:
        self._listening = threading.Event()
        for thread in self._threads:
            thread.start()
        assert self._listening.wait(WAIT_SECONDS) or self.daemon.process.poll() is not None
        if not self._listening.is_set():
            raise Died

    def _stream(self) -> None:
        url = f"{self.daemon.url}api/v1/stream?job=train"
        with contextlib.suppress(httpx.TransportError), self._client.stream("GET", url) as answer:
            kind = ""
            for line in answer.iter_lines():
                self._listening.set()
                name, _, text = line.partition(": ")
                if name == "event":
                    kind = text
                elif name == "data" and kind in KINDS:
                    self.witness.stream(kind, json.loads(text))
                if self._ending.is_set():
                    return

    def _poll(self) -> None:
        with contextlib.suppress(httpx.TransportError), httpx.Client(trust_env=False, verify=False) as client:
            while not self._ending.wait(0.1):
                for path, (name, kind) in LISTS.items():
                    answer = client.get(f"{self.daemon.url}api/v1/jobs/train/{path}")
                    for row in answer.json()[name] if answer.status_code == 200 else ():
                        self.witness.see(kind, row)

    def close(self) -> None:
        """The daemon has ended, or ends now: nothing more is recorded."""
        self._ending.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(10)
        self._client.close()


@contextlib.contextmanager
def a_story(daemon: DaemonProcess) -> Iterator[Story]:
    """The ranks go on until the block ends, whatever becomes of the daemon."""
    parts = (Part("actor", (0, 1), (0, 1)), Part("critic", (1, 2), (0, 1)))
    with simulated_ranks(daemon.endpoint, 2, {"rollback": "auto", "parts": parts}) as simulated:
        story = Story(daemon, Bursts(simulated))
        try:
            yield story
        finally:
            if story.ranks.ident is not None:
                story.ranks.end()
            story.close()
