"""A rank of a small DDP job that gets commands, loses some, and writes down what became of them.

    agreeing.py OUT         with RANK, WORLD_SIZE, MASTER_ADDR and GATE_SECONDS set

The process group meets at a file in OUT; results go to OUT/rank<N>.json. One launch plays all scenarios, then the
stress, then one in which rank 0 is killed: starting ranks takes longer than what they do here. What a scenario is about
is in `SCENARIOS`; what must come of it is in the test.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from caboose.rollback.budget import Limits
from caboose.rollback.coordinator import Coordinator
from caboose.rollback.errors import RollbackFailed, RollbackInDoubt
from caboose.rollback.group import open_group
from caboose.rollback.register import Store
from caboose_wire import Ack, Command

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GATE_SECONDS = float(os.environ["GATE_SECONDS"])
POLL_SECONDS = 0.02
NUM_KEPT = 16
NUM_STEPS = 20
FAR_FUTURE = 4e9
NO_LIMITS = Limits(max_rollbacks=10**6, cool_steps=0, cool_factor=0.0, max_same_target=10**6, max_attempts=10**6)


@dataclass(frozen=True)
class Offer:
    """A command that reaches some ranks after some step; the loop goes on when this rank has answered it."""

    after: int
    command: dict[str, Any]
    to: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Scenario:
    """What is said to whom, and what is wrong with whom."""

    offers: tuple[Offer, ...] = ()
    slow: int | None = None
    without_helper: int | None = None
    without_snapshots: int | None = None
    fails: int | None = None
    comes_apart: int | None = None
    was_apart: int | None = None
    leaves: int | None = None


ROLLBACK = {"kind": "rollback", "boundary": 12, "target": 4}
OTHER_KINDS = (
    Offer(2, {"kind": "scale_lr", "boundary": 5, "lr_scale": 0.5}),
    Offer(6, {"number": 2, "kind": "snapshot", "boundary": 8}),
    Offer(9, {"number": 4, "kind": "checkpoint", "boundary": 12}),
)
SCENARIOS = {
    "no_daemon": Scenario(),
    "ok": Scenario((Offer(5, ROLLBACK),)),
    "link_dead": Scenario((Offer(5, ROLLBACK, to=(0, 1)),)),
    "daemon_dies_after_one": Scenario((Offer(5, ROLLBACK, to=(2,)),)),
    "duplicate": Scenario((Offer(5, ROLLBACK), Offer(6, ROLLBACK), Offer(15, ROLLBACK))),
    "slow_rank": Scenario((Offer(5, ROLLBACK),), slow=1),
    "next_boundary": Scenario((Offer(5, {**ROLLBACK, "boundary": 6}),)),
    "late": Scenario((Offer(5, {**ROLLBACK, "boundary": 5}),)),
    "stale_incarnation": Scenario((Offer(5, {**ROLLBACK, "group": "an-older-attempt"}),)),
    "missing_snapshot": Scenario((Offer(5, ROLLBACK),), without_snapshots=1),
    "bad_target": Scenario((Offer(5, {**ROLLBACK, "target": 3}),)),
    "dead_agent": Scenario((Offer(5, ROLLBACK),), without_helper=2),
    "leaving": Scenario((Offer(5, ROLLBACK),), leaves=0),
    "other_kinds": Scenario(
        (*OTHER_KINDS, Offer(13, {"number": 5, "kind": "stop", "boundary": 16, "reason": "enough"}))
    ),
    "was_apart": Scenario(OTHER_KINDS, was_apart=2),
    "act_fails": Scenario((Offer(5, ROLLBACK),), fails=1),
    "comes_apart": Scenario((Offer(5, ROLLBACK),), comes_apart=2),
}


class CloneActions:
    """Snapshots are clones of the parameters and of the optimizer's momentum, every second step."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scenario: Scenario) -> None:
        self.parameters = list(model.parameters())
        self.optimizer = optimizer
        self.scenario = scenario
        self.snapshots: dict[int, list[torch.Tensor]] = {}
        self.pinned: int | None = None
        self.done: list[tuple[int, int]] = []

    def tensors(self) -> list[torch.Tensor]:
        momenta = (self.optimizer.state[p].get("momentum_buffer") for p in self.parameters)
        return [*self.parameters, *(m for m in momenta if m is not None)]

    def keep(self, step: int) -> None:
        if step % 2 == 0 and self.scenario.without_snapshots != RANK:
            self.snapshots[step] = [t.detach().clone() for t in self.tensors()]
        old = [s for s in self.snapshots if s != self.pinned][:-NUM_KEPT]
        for s in old if len(self.snapshots) > 2 * NUM_KEPT else []:
            self.snapshots.pop(s, None)

    def refuses(self, command: Command, step: int) -> str:
        if command.kind != "rollback":
            return ""
        if command.target not in self.snapshots:
            return f"no snapshot of step {command.target}"
        self.pinned = command.target
        return ""

    def release(self, command: Command) -> None:
        self.pinned = None

    @torch.no_grad()
    def act(self, command: Command, step: int) -> str:
        if self.scenario.fails == RANK:
            raise OSError("the host ran out of memory")
        if command.kind == "rollback":
            for tensor, saved in zip(self.tensors(), self.snapshots[command.target], strict=True):
                tensor.copy_(saved)
        if command.kind == "scale_lr":
            for group in self.optimizer.param_groups:
                group["lr"] *= command.lr_scale
        if self.scenario.comes_apart == RANK:
            self.parameters[0].add_(1.0)
        self.pinned = None
        self.done.append((command.number, step))
        return f"{command.kind} done"

    def fingerprint(self) -> int:
        return sum(int(p.detach().view(torch.int32).long().sum()) for p in self.parameters)


