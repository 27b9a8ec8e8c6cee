"""A hunt that all ranks are asked for: at the boundary, on a snapshot from before, and the run goes on."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose.report import sender
from caboose.rollback import borrow_weights, enable
from caboose_wire import Ack, Command, Event, Holdings, Terms
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]
NAN = float("nan")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is ready as soon as the steps have passed, and agents speak often."""
    monkeypatch.setattr(enable, "HISTORY_SECONDS", 0.0)
    monkeypatch.setattr(sender, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(sender, "HEARTBEAT_SECONDS", 0.1)


class Guarded:
    """A small run with its brake on, whose batch of one step overflows, and the daemon's end of it."""

    def __init__(self, attach: Attach, daemon: Collector, bad_step: int = 0, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            torch.nn.Tanh(),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(8, 1),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.daemon, self.bad_step = daemon, bad_step
        self.losses: list[float] = []
        rollback = caboose.Rollback("auto", snapshots=caboose.Snapshots(every=5))
        options = {"rollback": rollback, "sampling": caboose.Sampling(overhead_budget=1.0), "hunt": True, **options}
        self.monitor = attach(self.model, self.optimizer, endpoint=daemon.endpoint, **options)

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(len(self.losses)))
            if len(self.losses) + 1 == self.bad_step:
                inputs[9] = NAN
            loss = self.model(inputs).square().mean()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
            self.optimizer.step()
            self.monitor.step(loss)
            self.losses.append(float(loss.detach()))

    def holdings(self, is_wanted: Callable[[Holdings], bool]) -> Holdings:
        found = wait_until(lambda: [m for m in self.daemon.messages if isinstance(m, Holdings) and is_wanted(m)], 10)
        return found[-1]

    def hunt(self, **fields: Any) -> Command:
        held = self.holdings(lambda held: any(snapshot.is_ready for snapshot in held.snapshots))
        values: dict[str, Any] = {
            "number": held.last_number + 1,
            "kind": "hunt",
            "world": 1,
            "group": held.group,
            "boundary": self.monitor.current_step + 4,
            "expires": time.time() + 60,
        }
        return Command(**values | fields)

    def answers(self, *outcomes: str) -> list[Ack]:
        return [m for m in self.daemon.messages if isinstance(m, Ack) and m.outcome in outcomes]

    def tell(self, command: Command) -> Ack:
        self.daemon.say(command)
        wait_until(lambda: self.answers("accepted", "refused"), 10)
        self.train(max(0, command.boundary - self.monitor.current_step) + 2)
        return wait_until(lambda: self.answers("done", "refused", "aborted", "failed"), 10)[-1]

    def events(self) -> list[Event]:
        return [m for m in self.daemon.messages if isinstance(m, Event) and m.kind == "hunt"]


def with_auto(daemon: Collector, run: Guarded) -> None:
    """The daemon acts by itself, and has said so."""
    wait_until(lambda: daemon.hellos, 10)
    daemon.say(Terms(rollback="auto"))
    wait_until(lambda: run.monitor._brake is not None and run.monitor._brake.will_be_asked, 10)


def test_the_batch_that_broke_is_run_on_the_snapshot_from_before_it(attach: Attach, listening: Collector) -> None:
    run = Guarded(attach, listening, bad_step=14)
    with_auto(listening, run)
    run.train(20)
    assert run.events() == [], "all ranks will be asked, so nothing was done alone"
    run.holdings(lambda held: any(s.step == 10 and s.is_ready for s in held.snapshots) and held.can_hunt)
    lost = [p.detach().clone() for p in run.model.parameters()]
    assert all(bool(p.isnan().all()) for p in lost)

    ack = run.tell(run.hunt(target=10, onset=14))

    assert ack.outcome == "done"
    assert ack.detail == "rank 0, step 14: input of the batch holds NaN or infinity, in sample 9 of 16"
    (event,) = wait_until(run.events, 10)
    assert (event.fields["weights_of"], event.fields["where"], event.fields["samples"]) == (10, "input", "9")
    assert "declined" not in event.fields, "on sound weights it could be run"
    assert all(bool(p.isnan().all()) for p in run.model.parameters()), "the weights are what they were"


def test_a_hunt_changes_nothing_in_the_run(attach: Attach, listening: Collector) -> None:
    run = Guarded(attach, listening)
    run.train(16)
    run.holdings(lambda held: any(s.step == 10 and s.is_ready for s in held.snapshots))
    ack = run.tell(run.hunt(target=10))
    assert (ack.outcome, ack.detail[-27:]) == ("done", "no bad number came up again")
    run.train(30 - len(run.losses))
    run.monitor.close()
    twin = Guarded(attach, listening, rollback="advise", hunt=False)
    twin.train(30)
    assert run.losses == twin.losses
    for one, other in zip(run.model.state_dict().values(), twin.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "fields", "says"),
    [
        ({"hunt": False}, {}, "attach(..., hunt=True) keeps the last one"),
        ({}, {"target": 3}, "no snapshot of step 3 is held"),
    ],
)
def test_what_cannot_be_is_refused_before_the_boundary(
    attach: Attach, listening: Collector, options: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    run = Guarded(attach, listening, **options)
    run.train(16)
    ack = run.tell(run.hunt(**fields))
    assert ack.outcome == "refused"
    assert says in ack.detail


def test_a_snapshot_that_cannot_be_lent_leaves_the_hunt_on_the_weights_as_they_are(
    attach: Attach, listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(_name: str) -> bool:
        raise MemoryError("none left")

    run = Guarded(attach, listening)
    run.train(16)
    monkeypatch.setattr(borrow_weights, "_is_left", no_memory)
    ack = run.tell(run.hunt(target=10))
    assert ack.outcome == "done"
    assert run.monitor.is_active


def test_without_a_daemon_that_acts_a_rank_hunts_alone_on_a_snapshot_of_its_own(
    attach: Attach, listening: Collector
) -> None:
    run = Guarded(attach, listening, bad_step=14)
    run.train(16)
    (event,) = wait_until(run.events, 10)
    assert (event.fields["weights_of"], event.fields["batch_step"], event.fields["samples"]) == (10, 14, "9")
