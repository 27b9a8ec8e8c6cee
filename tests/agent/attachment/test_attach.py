"""`caboose.attach`: what it takes, what it refuses, and that it leaves no trace."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose.observe.model_calls import num_watches
from caboose_wire import Hello
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": 3}, TypeError, r"model=.*expected a torch.nn.Module, got int"),
        ({"optimizer": "sgd"}, TypeError, r"optimizer=.*got str"),
        ({"optimizer": []}, TypeError, r"optimizer=.*got list"),
        ({"optimizer": [object()]}, TypeError, r"element 0 is a object"),
        ({"start_step": -1}, ValueError, r"start_step=-1"),
        ({"num_classes": 1}, ValueError, r"num_classes=1"),
        ({"scheduler": 5}, TypeError, r"scheduler=.*got int"),
        ({"scheduler": [5]}, TypeError, r"scheduler=.*element 0 is a int"),
        ({"config": [1]}, TypeError, r"config=.*expected a mapping"),
        ({"endpoint": "nonsense"}, ValueError, r"endpoint: 'nonsense'.*tcp://host:port"),
        ({"sampling": 0}, ValueError, r"Sampling\(every=0\): give a whole number of at least 1"),
        ({"sample_every": 10}, TypeError, r"attach\(sample_every=.*\) is now written attach\(sampling=100\)"),
        ({"samples": 10}, TypeError, r"unexpected keyword argument 'samples'"),
        ({"job": "with spaces"}, ValueError, r"job='with spaces'"),
        ({"rank": 2, "world_size": 2}, ValueError, r"rank=2"),
    ],
)
def test_a_wrong_argument_raises_before_training_and_names_itself(
    network: torch.nn.Module, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"model": network, "optimizer": sgd(network), **arguments}
    with pytest.raises(error, match=message):
        caboose.attach(given.pop("model"), given.pop("optimizer"), **given)


def test_a_weight_that_is_computed_is_not_computed_by_attaching(attach: Attach) -> None:
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 8))
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), torch.nn.Linear(8, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attach(model, sgd(model))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_weight_that_raises_is_left_alone(attach: Attach) -> None:
    class Unready(torch.nn.Sequential):
        @property
        def weight(self) -> torch.Tensor:
            raise RuntimeError("not ready")

    model = Unready(torch.nn.Linear(4, 1))
    assert attach(model, sgd(model)).is_active


def test_a_disabled_monitor_does_nothing_and_needs_nothing(
    monkeypatch: pytest.MonkeyPatch, network: torch.nn.Module
) -> None:
    monkeypatch.setenv("CABOOSE_DISABLED", "1")
    monitor = caboose.attach("not even a model", None)  # type: ignore[arg-type]  # nothing is looked at
    assert not monitor.is_active
    assert list(monitor.watch([1, 2, 3])) == [1, 2, 3]
    monitor.step(1.0)
    monitor.validation(0.5, accuracy=0.9)
    monitor.event("data_switch")
    monitor.close()


def test_attaching_twice_is_harmless(attach: Attach, network: torch.nn.Module, listening: Collector) -> None:
    optimizer = sgd(network)
    first = attach(network, optimizer, endpoint=listening.endpoint)
    second = attach(network, optimizer, endpoint=listening.endpoint)
    assert second is first
    assert num_watches(network) == 1


@pytest.mark.parametrize("first", ["off", "advise"])
def test_an_auto_for_a_model_that_is_watched_with_less_is_refused(
    attach: Attach, network: torch.nn.Module, listening: Collector, first: str
) -> None:
    optimizer = sgd(network)
    monitor = attach(network, optimizer, endpoint=listening.endpoint, rollback=first)
    with pytest.raises(ValueError, match=r"watched already.*attach once, with rollback=.auto., or close\(\) the first"):
        attach(network, optimizer, endpoint=listening.endpoint, rollback="auto")
    assert monitor.is_active, "the first one goes on"
    monitor.close()
    assert attach(network, optimizer, endpoint=listening.endpoint, rollback="auto")._brake is not None


@pytest.mark.parametrize("second", ["off", "advise", "auto"])
def test_attaching_again_for_no_more_than_the_first_may_do_is_harmless(
    attach: Attach, network: torch.nn.Module, listening: Collector, second: str
) -> None:
    optimizer = sgd(network)
    first = attach(network, optimizer, endpoint=listening.endpoint, rollback="auto")
    assert attach(network, optimizer, endpoint=listening.endpoint, rollback=second) is first


def test_attaching_to_another_model_lets_the_first_one_go(
    attach: Attach, network: torch.nn.Module, listening: Collector
) -> None:
    other = torch.nn.Linear(2, 2)
    first = attach(network, sgd(network), endpoint=listening.endpoint)
    second = attach(other, sgd(other), endpoint=listening.endpoint)
    assert not first.is_active
    assert second.is_active
    assert not num_watches(network)


def test_close_takes_out_every_hook(attach: Attach, network: torch.nn.Module) -> None:
    optimizer = sgd(network)
    with attach(network, optimizer) as monitor:
        assert num_watches(network) == 1
        assert optimizer._optimizer_step_pre_hooks
    assert not monitor.is_active
    assert not num_watches(network)
    assert "__call__" not in vars(type(network))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert all(not p._backward_hooks for p in network.parameters())


def test_the_model_can_be_copied_and_saved_without_its_monitor(attach: Attach, network: torch.nn.Module) -> None:
    plain = network.state_dict().keys()
    attach(network, sgd(network))
    assert network.state_dict().keys() == plain
    twin = copy.deepcopy(network)
    assert torch.equal(twin(torch.ones(1, 4)), network(torch.ones(1, 4)))
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(torch.ones(1, 4)), network(torch.ones(1, 4)))


def test_hello_says_what_is_watched(attach: Attach, network: torch.nn.Module, listening: Collector) -> None:
    optimizers = [
        torch.optim.SGD(network[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW([{"params": network[2].parameters(), "name": "head"}], lr=0.01),
    ]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 10)
    attach(
        network,
        optimizers,
        scheduler=scheduler,
        endpoint=listening.endpoint,
        rank=3,
        world_size=4,
        start_step=100,
        num_classes=10,
        config={"batch": 32, "note": "x", "array": torch.tensor(2.5)},
    )
    hello = listening.wait_for(Hello)[0]
    assert (hello.job, hello.rank, hello.world, hello.start_step) == ("train", 3, 4, 100)
    assert [(layer.name, layer.numel, layer.kind) for layer in hello.layers] == [
        ("0.weight", 32, "Linear"),
        ("0.bias", 8, "Linear"),
        ("2.weight", 8, "Linear"),
        ("2.bias", 1, "Linear"),
    ]
    assert [(group.name, group.optimizer) for group in hello.groups] == [("0.0", "SGD"), ("1.head", "AdamW")]
    assert hello.groups[0].settings["momentum"] == 0.9
    assert hello.config == {"batch": 32, "note": "x", "array": 2.5, "num_classes": 10}
    assert (hello.facts["scheduler"], hello.facts["num_parameters"]) == ("StepLR", 49)
    assert 2**28 < hello.facts["host_memory_bytes"] < 2**50  # type: ignore[operator]  # a number of bytes
    assert hello.torch_version == torch.__version__
