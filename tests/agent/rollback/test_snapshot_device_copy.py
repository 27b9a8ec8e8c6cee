"""On an accelerator, nothing is written before it is copied, and the host waits for nothing. The hardware is a fake."""

from typing import Any

import pytest
import torch

from caboose.rollback.device_copy import Lane


class FakeEvent:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.name = "event"

    def record(self, stream: "FakeStream") -> None:
        stream.log.append(f"{stream.name} records {self.name}")

    def synchronize(self) -> None:
        FakeStream.log.append("the host waits")

    def elapsed_time(self, _: "FakeEvent") -> float:
        return 250.0


class FakeStream:
    """Writes down what would be queued on which stream."""

    log: list[str]

    def __init__(self, name: Any) -> None:
        self.name = name if name == "training" else "side"

    def wait_stream(self, other: "FakeStream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> FakeEvent:
        event = FakeEvent()
        event.name = f"after {len(self.log)}"
        self.log.append(f"{self.name} records early")
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {'early' if event.name.startswith('after') else 'late'}")

    def __enter__(self) -> None:
        self.log.append("on the side")

    def __exit__(self, *_: Any) -> None:
        self.log.append("back")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeStream.log = []
    training = FakeStream("training")
    monkeypatch.setattr(torch, "Stream", FakeStream)
    monkeypatch.setattr(torch, "Event", FakeEvent)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _: training)
    return FakeStream.log


def test_the_training_waits_for_what_may_change_at_once_and_for_the_rest_before_the_next_step(log: list[str]) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    lane = Lane(torch.device("cuda"), [optimizer])
    assert lane.is_pinned
    live = {"parameter/a": parameter.data, "buffer/b": torch.full((2,), 3.0)}
    host = {name: torch.zeros(2) for name in live}
    passage = lane.out(list(live), lambda names: [host[name] for name in names], live)
    assert log == [
        "side waits for training",
        "on the side",
        "side records event",
        "side records early",
        "training waits for early",
        "side records event",
        "back",
    ]
    assert {name: tensor.tolist() for name, tensor in host.items()} == {"parameter/a": [1, 1], "buffer/b": [3, 3]}
    log.clear()
    optimizer.step()
    assert log == ["training waits for late"]
    optimizer.step()
    assert log == ["training waits for late"], "once is enough"
    log.clear()
    assert passage.wait() == 0.25
    assert log == ["the host waits"], "on the inspector's thread, that is"
    lane.close()


def test_without_an_accelerator_there_is_no_hook_and_nothing_to_wait_for(log: list[str]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    lane = Lane(torch.device("cpu"), [optimizer])
    host = torch.zeros(2)
    passage = lane.out(["buffer/b"], lambda _: [host], {"buffer/b": torch.ones(2)})
    assert passage.wait() == 0.0
    assert host.tolist() == [1, 1]
    assert not optimizer._optimizer_step_pre_hooks
    assert log == []
