"""The gate and its helper on one rank: what waits, how long, and what may reach the training loop."""

import multiprocessing
import threading
import time
from collections.abc import Iterator

import pytest
from torch.distributed import HashStore

from caboose.rollback.budget import Limits
from caboose.rollback.coordinator import Coordinator
from caboose.rollback.errors import RollbackFailed, RunStopped
from caboose.rollback.group import open_group
from caboose.rollback.register import Seal
from caboose_wire import Ack, Command, sign
from support.commands import PlainActions, a_command, a_register
from support.gates import Answers, Gates, go
from support.processes import wait_until
from support.stopwatch import seconds_of

pytestmark = pytest.mark.timeout(30)

SECRET = b"s" * 32


@pytest.fixture
def gates() -> Iterator[Gates]:
    made = Gates()
    yield made
    made.close()


def test_a_run_of_one_rank_needs_no_process_group(gates: Gates) -> None:
    group = open_group(0, 1)
    actions = PlainActions()
    coordinator = Coordinator(
        group.open_store, actions, rank=0, world=1, group=group.nonce, key=group.key, on_answer=gates.answers.append
    )
    coordinator.start()
    gates.arm(coordinator, group=group.nonce)
    go(coordinator, 1, 12)
    coordinator.close()

    assert actions.acted == [(1, 10)]
    assert gates.answers.outcomes() == ["accepted", "done"]
    assert gates.answers[-1].step == 10
    assert gates.answers[-1].detail == "did 1"


def test_what_holdings_tell_of_the_agreement_follows_what_was_done(gates: Gates) -> None:
    coordinator = gates.build()
    assert (coordinator.last_number, coordinator.num_rollbacks, coordinator.budget_left) == (0, 0, 3)
    gates.arm(coordinator)
    go(coordinator, 1, 10)

    assert (coordinator.last_number, coordinator.num_rollbacks, coordinator.budget_left) == (1, 1, 2)
    assert coordinator.cool_until == 210


def test_the_budget_is_the_ranks_own(gates: Gates) -> None:
    """Whatever the daemon asks for: the second rollback comes to nothing."""
    actions = PlainActions()
    coordinator = gates.build(actions, limits=Limits(max_rollbacks=1, cool_steps=0, cool_factor=0.0))
    gates.arm(coordinator)
    go(coordinator, 1, 10)
    coordinator.offer(a_command(number=2, boundary=20))
    assert wait_until(lambda: "refused" in gates.answers.outcomes(), 5)
    go(coordinator, 11, 21)

    assert actions.acted == [(1, 10)]
    assert "the budget is spent" in gates.answers[-1].detail


def test_a_rank_that_never_armed_never_waits(gates: Gates) -> None:
    actions = PlainActions(refusal="no such snapshot")
    coordinator = gates.build(actions)
    coordinator.offer(a_command())

    assert seconds_of(lambda: go(coordinator, 1, 1000)) < 0.3
    assert actions.acted == []


