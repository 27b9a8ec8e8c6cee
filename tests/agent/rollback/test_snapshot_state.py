"""What goes back with the weights, and what stays, in one process."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from caboose.rollback.errors import RollbackFailed
from caboose.rollback.ring import Ring
from caboose.rollback.training_state import TrainingState
from support.processes import wait_until


class Counter:
    """A user's own step counter, with a tensor and a list beside it."""

    def __init__(self) -> None:
        self.step = 0
        self.history: list[float] = []
        self.total = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "history": self.history, "inner": {"total": self.total}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.history, self.total = state["step"], state["history"], state["inner"]["total"]


class Run:
    """A model with everything, in training."""

    def __init__(self, optimizer: str = "AdamW", **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Conv1d(1, 4, 3),
            torch.nn.BatchNorm1d(4),
            torch.nn.Dropout(0.2),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(1),
        )
        self.model(torch.ones(2, 1, 8))
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), **{"lr": 0.01, **options})
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.counter = Counter()
        self.ring = Ring(
            TrainingState(
                self.model, [self.optimizer], schedulers=[self.scheduler], scaler=self.scaler, extra=[self.counter]
            )
        )

    def step(self, number: int) -> float:
        draw = torch.Generator().manual_seed(number)
        x = torch.randn(4, 1, 8, generator=draw)
        x = x + random.random() + np.random.random()
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.counter.step += 1
        self.counter.history.append(loss.item())
        self.counter.total += 1
        return loss.item()

    def take(self, step: int) -> None:
        assert self.ring.take(step, step)
        assert wait_until(lambda: self.ring.why_not(step) == "", 10)


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    made.ring.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"fused": True}),
        ("AdamW", {"lr": torch.tensor(0.01)}),
        ("Adagrad", {}),
        ("RMSprop", {"momentum": 0.5, "centered": True}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adadelta", {}),
        ("ASGD", {}),
    ],
)
def test_a_replay_is_bit_exact_with_every_optimizer(name: str, options: dict[str, Any]) -> None:
    training = Run(name, **copy.deepcopy(options))
    try:
        for number in range(4):
            training.step(number)
        training.take(4)
        first = [training.step(number) for number in range(4, 9)]
        assert training.ring.restore(4, lr="rewind", replay=True) == 4
        assert [training.step(number) for number in range(4, 9)] == first
        assert training.ring.restore(4, lr="rewind", replay=True) == 4, "and a second time"
        assert [training.step(number) for number in range(4, 9)] == first
    finally:
        training.ring.close()


def test_a_snapshot_from_before_the_first_step_takes_the_optimizers_state_out_again(run: Run) -> None:
    run.take(0)
    first = [run.step(number) for number in range(3)]
    assert run.optimizer.state
    assert run.scaler.get_scale() == 16.0
    run.ring.restore(0, lr="rewind", replay=True)
    assert not run.optimizer.state
    assert run.scaler.get_scale() == 8.0
    assert [run.step(number) for number in range(3)] == first


def test_state_that_was_cleared_since_is_made_from_the_snapshot(run: Run) -> None:
    run.step(0)
    run.take(1)
    first = [run.step(number) for number in range(1, 4)]
    run.optimizer.state.clear()
    run.ring.restore(1, lr="rewind", replay=True)
    assert [run.step(number) for number in range(1, 4)] == first


def test_parameters_that_are_trained_only_later_start_anew_after_going_back() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam([model.weight], lr=0.1)
    ring = Ring(TrainingState(model, [optimizer]))
    try:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        assert ring.take(1, 1)
        optimizer.add_param_group({"params": [model.bias], "lr": 0.5})
        optimizer.step()
        assert model.bias in optimizer.state
        assert wait_until(lambda: ring.why_not(1) == "", 10)
        ring.restore(1)
        assert model.bias not in optimizer.state
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    finally:
        ring.close()


def rebound(parameters: list[torch.nn.Parameter]) -> None:
    """As torch.nn.utils.vector_to_parameters does, and some optimizers."""
    for parameter in parameters:
        parameter.data = parameter.data.clone()


def test_parameters_that_were_given_other_memory_go_back_too(run: Run) -> None:
    run.step(0)
    rebound(list(run.model.parameters()))
    run.step(1)
    run.take(2)
    first = [run.step(number) for number in range(2, 4)]
    rebound(list(run.model.parameters()))
    run.ring.restore(2, lr="rewind", replay=True)

    assert [run.step(number) for number in range(2, 4)] == first


def test_parameters_that_came_to_the_optimizer_after_attach_go_back_too(run: Run) -> None:
    late = torch.nn.Parameter(torch.ones(3))
    run.optimizer.add_param_group({"params": [late]})
    run.take(0)
    with torch.no_grad():
        late.add_(1.0)
    run.ring.restore(0)

    assert late.tolist() == [1.0, 1.0, 1.0]


def test_kept_learning_rates_stay_and_everything_else_goes_back(run: Run) -> None:
    for number in range(3):
        run.step(number)
    run.take(3)
    weight = next(run.model.parameters()).clone()
    run.optimizer.param_groups[0]["weight_decay"] = 0.7
    for number in range(3, 7):
        run.step(number)
    rate, schedule = run.optimizer.param_groups[0]["lr"], copy.deepcopy(run.scheduler.state_dict())
    run.ring.restore(3, lr="keep")
    assert run.optimizer.param_groups[0]["lr"] == rate
    assert run.scheduler.state_dict() == schedule
    assert torch.equal(next(run.model.parameters()), weight)
    assert run.optimizer.param_groups[0]["weight_decay"] == 0.01
    assert run.counter.step == 3
    assert len(run.counter.history) == 3
    assert run.counter.total.tolist() == [3, 3, 3]
    run.ring.restore(3, lr="rewind")
    assert run.optimizer.param_groups[0]["lr"] == 0.01 / 2
    assert run.scheduler.last_epoch == 3


