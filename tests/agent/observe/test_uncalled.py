"""A module that is attached to and never called itself shows less, and that is reported."""

from collections.abc import Callable

import torch

import caboose
from caboose.observe.forward import MAX_UNCALLED, UNCALLED
from caboose.observe.model_calls import num_watches
from caboose_wire import Hello, StepReport
from support.collector import Collector
from support.processes import wait_until

Attach = Callable[..., caboose.Monitor]


class Container(torch.nn.Module):
    """As a Lightning module on one device: its `training_step` calls its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        self.copy = torch.nn.Sequential(torch.nn.Linear(4, 1))
        self.copy.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(x)
        return found

    def without_calls(self, x: torch.Tensor) -> torch.Tensor:
        """As a function around the weights, such as a compiled one."""
        for layer in (self.net[0], self.net[2]):
            x = torch.nn.functional.linear(x, layer.weight, layer.bias)
        return x


def step(
    call: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer, monitor: caboose.Monitor
) -> None:
    loss = call(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss)


def test_what_its_own_forward_would_show_is_blindness_after_some_steps_and_until_it_is_called(
    attach: Attach, listening: Collector
) -> None:
    model = Container()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=1)
    for _ in range(MAX_UNCALLED - 1):
        step(model.without_calls, optimizer, monitor)
    reports = listening.wait_for(StepReport, MAX_UNCALLED - 1)
    assert all(report.mode is None and "activation_std" not in report.arrays for report in reports)
    assert [hello.blind for hello in listening.hellos] == [{}], "not before it is sure"

    step(model.without_calls, optimizer, monitor)
    assert wait_until(lambda: len(listening.hellos) == 2, 5)
    told = listening.wait_for(Hello, 2)[1]
    assert told.blind == dict.fromkeys(("activations", "modes", "phases"), UNCALLED)
    assert not {"activations", "modes"} & set(told.visible)
    assert {"loss", "gradients", "phases"} <= set(told.visible), "the time of the whole step is seen"

    step(model, optimizer, monitor)
    assert wait_until(lambda: len(listening.hellos) == 3, 5)
    again = listening.hellos[2]
    assert again.blind == {}
    assert set(again.visible) == set(listening.hellos[0].visible)
    assert listening.wait_for(StepReport, MAX_UNCALLED + 1)[-1].mode is not None


def test_the_modules_inside_one_that_is_never_called_are_watched(attach: Attach, listening: Collector) -> None:
    model = Container()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=1)
    for _ in range(3):
        step(model.net, optimizer, monitor)
    first, *others = listening.wait_for(StepReport, 3)
    assert first.mode is None, "nothing was watched that was called"
    for report in others:
        assert report.mode is not None
        assert report.mode.is_training
        assert (report.arrays["activation_std"] >= 0).sum() == 2, "the two layers of `net`"
        assert report.phases.forward > 0
    assert [hello.blind for hello in listening.hellos] == [{}]
    with torch.no_grad():
        model.net(torch.randn(5, 4))  # an evaluation in train mode, in the loop
    step(model.net, optimizer, monitor)
    mode = listening.wait_for(StepReport, 4)[-1].mode
    assert mode is not None
    assert mode.num_train_evaluations == 1


def test_modules_in_a_list_inside_one_that_is_never_called_are_watched(attach: Attach, listening: Collector) -> None:
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=1)
    for _ in range(2):
        step(lambda x: model.blocks[1](model.blocks[0](x)), optimizer, monitor)
    arrays = listening.wait_for(StepReport, 2)[-1].arrays
    assert (arrays["activation_std"] >= 0).sum() == 2


def test_a_part_with_a_second_name_beside_the_whole_is_not_watched_twice(attach: Attach, listening: Collector) -> None:
    """As where a LightningModule keeps `self.model`, and `self.backbone = self.model.backbone`."""
    model = Container()
    model.backbone = model.net[0]
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=1)
    for _ in range(2):
        step(model.net, optimizer, monitor)
    arrays = listening.wait_for(StepReport, 2)[-1].arrays
    assert (arrays["activation_std"] >= 0).sum() == 2, "both layers, in one forward"


def test_once_the_outer_module_is_called_those_inside_it_are_not_watched(attach: Attach, listening: Collector) -> None:
    model = Container()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=1)
    step(model.net.forward, optimizer, monitor)
    assert num_watches(model.net) == 1
    step(model, optimizer, monitor)
    assert (num_watches(model), num_watches(model.net)) == (1, 0)
    monitor.close()
    assert num_watches(model) == 0


def test_a_module_that_is_called_now_and_then_is_no_blindness(attach: Attach, listening: Collector) -> None:
    model = Container()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint)
    step(model, optimizer, monitor)
    for _ in range(2 * MAX_UNCALLED):
        step(model.net, optimizer, monitor)
    listening.wait_for(StepReport, 2 * MAX_UNCALLED + 1)
    assert [hello.blind for hello in listening.hellos] == [{}]


def test_the_mode_is_that_of_the_last_forward_with_gradients_on(attach: Attach, listening: Collector) -> None:
    model = Container()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint)
    model.eval()
    model(torch.randn(5, 4))  # an evaluation whose author forgot no_grad
    model.train()
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    model.eval()
    with torch.no_grad():
        model(torch.randn(5, 4))
    optimizer.step()
    monitor.step(loss)
    mode = listening.wait_for(StepReport)[0].mode
    assert mode is not None
    assert mode.is_training
    assert mode.num_dropouts_in_eval == 0