class ThoughtfulActions(PlainActions):
    """Actions that take a while to say that they are ready."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()

    def refuses(self, command: Command, step: int) -> str:
        self.is_asked.set()
        time.sleep(0.05)
        return super().refuses(command, step)


def test_the_loop_cannot_pass_the_boundary_while_the_rank_makes_up_its_mind(gates: Gates) -> None:
    actions = ThoughtfulActions()
    coordinator = gates.build(actions)
    coordinator.offer(a_command())
    assert actions.is_asked.wait(5)
    go(coordinator, 1, 12)

    assert actions.acted == [(1, 10)]


def test_a_gate_is_left_when_the_others_do_not_come(gates: Gates) -> None:
    actions = PlainActions()
    coordinator = gates.build(actions, world=2)
    gates.arm(coordinator, world=2)
    go(coordinator, 1, 9)

    assert seconds_of(lambda: coordinator.pass_boundary(10)) < 1.3
    assert actions.acted == []
    assert actions.held == set()
    assert gates.answers[-1].outcome == "aborted"
    assert gates.answers[-1].seconds >= 0.3
    assert seconds_of(lambda: go(coordinator, 11, 100)) < 0.3


def test_a_veto_of_another_rank_is_learned_before_the_boundary(gates: Gates) -> None:
    store = HashStore()
    coordinator = gates.build(store=store, world=2)
    gates.arm(coordinator, world=2)
    a_register(store, rank=1, world=2).seal(1, Seal(False, "rank 1: no"))

    assert wait_until(lambda: "aborted" in gates.answers.outcomes(), 5)
    assert seconds_of(lambda: go(coordinator, 1, 20)) < 0.3


def test_a_command_that_only_another_rank_has_heard_is_found(gates: Gates) -> None:
    """With a number left out, so the way there must have been closed."""
    store = HashStore()
    other_answers = Answers()
    gates.build(store=store, rank=1, world=2, on_answer=other_answers.append).offer(a_command(number=3, world=2))
    coordinator = gates.build(store=store, world=2)

    assert wait_until(lambda: "accepted" in gates.answers.outcomes(), 5)
    assert coordinator.last_number == 3
    assert other_answers.outcomes() == ["accepted"]


def test_of_two_commands_with_one_number_all_ranks_take_the_first(gates: Gates) -> None:
    store = HashStore()
    first = a_command(boundary=20)
    a_register(store).publish(first)
    actions = PlainActions()
    coordinator = gates.build(actions, store=store)
    gates.arm(coordinator, boundary=10)
    go(coordinator, 1, 25)

    assert actions.commands == [first]


def test_a_command_told_twice_is_carried_out_once(gates: Gates) -> None:
    actions = PlainActions()
    coordinator = gates.build(actions)
    command = a_command()
    for _ in range(3):
        coordinator.offer(command)
    assert wait_until(lambda: "accepted" in gates.answers.outcomes(), 5)
    go(coordinator, 1, 10)
    coordinator.offer(command)
    coordinator.offer(a_command(number=2, kind="snapshot", boundary=20))
    assert wait_until(lambda: coordinator.last_number == 2, 5)
    go(coordinator, 11, 20)

    assert actions.acted == [(1, 10), (2, 20)]


@pytest.mark.parametrize("number", [1, 1000])
def test_a_number_out_of_order_is_refused(gates: Gates, number: int) -> None:
    coordinator = gates.build()
    coordinator.offer(a_command(number=2, boundary=5))
    assert wait_until(lambda: coordinator.last_number == 2, 5)
    coordinator.offer(a_command(number=number))

    assert wait_until(lambda: "refused" in gates.answers.outcomes(), 5)
    assert "number" in gates.answers[-1].detail
    assert coordinator.last_number == 2


def test_with_a_secret_what_is_not_signed_is_neither_obeyed_nor_passed_on(gates: Gates) -> None:
    store = HashStore()
    coordinator = gates.build(store=store, secret=SECRET)
    coordinator.offer(a_command())
    assert wait_until(lambda: "refused" in gates.answers.outcomes(), 5)
    assert a_register(store).find(1) is None

    coordinator.offer(sign(a_command(), SECRET))
    assert wait_until(lambda: "accepted" in gates.answers.outcomes(), 5)


def test_a_forged_command_in_the_register_is_vetoed(gates: Gates) -> None:
    store = HashStore()
    a_register(store, key=b"x" * 32).publish(a_command())
    coordinator = gates.build(store=store)

    assert wait_until(lambda: "refused" in gates.answers.outcomes(), 5)
    assert coordinator.last_number == 1
    decision = a_register(store).decision(1)
    assert decision is not None
    assert not decision.is_commit


def test_a_forged_commit_is_not_obeyed(gates: Gates) -> None:
    store = HashStore()
    actions = PlainActions()
    coordinator = gates.build(actions, store=store, world=2)
    gates.arm(coordinator, world=2)
    a_register(store, key=b"x" * 32).seal(1, Seal(True))
    go(coordinator, 1, 12)

    assert actions.acted == []
    assert wait_until(lambda: "aborted" in gates.answers.outcomes(), 5)


def test_a_loop_that_leaps_over_the_boundary_brings_it_to_nothing(gates: Gates) -> None:
    actions = PlainActions()
    coordinator = gates.build(actions)
    gates.arm(coordinator)
    coordinator.pass_boundary(9)
    coordinator.pass_boundary(11)

    assert actions.acted == []
    assert "jumped" in gates.answers[-1].detail


def test_a_loop_that_leaps_over_a_boundary_at_which_the_others_acted_ends(gates: Gates) -> None:
    store = HashStore()
    coordinator = gates.build(store=store, world=2)
    gates.arm(coordinator, world=2)
    a_register(store, rank=1, world=2).seal(1, Seal(True))

    with pytest.raises(RollbackFailed, match="jumped over it to step 11"):
        coordinator.pass_boundary(11)


def test_what_cannot_be_carried_out_ends_the_run_and_keeps_it_ended(gates: Gates) -> None:
    coordinator = gates.build(PlainActions(failure=MemoryError("no room")))
    gates.arm(coordinator)
    go(coordinator, 1, 9)
    with pytest.raises(RollbackFailed, match="MemoryError: no room") as caught:
        coordinator.pass_boundary(10)

    assert isinstance(caught.value.__cause__, MemoryError)
    assert gates.answers[-1].outcome == "failed"
    with pytest.raises(RollbackFailed):
        coordinator.pass_boundary(11)
    assert coordinator.num_rollbacks == 0


@pytest.mark.parametrize("failure", [None, RunStopped("stopped, resume from checkpoint 8")])
def test_a_stop_ends_the_run_after_it_was_carried_out(gates: Gates, failure: RunStopped | None) -> None:
    coordinator = gates.build(PlainActions(failure=failure))
    gates.arm(coordinator, kind="stop")
    go(coordinator, 1, 9)
    with pytest.raises(RunStopped, match="stopped"):
        coordinator.pass_boundary(10)
    with pytest.raises(RunStopped):
        coordinator.pass_boundary(11)

    assert gates.answers.outcomes() == ["accepted", "done"]


class RottenActions(PlainActions):
    """Actions with a fault in everything but `act`."""

    def __init__(self, *, refuses_too: bool) -> None:
        super().__init__()
        self.refuses_too = refuses_too

    def refuses(self, command: Command, step: int) -> str:
        if self.refuses_too:
            raise ZeroDivisionError
        return ""

    def release(self, command: Command) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("refuses_too", [True, False])
def test_faults_of_the_agent_do_not_reach_the_loop(gates: Gates, refuses_too: bool) -> None:
    store = HashStore()

    def fail(ack: Ack) -> None:
        raise ZeroDivisionError

    actions = RottenActions(refuses_too=refuses_too)
    coordinator = gates.build(actions, store=store, world=2, on_answer=fail)
    coordinator.offer(a_command(world=2))
    assert wait_until(lambda: coordinator.last_number == 1, 5)
    go(coordinator, 1, 20)

    decision = a_register(store, world=2).decision(1)
    assert decision is not None
    assert not decision.is_commit


def test_offers_never_block_and_are_bounded(gates: Gates) -> None:
    blocked = threading.Event()

    def wait() -> HashStore:
        blocked.wait(10)
        return HashStore()

    coordinator = gates.build(open_store=wait)
    assert seconds_of(lambda: [coordinator.offer(a_command()) for _ in range(10_000)]) < 3
    assert len(coordinator._offers) == 64
    go(coordinator, 1, 20)
    assert seconds_of(lambda: coordinator.close(0.2)) < 1
    blocked.set()


def test_closing_vetoes_what_is_pending(gates: Gates) -> None:
    store = HashStore()
    actions = PlainActions()
    coordinator = gates.build(actions, store=store, world=2)
    gates.arm(coordinator, world=2)
    coordinator.close()

    assert a_register(store, rank=1, world=2).decision(1) == Seal(False, "rank 0: it is leaving")
    assert actions.held == set()
    assert seconds_of(lambda: go(coordinator, 1, 20)) < 0.3


def test_a_forked_child_leaves_the_gate_of_its_parent_alone(gates: Gates) -> None:
    store = HashStore()
    coordinator = gates.build(store=store, world=2)
    gates.arm(coordinator, world=2)
    child = multiprocessing.get_context("fork").Process(target=coordinator.close)
    child.start()
    child.join(10)

    assert child.exitcode == 0
    assert a_register(store, world=2).decision(1) is None


def test_a_gate_longer_than_its_doubt_is_refused(gates: Gates) -> None:
    with pytest.raises(ValueError, match=r"gate_seconds=1\.0 must be above 0 and below doubt_seconds=0\.5"):
        gates.build(gate_seconds=1.0, doubt_seconds=0.5)