def test_a_learning_rate_that_is_a_tensor_stays_the_same_tensor_and_is_kept_or_rewound() -> None:
    training = Run("AdamW", lr=torch.tensor(0.01))
    try:
        rate = training.optimizer.param_groups[0]["lr"]
        training.step(0)
        training.take(1)
        training.step(1)
        training.step(2)
        assert float(rate) == pytest.approx(0.005)
        training.ring.restore(1, lr="keep")
        assert training.optimizer.param_groups[0]["lr"] is rate
        assert float(rate) == pytest.approx(0.005)
        training.ring.restore(1, lr="rewind")
        assert training.optimizer.param_groups[0]["lr"] is rate
        assert float(rate) == pytest.approx(0.01)
    finally:
        training.ring.close()


def test_random_numbers_go_on_unless_it_is_a_replay(run: Run) -> None:
    run.step(0)
    run.take(1)
    drawn = [torch.rand(1).item(), random.random(), np.random.random()]
    run.ring.restore(1)
    assert [torch.rand(1).item(), random.random(), np.random.random()] != drawn
    run.ring.restore(1, replay=True)
    assert [torch.rand(1).item(), random.random(), np.random.random()] == drawn


def test_what_is_restored_is_no_longer_tied_to_the_snapshot(run: Run) -> None:
    run.step(0)
    run.take(1)
    run.ring.restore(1, lr="rewind")
    run.step(1)
    run.counter.history.append(99.0)
    run.counter.total += 5
    run.ring.restore(1, lr="rewind")
    assert len(run.counter.history) == 1
    assert run.counter.total.tolist() == [1, 1, 1]


def test_a_graph_that_is_alive_while_weights_go_back_can_still_be_used(run: Run) -> None:
    run.step(0)
    run.take(1)
    loss = run.model(torch.ones(2, 1, 8)).mean()
    run.ring.restore(1)
    loss.backward()


def test_tensors_that_share_memory_or_lie_across_it_come_back_as_they_were() -> None:
    model = torch.nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.register_buffer("spread", torch.arange(3.0).reshape(3, 1).expand(3, 4))
    model.register_buffer("turned", torch.arange(12.0).reshape(3, 4).t())
    ring = Ring(TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)]))
    try:
        before = [t.clone() for t in (model.weight, *model.buffers())]
        assert ring.take(1, 1)
        assert wait_until(lambda: ring.why_not(1) == "", 10)
        with torch.no_grad():
            model.weight.zero_()
            model.get_buffer("turned").zero_()
            model.get_buffer("spread")[:, :1].zero_()
        ring.restore(1)
        assert all(torch.equal(a, b) for a, b in zip(before, (model.weight, *model.buffers()), strict=True))
        assert model.weight.is_contiguous(memory_format=torch.channels_last)
    finally:
        ring.close()


def test_a_scaled_learning_rate_is_not_undone_by_going_back(run: Run) -> None:
    run.step(0)
    run.take(1)
    assert run.ring.scale_lr(0.1) == ""
    for number in range(1, 4):
        run.step(number)
    run.ring.restore(1, lr="rewind")
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    run.step(1)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.0005), "nor by the schedule"
    run.take(2)
    run.ring.restore(2, lr="rewind")
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.0005), "nor is it done twice"


def test_an_extra_that_cannot_take_its_state_back_fails_as_a_rollback_does(run: Run) -> None:
    run.take(1)
    run.counter.load_state_dict = lambda _: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(RollbackFailed, match="step 1 could not be restored: ZeroDivisionError"):
        run.ring.restore(1)


def test_state_in_lists_that_grow_and_shift_goes_back_too() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=4)
    ring = Ring(TrainingState(model, [optimizer]), max_host_gb=1)

    def step(number: int) -> float:
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(number))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x).tanh() - x.flip(1)).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).item()  # type: ignore[no-any-return]

    try:
        step(0)
        assert ring.take(1, 1)
        first = [step(number) for number in range(1, 5)]
        assert wait_until(lambda: ring.why_not(1) == "", 10)
        for _ in range(2):
            ring.restore(1)
            assert [step(number) for number in range(1, 5)] == first
    finally:
        ring.close()


def test_several_schedulers_are_rewound_each_to_its_own_place() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(part.parameters(), lr=1.0) for part in model]
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(o, gamma) for o, gamma in zip(optimizers, (0.5, 0.1), strict=True)
    ]
    ring = Ring(TrainingState(model, optimizers, schedulers=schedulers))

    def step() -> None:
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()

    try:
        step()
        assert ring.take(1, 1)
        step()
        schedulers[1].step()
        assert wait_until(lambda: ring.why_not(1) == "", 10)
        ring.restore(1, lr="rewind")
        assert [scheduler.last_epoch for scheduler in schedulers] == [1, 1]
        assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == pytest.approx([0.5, 0.1])
    finally:
        ring.close()
