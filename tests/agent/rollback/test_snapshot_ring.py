"""The ring: which snapshots it keeps, when it takes them, and which it will not give back."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from caboose.rollback.cadence import Cadence
from caboose.rollback.checksum import Region, checksum, inspect
from caboose.rollback.errors import RollbackFailed
from caboose.rollback.ring import Ring
from caboose.rollback.training_state import TrainingState
from support.processes import wait_until


class Run:
    """A small model in training, with a ring."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.ring = Ring(
            TrainingState(self.model, [self.optimizer]),
            **{"every": 5, "history_seconds": 0.0, "budget": 1e9, **options},
        )
        self.number = 0

    def train(self, until: int) -> None:
        """Steps, with a snapshot wherever one is due."""
        while self.number < until:
            self.number += 1
            self.model(torch.ones(2, 8) * self.number).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.ring.passed(self.number, 0.1)
            if self.ring.is_due(self.number):
                assert self.ring.take(self.number, self.number)
                self.checked(self.number)

    def checked(self, step: int) -> None:
        """Waits until the inspector has looked at a snapshot."""
        assert wait_until(lambda: "still being checked" not in self.ring.why_not(step), 10)

    @property
    def steps(self) -> list[int]:
        return [held.step for held in self.ring.held]

    @property
    def far(self) -> list[int]:
        return [held.step for held in self.ring.held if held.is_far]


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(**options: Any) -> Run:
        made.append(Run(**options))
        return made[-1]

    yield make
    for each in made:
        each.ring.close()


def test_a_fault_of_any_age_finds_a_snapshot_from_before_it_that_is_not_much_older(run: Callable[..., Run]) -> None:
    training = run()
    training.train(300)
    for until in range(305, 500, 5):
        training.train(until)
        assert training.steps[-1] == until
        assert len(training.steps) == 4
        for age, oldest in ((1, 15), (10, 70), (25, 170), (50, 200)):
            before = [until - step for step in training.steps if until - step >= age]
            assert before, f"a fault that began {age} steps ago, found at step {until}"
            assert min(before) <= oldest
        assert training.far == training.steps[:1]


def test_a_slot_is_filled_again_and_no_memory_is_added(run: Callable[..., Run]) -> None:
    training = run()
    training.train(40)
    buffers = {slot.buffer.data_ptr() for slot in training.ring._shelf._held}
    training.train(80)
    assert {slot.buffer.data_ptr() for slot in training.ring._shelf._held} == buffers
    assert len(buffers) == 4


def test_ranks_that_hold_the_same_replace_the_same(run: Callable[..., Run]) -> None:
    first, second = run(), run()
    first.train(200)
    second.train(200)
    assert first.steps == second.steps


def test_a_snapshot_is_ready_as_soon_as_it_is_checked(run: Callable[..., Run]) -> None:
    training = run()
    training.train(5)
    assert [held.is_ready for held in training.ring.held] == [True], "when the fault began decides, not its age"


def test_while_something_is_wrong_none_is_taken_and_those_from_before_can_be_used(run: Callable[..., Run]) -> None:
    training = run()
    training.train(5)
    training.ring.hold = True
    training.train(20)
    assert [(held.step, held.is_ready) for held in training.ring.held] == [(5, True)]
    training.ring.hold = False
    training.train(25)
    assert training.steps == [5, 25]


def test_a_pinned_snapshot_is_never_overwritten(run: Callable[..., Run]) -> None:
    training = run()
    training.train(10)
    assert training.ring.pin(10) == ""
    training.train(100)
    assert 10 in training.steps
    training.ring.unpin()
    training.train(260)
    assert 10 not in training.steps


def test_a_pin_that_was_granted_holds_whatever_the_training_does(run: Callable[..., Run]) -> None:
    training = run()
    training.train(5)
    lost, granted = [], 0
    is_over = threading.Event()

    def pin_and_look() -> None:
        nonlocal granted
        while not is_over.is_set():
            for held in training.ring.held:
                if training.ring.pin(held.step) == "":
                    granted += 1
                    before = training.number
                    while training.number < before + 10 and not is_over.is_set():
                        if training.ring.why_not(held.step):
                            lost.append(held.step)
                        is_over.wait(0.0005)
                    training.ring.unpin()

    other = threading.Thread(target=pin_and_look)
    other.start()
    try:
        training.train(250)
    finally:
        is_over.set()
        other.join(10)
    assert lost == []
    assert granted > 5


def test_what_came_after_a_step_is_forgotten(run: Callable[..., Run]) -> None:
    training = run()
    training.train(40)
    training.ring.drop_newer(35)
    assert training.steps[-1] == 35
    assert training.ring.why_not(40) == "no snapshot of step 40 is held"
    training.train(60)
    assert training.steps[-2:] == [55, 60]


def test_weights_that_are_not_finite_make_a_snapshot_that_is_never_used(run: Callable[..., Run]) -> None:
    training = run()
    training.train(4)
    with torch.no_grad():
        training.model.bias[3] = -torch.inf
    training.train(5)
    assert training.ring.why_not(5) == "the snapshot of step 5 is not finite"
    assert training.ring.pin(5) != ""
    assert not training.ring.held[0].is_ready
    with pytest.raises(RollbackFailed, match="not finite"):
        training.ring.restore(5)


def test_a_bad_snapshot_makes_room_before_good_ones(run: Callable[..., Run]) -> None:
    training = run()
    training.train(10)
    bias = training.model.bias
    with torch.no_grad():
        kept = bias.clone()
        bias[0] = torch.nan
        assert training.ring.take(11, 11)
        training.checked(11)
        bias.copy_(kept)
    training.train(20)
    assert training.steps == [5, 10, 15, 20]


