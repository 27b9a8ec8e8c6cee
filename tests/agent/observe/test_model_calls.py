"""A watched model is called as it would be, and nothing is left in it or in its class."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import caboose
from caboose.observe.model_calls import CallWatch, num_watches, paused

Attach = Callable[..., caboose.Monitor]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return self.layer(x) * scale


class Derived(Net):
    """Of a class that is watched itself."""


class Called(Net):
    """With a call of its own, which calls its parent's."""

    def __call__(self, x: torch.Tensor, **kwargs: Any) -> Any:
        return super().__call__(x, **kwargs) + 1


class Log:
    """What a watch saw, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def watch(self, module: torch.nn.Module) -> CallWatch:
        return CallWatch(
            module,
            lambda *call: self.seen.append(("before", *call)),
            lambda found: self.seen.append(("after", found)),
        )

    @property
    def num(self) -> int:
        return len(self.seen) // 2


X = torch.ones(2, 4)


@pytest.mark.parametrize("kind", [Net, Derived, Called])
def test_each_call_is_seen_with_its_arguments_and_its_result_is_the_same(kind: type[torch.nn.Module]) -> None:
    model, log = kind(), Log()
    own = dict(vars(kind)).get("__call__")
    expected = model(X, scale=2.0)
    watch = log.watch(model)
    assert torch.equal(model(X, scale=2.0), expected)
    assert log.seen == [("before", model, (X,), {"scale": 2.0}), ("after", model)]
    watch.remove()
    watch.remove()
    assert torch.equal(model(X, scale=2.0), expected)
    assert log.num == 1
    assert dict(vars(kind)).get("__call__") is own, "the class is as before"


def test_watches_of_a_class_and_of_the_ones_derived_from_it_do_not_meet() -> None:
    models = [Net(), Derived(), Called()]
    expected = [model(X) for model in models]
    logs = [Log() for _ in models]
    watches = [log.watch(model) for log, model in zip(logs, models, strict=True)]
    for order in ((0, 1, 2), (2, 0, 1)):
        for number in order:
            assert torch.equal(models[number](X), expected[number])
    assert [log.num for log in logs] == [2, 2, 2]
    for watch in watches:  # the parent's first
        watch.remove()
    for model, result in zip(models, expected, strict=True):
        assert torch.equal(model(X), result)
    assert [log.num for log in logs] == [2, 2, 2]


def test_other_modules_of_the_class_and_copies_are_not_seen() -> None:
    model, log = Net(), Log()
    watch = log.watch(model)
    before = dict(vars(model))
    for other in (Net(), Derived(), copy.deepcopy(model), copy.copy(model)):
        other(X)
        assert not num_watches(other)
    assert not log.seen
    assert vars(model) == before
    assert not model._forward_hooks
    watch.remove()


def test_several_watches_of_a_module_are_called_in_order_and_removed_one_by_one() -> None:
    model, log, second = Net(), Log(), Log()
    first_watch, second_watch = log.watch(model), second.watch(model)
    assert num_watches(model) == 2
    model(X)
    first_watch.remove()
    model(X)
    second_watch.remove()
    assert (log.num, second.num, num_watches(model)) == (1, 2, 0)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_end_of_a_call_that_raises_is_seen_and_the_error_passes(error: type[BaseException]) -> None:
    model, log = Net(), Log()

    def fail(_x: torch.Tensor) -> Any:
        raise error

    model.forward = fail  # type: ignore[method-assign, assignment]  # a call that raises
    watch = log.watch(model)
    with pytest.raises(error):
        model(X)
    assert [what for what, *_ in log.seen] == ["before", "after"]
    watch.remove()


def test_a_watch_may_be_removed_within_a_call() -> None:
    model = Net()
    watch = CallWatch(model, lambda *_: watch.remove())
    model(X)
    assert not num_watches(model)
    assert "__call__" not in vars(Net)


def test_a_paused_module_is_not_seen() -> None:
    model, log = Net(), Log()
    watch = log.watch(model)
    with paused(model):
        with paused(model):
            model(X)
        model(X)
    assert not log.seen
    model(X)
    assert log.num == 1
    watch.remove()


def test_a_call_that_someone_else_has_wrapped_since_stays_and_works() -> None:
    model, log, calls = Net(), Log(), []
    watch = log.watch(model)
    ours = Net.__call__

    def wrapped(self: Net, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return ours(self, *args, **kwargs)

    Net.__call__ = wrapped  # type: ignore[method-assign]  # as a profiler does
    try:
        watch.remove()
        model(X)
        again = log.watch(model)
        model(X)
        again.remove()
        assert (len(calls), log.num) == (2, 1)
    finally:
        Net.__call__ = ours  # type: ignore[method-assign]  # as a profiler does
        log.watch(model).remove()
    assert "__call__" not in vars(Net)


def test_a_call_that_torch_replaces_for_all_modules_is_still_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.fx does."""
    model, called = torch.nn.Sequential(torch.nn.Sequential(Net())), []
    watch = CallWatch(model, lambda *_: None)
    original = torch.nn.Module.__call__

    def noting(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        called.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", noting)
    model(X)
    monkeypatch.undo()
    watch.remove()
    assert called == [model, model[0], model[0][0], model[0][0].layer]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, as it traces
@pytest.mark.parametrize("when", ["before attach", "after attach"])
@pytest.mark.parametrize("what", ["the model", "a part of its class"])
def test_what_is_compiled_is_whole_and_compiled_once(what: str, when: str, attach: Attach) -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), inner)
    part = model if what == "the model" else inner
    compiled = torch.compile(part, backend=backend, fullgraph=True)

    def step(optimizer: torch.optim.Optimizer) -> None:
        (compiled(X) if part is model else compiled(model[0](X))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if when == "before attach":
        step(optimizer)
    monitor = attach(model, optimizer, endpoint="tcp://127.0.0.1:9", sampling=2)
    for _ in range(4):
        step(optimizer)
        monitor.step(1.0)
    assert monitor.guard.num_failures == 0
    assert len(graphs) == 1
