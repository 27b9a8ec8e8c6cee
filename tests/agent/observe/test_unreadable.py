"""What the agent cannot read is left out, said once, and the rest of the report is sent."""

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import caboose
from caboose.guard import MAX_FAILURES, left_out
from caboose.observe.batches import BatchCounter
from caboose_wire import StepReport
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]
STEPS = 2 * MAX_FAILURES


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    left_out.cache_clear()


class Loop:
    """Trains a little, with every step sampled."""

    def __init__(self, attach: Attach, listening: Collector, model: torch.nn.Module) -> None:
        self.model = model
        self._listening = listening
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.monitor = attach(
            model, self._optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(1, overhead_budget=1.0)
        )

    def run(
        self,
        *,
        batch: Any = None,
        loss_of: Callable[[torch.Tensor], Any] = lambda loss: loss,
        forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
        **more: Any,
    ) -> list[StepReport]:
        for _ in self.monitor.watch([batch] * STEPS):
            loss = (forward or self.model)(torch.randn(5, 4)).pow(2).mean()
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            self.monitor.step(loss_of(loss), **more)
        found = self._listening.wait_for(StepReport, STEPS)
        assert [report.step for report in found] == list(range(1, STEPS + 1))
        assert all(grad_norm(report) is not None for report in found)
        assert self.monitor.guard.num_failures == 0
        return found


@pytest.fixture
def loop(attach: Attach, listening: Collector, network: torch.nn.Module) -> Loop:
    return Loop(attach, listening, network)


class Hidden(torch.nn.Module):
    """A model whose calls do not show its input, so that the loader's batch is all there is."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, source: Callable[[], torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.inner(source())
        return found


@pytest.fixture
def hidden(attach: Attach, listening: Collector, network: torch.nn.Module) -> Loop:
    return Loop(attach, listening, Hidden(network))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "caboose"]


BATCHES: dict[str, Callable[[], torch.Tensor]] = {
    "uint16": lambda: torch.ones(4, 8, dtype=torch.uint16),
    "eight-bit floats": lambda: torch.ones(4, 8).to(torch.float8_e4m3fn),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_without_a_range_is_reported_without_one(
    kind: str, hidden: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    batch = BATCHES[kind]()
    with caplog.at_level(logging.WARNING, logger="caboose"):
        report = hidden.run(batch=batch, forward=lambda x: hidden.model(lambda: x))[-1]
    assert report.batch is not None
    assert report.batch.index == STEPS - 1
    assert report.batch.lowest is None
    assert report.batch.shape == (() if kind == "jagged" else tuple(batch.shape))
    assert len(said(caplog)) == 1
    assert "a batch of" in said(caplog)[0]


def test_a_complex_batch_has_the_range_of_its_parts(hidden: Loop) -> None:
    batch = torch.tensor([1 - 3j, 2 + 5j, complex(math.nan, 0)])
    seen = hidden.run(batch=batch[:2], forward=lambda x: hidden.model(lambda: x))[-1].batch
    assert seen is not None
    assert (seen.lowest, seen.highest, seen.num_bad) == (-3.0, 5.0, 0)


class Aside(torch.nn.Module):
    """Puts out something odd, beside what is trained."""

    def __init__(self, odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._odd = odd

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._odd(x.detach())


class Odd(torch.nn.Module):
    """Two plain layers with something odd between them."""

    def __init__(self, odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.aside = Aside(odd)
        self.last = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        self.aside(hidden)
        return self.last(hidden)


OUTPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "eight-bit floats": lambda x: x.to(torch.float8_e4m3fn),
    "sparse": lambda x: x.to_sparse(),
    "jagged": lambda x: torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_that_cannot_be_read_leaves_those_of_the_other_modules(
    kind: str, attach: Attach, listening: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="caboose"):
        report = Loop(attach, listening, Odd(OUTPUTS[kind])).run()[-1]
    assert list(report.arrays["activation_order"]) == [0, -1, 1]
    assert len(said(caplog)) == 1
    assert "an activation of" in said(caplog)[0]


def test_activations_inside_a_transform_are_left_out(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        parameters = dict(loop.model.named_parameters())

        def one(row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(loop.model, parameters, (row[None],))[0]  # type: ignore[no-any-return]

        return torch.func.vmap(one)(x)

    with caplog.at_level(logging.WARNING, logger="caboose"):
        assert "activation_std" not in loop.run(forward=forward)[-1].arrays
    assert said(caplog) == [
        f"caboose: {what} inside a torch.func transform cannot be read and is left out"
        for what in ("an activation", "a batch")
    ]


LOSSES: dict[str, tuple[Callable[[torch.Tensor], Any], float | None]] = {
    "an array of one": (lambda _: np.array([0.5]), 0.5),
    "an array of many": (lambda _: np.array([0.25, 0.75]), 0.5),
    "integers": (lambda _: torch.tensor([1, 2]), 1.5),
    "a dict": (lambda loss: {"loss": loss}, None),
    "nothing in it": (lambda _: torch.zeros(0), None),
    "complex": (lambda _: torch.tensor(1j), None),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_of_any_kind_is_told_or_left_out(kind: str, loop: Loop) -> None:
    loss_of, expected = LOSSES[kind]
    assert {report.loss for report in loop.run(loss_of=loss_of)} == {expected}


def test_metrics_and_counts_that_are_no_numbers_are_left_out(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    metrics = {"none": None, "vector": torch.ones(3), "array": np.ones(1), "half": 0.5}
    with caplog.at_level(logging.WARNING, logger="caboose"):
        report = loop.run(metrics=metrics, num_samples="many", num_tokens=torch.tensor(7))[-1]
    assert report.metrics == {"array": 1.0, "half": 0.5}
    assert (report.num_samples, report.num_tokens) == (None, 7)
    assert len(said(caplog)) == 2, "each kind of metric once"


def test_more_metrics_than_fit_are_cut_off(loop: Loop) -> None:
    assert len(loop.run(metrics={f"m{number}": 1.0 for number in range(300)})[-1].metrics) == 256


def test_a_step_that_fails_to_be_told_is_over_all_the_same(
    loop: Loop, listening: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed the current one, with all it held, and failed again at the next boundary."""
    real = BatchCounter.add_to
    calls = []

    def fails_once(self: Any, pieces: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("injected")
        real(self, pieces)

    monkeypatch.setattr("caboose.observe.batches.BatchCounter.add_to", fails_once)
    observer = loop.monitor._observer
    assert observer is not None
    for number in (1, 2):
        loss = loop.model(torch.full((5, 4), float(number))).pow(2).mean()
        loss.backward()
        loop.monitor.step(loss)
    report = listening.wait_for(StepReport)[0]
    assert report.step == 2
    assert report.loss == loss.item(), "nothing of the step before is in it"
    assert loop.monitor.guard.num_failures == 1
