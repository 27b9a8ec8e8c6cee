"""Teachers, averages and momentum copies, which no optimizer holds, are not the model."""

import copy
from collections.abc import Callable

import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import caboose
from caboose_wire import Hello, StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


def a_network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


class Siamese(torch.nn.Module):
    """As BYOL, MoCo and DINO have it: the target is a copy that the loop updates, with or without `requires_grad`."""

    def __init__(self, target: torch.nn.Module) -> None:
        super().__init__()
        self.online = a_network()
        self.key_encoder = target

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.key_encoder(x)
        distance: torch.Tensor = torch.tanh(self.online(x)) - target
        return distance


class Checkpointed(torch.nn.Module):
    """A frozen layer in a block whose forward is run again in the backward; gradients are off in the first run."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        self.block[0].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.block, x, use_reentrant=True)
        return y


def seen(
    attach: Attach, listening: Collector, model: torch.nn.Module, trained: list[torch.Tensor]
) -> tuple[Hello, list[str]]:
    """The last Hello, and the names of the modules and functions whose activations were read."""
    every_step = caboose.Sampling(1, overhead_budget=1.0)
    optimizer = torch.optim.SGD(trained, lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=every_step)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4, requires_grad=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    monitor.close()
    order = listening.wait_for(StepReport, 2)[1].arrays["activation_order"]
    hello = listening.hellos[-1]
    return hello, [module.name for module, at in zip(hello.modules, order, strict=True) if at >= 0]


def test_a_teacher_inside_the_model_is_not_read_and_not_trained(attach: Attach, listening: Collector) -> None:
    model = Siamese(a_network())
    hello, names = seen(attach, listening, model, list(model.online.parameters()))
    assert names == ["online.0", "online.1", "online.2", "tanh"]
    assert {layer.name: layer.trainable for layer in hello.layers} == {
        **{f"online.{number}.{kind}": True for number in (0, 2) for kind in ("weight", "bias")},
        **{f"key_encoder.{number}.{kind}": False for number in (0, 2) for kind in ("weight", "bias")},
    }


def test_an_average_inside_the_model_is_not_read_and_not_trained(attach: Attach, listening: Collector) -> None:
    average = AveragedModel(a_network())
    model = Siamese(average)
    hello, names = seen(attach, listening, model, list(model.online.parameters()))
    assert names == ["online.0", "online.1", "online.2", "tanh"]
    assert [layer.name for layer in hello.layers if layer.trainable] == [
        "online.0.weight",
        "online.0.bias",
        "online.2.weight",
        "online.2.bias",
    ]


def test_what_was_forgotten_has_a_gradient_and_stays_trainable(attach: Attach, listening: Collector) -> None:
    model = copy.deepcopy(a_network())
    hello, names = seen(attach, listening, model, list(model[0].parameters()))
    assert names == ["0", "1", "2"]
    assert [(layer.held, layer.trainable) for layer in hello.layers] == [(True, True)] * 2 + [(False, True)] * 2


def test_a_frozen_layer_of_the_model_is_read_though_gradients_are_off(attach: Attach, listening: Collector) -> None:
    model = Checkpointed()
    _, names = seen(attach, listening, model, list(model.block[1].parameters()))
    assert names == ["block.0", "block.1"]
