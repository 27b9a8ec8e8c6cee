"""The mode that is reported is that of the modules that train, not of a wrapper or of a copy beside them."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import caboose
from caboose_wire import Mode, StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


def a_network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    )


class Student(torch.nn.Module):
    """A network, and a copy of it that no optimizer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = a_network()
        self.teacher = copy.deepcopy(self.net)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher(x)
        distance: torch.Tensor = self.net(x) - target
        return distance


@pytest.fixture
def mode_of(attach: Attach, listening: Collector) -> Callable[..., Mode | None]:
    def mode_of(model: torch.nn.Module, trained: torch.nn.Module) -> Mode | None:
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        monitor = attach(model, optimizer, endpoint=listening.endpoint)
        loss = model(torch.randn(6, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
        return listening.wait_for(StepReport, 1)[0].mode

    return mode_of


def test_a_model_in_eval_is_in_eval(mode_of: Callable[..., Mode | None]) -> None:
    model = a_network().eval()
    assert mode_of(model, model) == Mode(False, 1, 1)


def test_one_part_in_eval_is_counted(mode_of: Callable[..., Mode | None]) -> None:
    model = a_network()
    model[1].eval()  # type: ignore[index]
    assert mode_of(model, model) == Mode(True, 1, 0)


def test_a_wrapper_that_stayed_in_eval_is_not_the_model(
    process_group: None, mode_of: Callable[..., Mode | None]
) -> None:
    wrapper = DistributedDataParallel(a_network())
    wrapper.eval()
    wrapper.module.train()  # as Lightning does after its sanity check
    assert mode_of(wrapper, wrapper) == Mode()


def test_a_module_around_the_model_is_not_the_model(mode_of: Callable[..., Mode | None]) -> None:
    task = torch.nn.Sequential(a_network())
    task.training = False
    assert mode_of(task, task) == Mode()


def test_a_copy_that_no_optimizer_holds_may_be_in_eval(mode_of: Callable[..., Mode | None]) -> None:
    student = Student()
    student.teacher.eval()
    assert mode_of(student, student.net) == Mode()


def test_the_trained_part_in_eval_is_seen_beside_a_copy_that_trains(mode_of: Callable[..., Mode | None]) -> None:
    student = Student()
    student.net.eval()
    assert mode_of(student, student.net) == Mode(False, 1, 1)


def test_parts_without_parameters_count_with_the_part_that_holds_them(mode_of: Callable[..., Mode | None]) -> None:
    head = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
    model = torch.nn.Sequential(torch.nn.Dropout(0.1), head)
    head[0].eval()
    assert mode_of(model, model) == Mode(True, 0, 1)


def test_an_evaluation_with_gradients_after_the_boundary_is_counted(attach: Attach, listening: Collector) -> None:
    model = a_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint)
    for step in range(4):
        loss = model(torch.randn(6, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss)
        if step == 0:
            evaluate(model, with_gradients=True)
        elif step == 1:
            evaluate(model, with_gradients=False)
        monitor.validation(1.0)
    modes = [report.mode for report in listening.wait_for(StepReport, 4)]
    assert modes == [Mode(), Mode(num_evaluations=3), Mode(), Mode()]


@pytest.mark.parametrize("is_before_the_boundary", [False, True])
@pytest.mark.parametrize("has_dropout", [True, False])
def test_an_evaluation_in_train_mode_is_counted_where_it_matters(
    attach: Attach, listening: Collector, *, is_before_the_boundary: bool, has_dropout: bool
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5 if has_dropout else 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint)
    for step in range(3):
        loss = model(torch.randn(6, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_before_the_boundary and step == 1:
            evaluate(model, with_gradients=False, in_train_mode=True)
        monitor.step(loss)
        if not is_before_the_boundary and step == 0:
            evaluate(model, with_gradients=False, in_train_mode=True)
        if step == 1:
            evaluate(model, with_gradients=False)
    modes = [report.mode for report in listening.wait_for(StepReport, 3)]
    assert modes == [Mode(), Mode(num_train_evaluations=3 if has_dropout else 0), Mode()]


def evaluate(model: torch.nn.Module, *, with_gradients: bool, in_train_mode: bool = False) -> None:
    model.train(in_train_mode)
    with torch.set_grad_enabled(with_gradients):
        for _ in range(3):
            model(torch.randn(6, 4))
    model.train()