@dataclass
class Run:
    """One run of the job, from the same start as every other."""

    scenario: Scenario
    answers: list[Ack] = field(default_factory=list)
    longest: float = 0.0
    error: str = ""

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        if self.scenario.was_apart == RANK:
            with torch.no_grad():
                next(self.model.parameters()).add_(1.0)
        self.actions = CloneActions(self.model, self.optimizer, self.scenario)
        self.group = open_group(RANK, WORLD)

    def coordinator(self, **changes: Any) -> Coordinator:
        options = {"gate_seconds": GATE_SECONDS, "poll_seconds": POLL_SECONDS, "on_answer": self.answers.append}
        made = Coordinator(
            self.group.open_store,
            self.actions,
            rank=RANK,
            world=WORLD,
            group=self.group.nonce,
            key=self.group.key,
            **{**options, **changes},
        )
        if self.scenario.without_helper != RANK:
            made.start()
        return made

    def command(self, **fields: Any) -> Command:
        made = {"number": 1, "group": self.group.nonce, "world": WORLD, "expires": FAR_FUTURE}
        return Command(**{**made, **fields})

    def train(self, step: int) -> None:
        generator = torch.Generator().manual_seed(1000 * step + RANK)
        x = torch.randn(4, 8, generator=generator)
        self.optimizer.zero_grad()
        (self.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        self.optimizer.step()

    def pass_boundary(self, coordinator: Coordinator, step: int) -> None:
        begun = time.monotonic()
        coordinator.pass_boundary(step)
        self.longest = max(self.longest, time.monotonic() - begun)
        self.actions.keep(step)

    def result(self) -> dict[str, Any]:
        return {
            "hash": self.actions.fingerprint(),
            "done": self.actions.done,
            "answers": [(ack.command, ack.outcome, ack.detail) for ack in self.answers],
            "longest": self.longest,
            "error": self.error,
            "lr": self.optimizer.param_groups[0]["lr"],
        }


def play(scenario: Scenario) -> dict[str, Any]:
    """Runs one scenario to its end, or to the exception that ends it."""
    run = Run(scenario)
    coordinator = run.coordinator()
    try:
        for step in range(1, NUM_STEPS + 1):
            if scenario.slow == RANK:
                time.sleep(0.03)
            run.train(step)
            run.pass_boundary(coordinator, step)
            for offer in scenario.offers:
                if offer.after == step:
                    tell(run, coordinator, offer)
            if scenario.leaves == RANK and step == 8:
                coordinator.close()
    except (RollbackFailed, RollbackInDoubt) as error:
        run.error = f"{type(error).__name__}: {error}"
    dist.barrier()  # whoever is first at the end would veto what others still look for
    coordinator.close()
    return run.result()


def tell(run: Run, coordinator: Coordinator, offer: Offer) -> None:
    """The command arrives here, if it does."""
    command = run.command(**offer.command)
    if RANK in offer.to:
        coordinator.offer(command)
    if run.scenario.without_helper != RANK:
        wait_for(lambda: any(ack.command == command.number for ack in run.answers))


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what the job waits for did not come")
        time.sleep(0.001)


class StallingStore:
    """A connection on which every tenth call takes up to 30 ms."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        if self._random.random() < 0.1:
            time.sleep(self._random.uniform(0.0, 0.03))
        return getattr(self._store, name)


def stress(num_commands: int = 130, every: int = 8) -> dict[str, Any]:
    """Commands in quick succession, each lost on each rank with 35 %; loops and helpers stall now and then."""
    run = Run(Scenario())
    connect = run.group.open_store
    object.__setattr__(run.group, "open_store", lambda: StallingStore(connect(), seed=RANK))
    coordinator = run.coordinator(limits=NO_LIMITS)
    shared, own = random.Random(1), random.Random(100 + RANK)
    last = (num_commands + 3) * every
    for step in range(1, last + 1):
        if own.random() < 0.03:
            time.sleep(own.uniform(0.0, 0.02))
        run.train(step)
        run.pass_boundary(coordinator, step)
        number, rest = divmod(step, every)
        if rest or not 1 <= number <= num_commands:
            continue
        target = 2 * (shared.randint(max(1, step - 20), step) // 2)
        fields = {"kind": shared.choice(["rollback", "rollback", "snapshot"]), "boundary": step + shared.randint(0, 12)}
        if own.random() >= 0.35:
            coordinator.offer(run.command(number=number, target=target, **fields))
    dist.barrier()
    coordinator.close()
    return run.result()


def killed() -> dict[str, Any]:
    """Rank 0's process is killed when rank 1 stands at the gate; rank 2's helper is dead, so nothing was decided."""
    run = Run(Scenario(without_helper=2))
    coordinator = run.coordinator(gate_seconds=20.0)
    begun = time.monotonic()
    try:
        for step in itertools.count(1):
            run.train(step)
            if step == 5 and RANK != 2:
                coordinator.offer(run.command(kind="rollback", boundary=8, target=4))
                wait_for(lambda: run.answers)
            if step == 8 and RANK == 0:
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 8:
                begun = time.monotonic()
            run.pass_boundary(coordinator, step)
    except (RollbackFailed, RollbackInDoubt, RuntimeError) as error:
        run.error = f"{type(error).__name__}: {error}"
    return {**run.result(), "seconds": time.monotonic() - begun}


def main() -> None:
    """Runs what was asked for and writes down what came of it."""
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}/meet", rank=RANK, world_size=WORLD, timeout=timedelta(seconds=40)
    )
    results = {name: play(scenario) for name, scenario in SCENARIOS.items()}
    results["stress"] = stress()
    (out / f"rank{RANK}.json").write_text(json.dumps(results))
    results["killed"] = killed()
    (out / f"rank{RANK}.json").write_text(json.dumps(results))
    os._exit(0)  # a process group without its rank 0 cannot be taken down in good order


if __name__ == "__main__":
    main()
