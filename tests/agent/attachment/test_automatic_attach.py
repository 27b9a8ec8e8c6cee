"""How the automatic attach finds optimizers, model, loss and step boundary, in loops of many kinds."""

import logging
import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import caboose
from caboose.attachment.no_code import PATIENCE, AutoAttach
from caboose_wire import StepReport
from support.collector import Collector
from support.norms import grad_norm
from support.processes import wait_until


@pytest.fixture(autouse=True)
def automatic(listening: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[AutoAttach]:
    """What `python -m caboose` puts in place, taken out again."""
    monkeypatch.setenv("CABOOSE_ENDPOINT", listening.endpoint)
    monkeypatch.setenv("CABOOSE_JOB", "auto")
    placed = AutoAttach()
    placed.install()
    yield placed
    placed.stop()
    if placed._monitor is not None:
        placed._monitor.close()


def a_loss(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.randn(5, 4)).pow(2).mean()


class Own(torch.nn.Module):
    """A model with a class of its own, as every real one: torch compiles no module of its own in place."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def losses(listening: Collector, count: int) -> list[float | None]:
    reports = listening.wait_for(StepReport, count)
    assert [r.step for r in reports] == list(range(reports[0].step, reports[0].step + count))
    return [r.loss for r in reports]


def test_torch_is_as_before_once_the_automatic_one_stands_aside(
    automatic: AutoAttach, network: torch.nn.Module
) -> None:
    torch.optim.SGD(network.parameters(), lr=0.1)
    assert torch.nn.Module.__call__.__code__.co_filename.endswith("caboose/attachment/discovery.py")
    automatic.stop()
    for function in (
        torch.nn.Module.__call__,
        torch.autograd.backward,
        torch.amp.GradScaler.scale,
        torch.amp.GradScaler.step,
        torch.optim.Optimizer.__init__,
        caboose.attach,
    ):
        assert not hasattr(function, "__wrapped__"), function


def test_the_search_ends_with_the_first_call_of_the_model(network: torch.nn.Module) -> None:
    torch.optim.SGD(network.parameters(), lr=0.1)
    with torch.no_grad():
        network(torch.randn(1, 4))
    assert hasattr(torch.nn.Module.__call__, "__wrapped__"), "an evaluation may be of an inner model"
    network(torch.randn(1, 4))
    assert not hasattr(torch.nn.Module.__call__, "__wrapped__")


@pytest.mark.parametrize("how", ["as it is", "divided", "multiplied", "twice divided"])
def test_under_accumulation_the_loss_is_the_mean_of_the_micro_batches(
    how: str, network: torch.nn.Module, listening: Collector
) -> None:
    """Also if the loop divides it by their number, and also in the shorter last step of an epoch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    expected = []
    for count in (4, 4, 3):
        own = []
        for _ in range(count):
            loss = a_loss(network)
            own.append(loss.item())
            if how == "divided":
                loss = loss / 4
            elif how == "multiplied":
                loss = loss * 0.25
            elif how == "twice divided":
                loss = (loss / 4) / 1
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(sum(own) / count)
    assert losses(listening, 3) == pytest.approx(expected, rel=1e-5)


def test_a_scalers_scale_is_not_in_the_loss_and_a_skipped_step_is_a_step(
    network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=True)
    expected = []
    for step in range(4):
        loss = a_loss(network)
        if step in (0, 2):
            loss = loss * float("nan")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses(listening, 4) == pytest.approx(expected, rel=1e-6, nan_ok=True)
    first, second, third, _ = listening.reports
    assert grad_norm(first) is None, "the optimizer never saw these gradients"
    assert grad_norm(second) is not None
    assert math.isfinite(grad_norm(second))
    assert grad_norm(third) is None


def test_scaled_and_divided_micro_batches_report_their_mean(network: torch.nn.Module, listening: Collector) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    own = []
    for _ in range(2):
        loss = a_loss(network)
        own.append(loss.item())
        scaler.scale(loss / 2).backward()
    scaler.step(optimizer)
    assert losses(listening, 1) == pytest.approx([sum(own) / 2], rel=1e-6)


def test_losses_given_to_backward_together_are_added(network: torch.nn.Module, listening: Collector) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    first, second = a_loss(network), a_loss(network)
    torch.autograd.backward(tensors=[first, second])
    optimizer.step()
    assert losses(listening, 1) == pytest.approx([first.item() + second.item()], rel=1e-6)


def test_a_backward_inside_a_backward_is_no_loss(network: torch.nn.Module, listening: Collector) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.randn(1, 4, requires_grad=True)
    loss = checkpoint(network, x, use_reentrant=True).sum()
    loss.backward()
    optimizer.step()
    assert losses(listening, 1) == pytest.approx([loss.item()], rel=1e-6)


def test_a_step_without_a_backward_has_no_loss(network: torch.nn.Module, listening: Collector) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        gradients = torch.autograd.grad(a_loss(network), list(network.parameters()))
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    assert losses(listening, 2) == [None, None]
    assert grad_norm(listening.reports[1]) == pytest.approx(float(torch.nn.utils.get_total_norm(gradients)), rel=1e-5)


@pytest.mark.parametrize("limit", [1e-3, None])
def test_the_norm_of_the_step_it_attaches_in_is_unknown_since_it_may_be_clipped_already(
    limit: float | None, network: torch.nn.Module, listening: Collector
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    expected = []
    for _ in range(3):
        a_loss(network).backward()
        expected.append(float(torch.nn.utils.get_total_norm([p.grad for p in network.parameters()])))  # type: ignore[misc]
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
    first, *others = (grad_norm(r) for r in listening.wait_for(StepReport, 3))
    assert first is None
    assert others == pytest.approx(expected[1:], rel=1e-5)


def test_two_optimizers_of_one_model_make_one_step(network: torch.nn.Module, listening: Collector) -> None:
    pair = [torch.optim.SGD(network[0].parameters(), lr=0.1), torch.optim.AdamW(network[2].parameters(), lr=0.2)]
    expected = []
    for _ in range(3):
        loss = a_loss(network)
        loss.backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()
        expected.append(loss.item())
    assert losses(listening, 3) == pytest.approx(expected, rel=1e-6)
    assert all(r.lr == (0.1, 0.2) for r in listening.reports)
    assert all((r.arrays["grad_norm"] >= 0).all() for r in listening.reports[1:]), "each step has the layers of both"


def test_an_optimizer_that_steps_more_often_than_the_other_sets_the_pace(
    network: torch.nn.Module, listening: Collector
) -> None:
    often = torch.optim.SGD(network[0].parameters(), lr=0.1)
    seldom = torch.optim.SGD(network[2].parameters(), lr=0.1)
    for step in range(6):
        a_loss(network).backward()
        often.step()
        if step % 3 == 2:
            seldom.step()
    assert len(losses(listening, 6)) == 6


def test_two_models_with_an_optimizer_each_are_told_apart(network: torch.nn.Module, listening: Collector) -> None:
    """As in a GAN: the one whose optimizer steps first is the first part, though the other was called before it."""
    judge = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Linear(3, 1))
    for_network = torch.optim.SGD(network.parameters(), lr=0.01)
    for_judge = torch.optim.SGD(judge.parameters(), lr=0.01)
    for _ in range(3):
        judge(network(torch.randn(5, 4)).detach()).mean().backward()
        for_judge.step()
        judge(network(torch.randn(5, 4))).mean().backward()
        for_network.step()
    assert len(losses(listening, 3)) == 3
    first, second = listening.hellos[-1].parts
    assert [layer.numel for layer in listening.hellos[-1].layers[slice(*first.layers)]] == [3, 3, 3, 1]
    assert second.layers == (4, 8)


def test_the_inner_optimizer_of_a_wrapping_one_is_not_counted_twice(
    network: torch.nn.Module, listening: Collector
) -> None:
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__([p for g in inner.param_groups for p in g["params"]], {"lr": 0.1})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    optimizer = Lookahead(torch.optim.SGD(network.parameters(), lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        a_loss(network).backward()
        total = float(torch.nn.utils.get_total_norm([p.grad for p in network.parameters()]))
        optimizer.step()
    assert len(losses(listening, 2)) == 2
    assert grad_norm(listening.reports[1]) == pytest.approx(total, rel=1e-5)


def test_a_model_whose_methods_are_called_instead_of_itself_is_found_whole(listening: Collector) -> None:
    class Task(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(x)).pow(2).mean()

    task = Task()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    task.loss(torch.randn(5, 4)).backward()
    optimizer.step()
    listening.wait_for(StepReport)
    assert listening.hellos[0].wrapper == "Task"
    assert len(listening.hellos[0].layers) == 4


def test_an_optimizer_of_bare_tensors_is_let_be(network: torch.nn.Module, listening: Collector) -> None:
    image = torch.randn(3, requires_grad=True)
    style = torch.optim.SGD([image], lr=0.1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    expected = []
    for _ in range(3):
        style.step()
        loss = a_loss(network)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses(listening, 3) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("inner_steps", [2, PATIENCE + 5])
@pytest.mark.parametrize("is_parameter", [False, True])
def test_inputs_that_are_fitted_between_two_steps_are_neither_a_phase_nor_a_part(
    network: torch.nn.Module, listening: Collector, inner_steps: int, is_parameter: bool
) -> None:
    """As in adversarial training: an optimizer for each batch, and the next one may get the identity of the last."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    expected = []
    for _ in range(12):
        change = torch.nn.Parameter(torch.zeros(5, 4)) if is_parameter else torch.zeros(5, 4, requires_grad=True)
        fitting = torch.optim.Adam([change], lr=0.1)
        for _ in range(inner_steps):
            fitting.zero_grad()
            (-network(change).pow(2).mean()).backward()
            fitting.step()
        optimizer.zero_grad()
        loss = network(change.detach()).pow(2).mean()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    expected += phase(network, optimizer, 1)  # with one more, the step before has ended
    assert losses(listening, 13) == pytest.approx(expected, rel=1e-6)
    assert [hello.parts for hello in listening.hellos] == [()] * len(listening.hellos)
    assert {hello.start_step for hello in listening.hellos} == {0}


def phase(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Trains; returns the losses."""
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = a_loss(model)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_no_step_of_a_new_phase_with_a_new_optimizer_is_lost(network: torch.nn.Module, listening: Collector) -> None:
    expected = phase(network, torch.optim.SGD(network[2].parameters(), lr=0.1), 3)
    second = torch.optim.Adam(network.parameters(), lr=0.01)
    expected += phase(network, second, PATIENCE + 2)
    reports = listening.wait_for(StepReport, len(expected))
    assert [r.step for r in reports] == list(range(1, len(expected) + 1))
    assert [r.loss for r in reports] == pytest.approx(expected, rel=1e-6)
    assert [r.lr for r in reports] == [(0.1,)] * 3 + [(0.01,)] * (PATIENCE + 2)
    assert len(listening.hellos) == 2
    assert listening.hellos[1].start_step == 3
    kept = reports[3:]
    assert kept[0].phases is None, "how long the first one took is not known"
    assert all(r.phases is not None and r.phases.total > 0 for r in kept[1:])
    assert [r.seq for r in kept] == list(range(1, PATIENCE + 3))


def test_a_new_optimizer_of_the_same_model_is_watched_from_its_first_step_on(
    network: torch.nn.Module, listening: Collector
) -> None:
    expected = phase(network, torch.optim.SGD(network.parameters(), lr=0.1), PATIENCE)
    expected += phase(network, torch.optim.SGD(network[2].parameters(), lr=0.01), 3)
    reports = listening.wait_for(StepReport, PATIENCE + 3)
    assert [r.loss for r in reports] == pytest.approx(expected, rel=1e-6)
    assert [(r.step, r.lr) for r in reports[PATIENCE:]] == [(PATIENCE + n, (0.01,)) for n in (1, 2, 3)]
    assert all(grad_norm(r) is not None for r in reports[PATIENCE + 1 :]), "watched, not only told afterwards"


@pytest.mark.parametrize("steps", [PATIENCE - 1, PATIENCE + 5])
def test_layers_that_are_trained_one_after_the_other_lose_no_step(listening: Collector, steps: int) -> None:
    """Both optimizers exist from the beginning, as in greedy layer-wise training."""
    layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    expected = phase(layers[0], optimizers[0], 30) + phase(layers[1], optimizers[1], steps)
    num = len(expected) if steps > PATIENCE else 30
    reports = listening.wait_for(StepReport, num)
    assert [r.step for r in reports] == list(range(1, num + 1))
    assert [r.loss for r in reports] == pytest.approx(expected[:num], rel=1e-6)


def test_of_a_phase_with_several_optimizers_what_was_not_seen_is_stated(
    network: torch.nn.Module, listening: Collector
) -> None:
    phase(network, torch.optim.SGD(network.parameters(), lr=0.1), 3)
    models = [torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(PATIENCE):
        for model, optimizer in zip(models, optimizers, strict=True):
            phase(model, optimizer, 1)
    listening.wait_for(StepReport, 3 + PATIENCE // 2)
    assert wait_until(lambda: "first_steps" in listening.hellos[-1].blind, 5)
    assert f"the first {PATIENCE} steps" in listening.hellos[-1].blind["first_steps"]


def test_models_that_are_trained_an_epoch_each_in_turn_have_their_losses(listening: Collector) -> None:
    """As the folds of a cross-validation, in one line of the script; the phases are shorter than the patience."""
    models = [torch.nn.Linear(4, 1) for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            phase(model, optimizer, 14)
    reports = listening.wait_for(StepReport, 30)
    late = [r.loss for r in reports[14:]]
    assert late
    assert None not in late


def test_an_optimizer_whose_step_raised_does_not_hide_those_that_follow(
    network: torch.nn.Module, listening: Collector
) -> None:
    class Failing(torch.optim.SGD):
        has_failed = False

        def step(self, closure: Any = None) -> Any:
            if self.has_failed:
                raise MemoryError
            return super().step(closure)

    first = Failing(network.parameters(), lr=0.1)
    expected = phase(network, first, 3)
    first.has_failed = True
    with pytest.raises(MemoryError):
        phase(network, first, 1)
    other = torch.nn.Linear(4, 1)
    expected += phase(other, torch.optim.SGD(other.parameters(), lr=0.01), PATIENCE + 3)
    reports = listening.wait_for(StepReport, PATIENCE + 2)
    assert reports[-1].lr == (0.01,)


def test_a_resumed_optimizer_says_where_it_continues(network: torch.nn.Module, listening: Collector) -> None:
    before = torch.optim.AdamW(network.parameters())
    caboose.attach(network, before).close()  # the automatic one stands aside
    for _ in range(3):
        a_loss(network).backward()
        before.step()
    again = AutoAttach()
    again.install()
    try:
        after = torch.optim.AdamW(network.parameters())
        after.load_state_dict(before.state_dict())
        a_loss(network).backward()
        after.step()
        assert [r.step for r in listening.wait_for(StepReport)] == [4]
        assert listening.hellos[-1].start_step == 3
    finally:
        again.stop()
        assert again._monitor is not None
        again._monitor.close()


def test_an_attach_by_hand_takes_over_from_the_automatic_one(network: torch.nn.Module, listening: Collector) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    a_loss(network).backward()
    optimizer.step()
    listening.wait_for(StepReport)
    with caboose.attach(network, optimizer, job="by-hand") as monitor:
        loss = a_loss(network)
        loss.backward()
        optimizer.step()
        monitor.step(loss)
        reports = listening.wait_for(StepReport, 2)
    assert [h.job for h in listening.hellos] == ["auto", "by-hand"]
    assert len(reports) == 2


@pytest.mark.parametrize("compiled", ["wrapped", "in place"])
def test_a_compiled_model_is_found_and_stays_one_graph(
    compiled: str, network: torch.nn.Module, listening: Collector
) -> None:
    """No warning of torch's about hooks (it would fail the test), and no break in the graph (fullgraph would raise)."""
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model: Any = Own(network)
    if compiled == "wrapped":
        model = torch.compile(model, backend=backend, fullgraph=True)
    else:
        model.compile(backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = a_loss(model)
    loss.backward()
    optimizer.step()
    assert losses(listening, 1) == pytest.approx([loss.item()], rel=1e-6)
    assert listening.hellos[0].wrapper == ("OptimizedModule" if compiled == "wrapped" else "Own")
    assert len(graphs) == 1


def test_a_failure_of_ours_is_logged_once_and_the_script_goes_on(
    automatic: AutoAttach, network: torch.nn.Module, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CABOOSE_ENDPOINT", "nowhere")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, "caboose"):
        for _ in range(3):
            a_loss(network).backward()
            optimizer.step()
    assert len(caplog.records) == 1
    assert "automatic attach failed, training continues without it" in caplog.text


def test_an_optimizer_that_cannot_be_hashed_does_not_fail_the_script(
    network: torch.nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(torch.optim.SGD):
        def __eq__(self, other: object) -> bool:
            return False

    optimizer = Odd(network.parameters(), lr=0.1)
    for _ in range(15):
        a_loss(network).backward()
        optimizer.step()
    assert "switched itself off" in caplog.text


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # fork is what is tested
def test_a_forked_child_is_silent(network: torch.nn.Module, listening: Collector) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    a_loss(network).backward()
    optimizer.step()
    child = os.fork()
    if child == 0:
        optimizer.step()
        os._exit(hasattr(torch.autograd.backward, "__wrapped__"))
    assert os.waitpid(child, 0)[1] == 0
    optimizer.step()
    assert len(losses(listening, 2)) == 2
    assert len(listening.hellos) == 1