def test_a_buffer_that_is_infinite_by_design_does_not_matter() -> None:
    model = torch.nn.Linear(4, 4)
    model.register_buffer("mask", torch.full((4, 4), -torch.inf))
    model.register_buffer("mean", torch.zeros(4))
    ring = Ring(TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)]))
    try:
        assert ring.take(1, 1)
        assert wait_until(lambda: ring.why_not(1) == "", 10)
        model.get_buffer("mean")[0] = torch.nan
        assert ring.take(2, 2)
        assert wait_until(lambda: ring.why_not(2) == "the snapshot of step 2 is not finite", 10), "one that was finite"
    finally:
        ring.close()


def test_what_a_slot_held_before_is_not_taken_for_part_of_what_it_holds_now() -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    model.register_buffer("mask", torch.full((16,), -torch.inf))
    ring = Ring(TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)]), keep=1)
    try:
        for step in (1, 2):
            assert ring.take(step, step)
            assert wait_until(lambda step=step: ring.why_not(step) == "", 10)
        del model.mask
        assert ring.take(3, 3)
        assert wait_until(lambda: ring.why_not(3) == "", 10), ring.why_not(3)
    finally:
        ring.close()


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_flipped_bit_is_noticed_before_anything_is_touched(run: Callable[..., Run], is_pinned: bool) -> None:
    training = run()
    training.train(7)
    slot = training.ring._shelf.find(5)
    assert slot is not None
    slot.buffer[17] ^= 4
    before = [p.tolist() for p in training.model.parameters()]
    if is_pinned:
        assert training.ring.pin(5) == ""
        assert wait_until(lambda: training.ring.why_not(5) == "the snapshot of step 5 is damaged", 10)
    with pytest.raises(RollbackFailed, match="damaged"):
        training.ring.restore(5)
    assert [p.tolist() for p in training.model.parameters()] == before
    assert not training.ring.held[0].is_ready


def test_what_is_not_held_cannot_be_put_back(run: Callable[..., Run]) -> None:
    training = run()
    training.train(6)
    with pytest.raises(RollbackFailed, match="no snapshot of step 4 is held"):
        training.ring.restore(4)


def test_the_checksum_sees_every_bit_and_finiteness_every_number() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        numbers = torch.randn(4096).to(dtype)
        numbers[5] = torch.finfo(dtype).max
        numbers[6] = torch.finfo(dtype).min
        buffer = numbers.view(torch.uint8)
        region = Region(0, buffer.numel(), str(dtype).removeprefix("torch."))
        total, is_finite = inspect(buffer, [region])
        assert is_finite
        for bad in (torch.inf, -torch.inf, torch.nan, -torch.nan):
            spoilt = numbers.clone()
            spoilt[4000] = bad
            assert not inspect(spoilt.view(torch.uint8), [region])[1], (dtype, bad)
        flipped = buffer.clone()
        flipped[-1] ^= 0x80
        assert checksum(flipped, [region]) != total


def test_fast_steps_have_fewer_snapshots_so_that_each_can_be_trusted_before_it_must_go() -> None:
    cadence = Cadence(50, min_seconds=2.5)
    for _ in range(50):
        cadence.passed(0.01)
    cadence.cost(None)
    assert cadence.every == 400, "4 seconds apart; 2 would be too near"
    for _ in range(4):
        for _ in range(400):
            cadence.passed(0.1)
        cadence.cost(0.001)
    assert cadence.every == 200, "slower steps, and calm for a while"


def test_a_snapshot_that_costs_too_much_is_taken_half_as_often_and_ranks_still_meet() -> None:
    cadence, other = Cadence(50), Cadence(50)
    for _ in range(50):
        cadence.passed(0.1)
        other.passed(0.1)
    cadence.cost(0.015)  # 0.3 % of 50 steps of 100 ms
    assert cadence.every == 50
    other.cost(0.1)
    assert other.every == 400
    due = {step for step in range(1, 1001) if other.is_due(step)}
    assert due <= {step for step in range(1, 1001) if cadence.is_due(step)}
    for _ in range(12):
        other.passed(0.1)
        other.cost(0.001)
    assert other.every == 50, "and as often as before once it is cheap again"


def test_a_ring_that_switches_itself_off_still_honours_a_pin() -> None:
    class Broken:
        is_broken = False

        def state_dict(self) -> dict[str, int]:
            return {"a": {}["b"]} if self.is_broken else {"a": 1}

        def load_state_dict(self, _: Any) -> None:
            pass

    model, broken = torch.nn.Linear(2, 2), Broken()
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)], extra=[broken])
    ring = Ring(state)
    try:
        for step in (1, 2):
            assert ring.take(step, step)
            assert wait_until(lambda step=step: ring.why_not(step) == "", 10)
        assert ring.pin(1) == ""
        broken.is_broken = True
        assert not ring.take(3, 3), "what a user's own state raises is not raised into the training"
        assert [held.step for held in ring.held] == [1]
        broken.is_broken = False
        assert ring.restore(1) == 1
        ring.unpin()
        assert ring.held == ()
        assert "KeyError('b')" in ring.why_not(1)
    finally:
        ring.close()


def test_settings_that_make_no_sense_are_refused() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="dedupe=True"):
        Ring(TrainingState(model, [optimizer]), dedupe=True)
    with pytest.raises(TypeError, match="element 1 is a int"):
        TrainingState(model, [optimizer], extra=[model, 3])
