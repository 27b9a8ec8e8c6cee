"""What a hunt names: the batch, the weights, the module, the operation, forward or backward, the samples."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose.hunting import capturing, investigation
from caboose.hunting.result import HuntResult
from caboose_wire import Event
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]
NAN, INF = float("nan"), float("inf")
NAME = Path(__file__).name


class Block(torch.nn.Module):
    """A layer and what a test does with its output."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor] = torch.tanh) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.then = then

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.then(self.linear(inputs))


def a_model(then: Callable[[torch.Tensor], torch.Tensor] = torch.tanh) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block(then), torch.nn.Linear(4, 2))


def a_batch(num: int = 6) -> torch.Tensor:
    return torch.randn(num, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def hunting(attach: Attach) -> Callable[..., HuntResult]:
    """A hunt on a batch, before any step was made."""

    def hunt(model: torch.nn.Module, batch: Any, loss_fn: Any = None, **options: Any) -> HuntResult:
        monitor = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), endpoint="tcp://127.0.0.1:9", **options)
        found = monitor.hunt_nan(loss_fn, batch)
        assert found is not None
        return found

    return hunt


def first_row_overflows(hidden: torch.Tensor) -> torch.Tensor:
    return torch.exp(hidden.half()).float()


def test_a_sound_batch_finds_nothing(hunting: Callable[..., HuntResult]) -> None:
    found = hunting(a_model(), a_batch(), lambda model, batch: model(batch).square().mean())
    assert (found.where, found.declined, found.is_found, found.notes) == ("", "", False, ())
    assert found.summary == "rank 0, step 0: no bad number came up again"


def test_bad_samples_of_the_batch_are_named(hunting: Callable[..., HuntResult]) -> None:
    batch = a_batch()
    batch[2, 1], batch[5, 0] = NAN, INF
    found = hunting(a_model(), batch)
    assert (found.where, found.samples, found.num_samples, found.num_bad) == ("input", (2, 5), 6, 2)
    assert found.summary == "rank 0, step 0: input of the batch holds NaN or infinity, in samples 2, 5 of 6"


def test_a_bad_target_is_named_when_only_the_loss_is_given_it(hunting: Callable[..., HuntResult]) -> None:
    targets = torch.zeros(6, 2)
    targets[4, 1] = NAN
    found = hunting(a_model(), (a_batch(), targets), torch.nn.MSELoss())
    assert (found.where, found.tensors, found.samples) == ("input", ("batch[1]",), (4,))


def test_bad_inputs_that_the_model_masks_are_not_accused(hunting: Callable[..., HuntResult]) -> None:
    batch = a_batch()
    batch[0, 0] = NAN
    model = torch.nn.Sequential(a_model())
    model.register_forward_pre_hook(lambda _module, args: torch.nan_to_num(args[0]))
    found = hunting(model, batch)
    assert found.where == ""
    assert "holds bad numbers, which the model does not let through" in found.notes[0]


def test_a_mask_of_minus_infinity_is_no_fault(hunting: Callable[..., HuntResult]) -> None:
    mask = torch.eye(4)[:1].bool()
    found = hunting(a_model(lambda hidden: hidden.masked_fill(mask, -INF).softmax(dim=-1)), a_batch())
    assert found.where == ""


def test_a_row_that_is_masked_altogether_is_named_by_its_softmax(hunting: Callable[..., HuntResult]) -> None:
    mask = torch.zeros(6, 4, dtype=torch.bool)
    mask[3] = True
    found = hunting(a_model(lambda hidden: hidden.masked_fill(mask, -INF).softmax(dim=-1)), a_batch())
    assert (found.where, found.module, found.operation, found.samples) == ("output", "1", "softmax", (3,))


def test_an_overflow_names_module_operation_line_sample_and_size(hunting: Callable[..., HuntResult]) -> None:
    batch = a_batch()
    batch[3] *= 1e4
    model = a_model()
    model[0].then = lambda hidden: hidden
    model[1].then = first_row_overflows
    found = hunting(model, batch)
    assert (found.where, found.module, found.module_kind) == ("output", "1", "Block")
    assert (found.operation, found.dtype, found.samples) == ("exp", "float16", (3,))
    assert found.largest is not None
    assert found.largest > 11
    assert found.line.startswith(f"{NAME}:")
    assert "in first_row_overflows: return torch.exp(hidden.half()).float()" in found.line


def test_infinities_that_a_module_deals_with_itself_are_not_accused(hunting: Callable[..., HuntResult]) -> None:
    def guarded_log(hidden: torch.Tensor) -> torch.Tensor:
        return torch.where(hidden > 0, torch.log(torch.relu(hidden)), 100.0 * torch.ones_like(hidden))

    model = a_model()
    model[0].then, model[1].then = guarded_log, first_row_overflows
    model[1].linear.weight.data.fill_(1.0)
    found = hunting(model, a_batch())
    assert (found.where, found.module, found.operation) == ("output", "1", "exp")


def test_what_is_finite_forward_and_not_backward_is_named_by_its_node(hunting: Callable[..., HuntResult]) -> None:
    def root(hidden: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(hidden * 0.0)

    found = hunting(a_model(root), a_batch(), lambda model, batch: model(batch).square().mean())
    assert (found.where, found.module, found.operation) == ("backward", "1", "SqrtBackward0")
    assert "in root: return torch.sqrt(hidden * 0.0)" in found.line
    assert found.tensors[:1] == ("0.linear.weight",), "what is behind it in the backward"
    assert all("2." not in name for name in found.tensors)


def test_one_sample_whose_backward_breaks_is_found_by_running_halves(hunting: Callable[..., HuntResult]) -> None:
    batch = a_batch()
    batch[4] = 0.0
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))

    def distance(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().sum(dim=1).sqrt().sum().reshape(())

    found = hunting(model, batch, distance)
    assert (found.where, found.operation, found.samples) == ("backward", "SqrtBackward0", (4,))


@pytest.mark.parametrize("num", [3, 16, 40, 256])
def test_where_every_sample_is_bad_no_sample_is_named(hunting: Callable[..., HuntResult], num: int) -> None:
    found = hunting(a_model(lambda hidden: hidden.detach().abs() - 1e9).train(), a_batch(num), log_of_negatives)
    assert (found.where, found.operation) == ("loss", "log")
    assert found.samples == ()
    assert "sample" not in found.summary


def log_of_negatives(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return torch.log(-(model(batch).abs() + 1).mean())


def test_the_ranges_of_targets_and_outputs_are_noted(hunting: Callable[..., HuntResult]) -> None:
    targets = torch.linspace(-3, 5, 12).reshape(6, 2)
    found = hunting(a_model(), (a_batch(), targets), lambda outputs, targets: (outputs - targets).sum().sub(1e9).log())
    assert (found.where, found.operation) == ("loss", "log")
    assert found.notes[0].startswith("targets from -3 to 5, outputs from ")


def test_a_root_of_zero_in_every_row_is_no_samples_fault(hunting: Callable[..., HuntResult]) -> None:
    def distance(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out = model(batch)
        return (out - out.detach()).square().sum(dim=1).sqrt().mean()

    found = hunting(a_model(), a_batch(16), distance)
    assert (found.where, found.operation, found.samples) == ("backward", "SqrtBackward0", ())


def test_many_bad_samples_are_named_as_long_as_one_is_good(hunting: Callable[..., HuntResult]) -> None:
    batch = a_batch(16).abs() + 1
    batch[1:] *= -1

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch).sum(dim=1) * 0 + batch.sum(dim=1)).mean().log()

    found = hunting(a_model(), batch, loss)
    assert found.where == "loss"
    assert found.samples, "sample 0 runs alone without NaN"
    assert 0 not in found.samples


def test_a_buffer_that_is_not_finite_is_the_answer_where_it_is_read(hunting: Callable[..., HuntResult]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).eval()
    model[1].running_mean[2] = NAN
    found = hunting(model, a_batch(16), lambda model, batch: model(batch).square().mean())
    assert (found.where, found.tensors, found.num_bad, found.samples) == ("buffer", ("1.running_mean",), 1, ())
    assert found.summary == "rank 0, step 0: 1.running_mean: 1 elements of the buffer are not finite"


def test_a_constant_that_is_not_finite_leaves_no_broken_sentence(hunting: Callable[..., HuntResult]) -> None:
    constant = torch.tensor([1.0, NAN])
    found = hunting(a_model(), a_batch(16), lambda model, batch: (model(batch) * constant).mean())
    assert (found.where, found.module, found.samples) == ("loss", "", ())
    assert found.summary == "rank 0, step 0: the loss"
    assert "holds a constant that is not finite" in found.notes[0]


def test_a_logarithm_of_zero_in_the_loss_is_named_with_its_line(hunting: Callable[..., HuntResult]) -> None:
    batch = a_batch()

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        chance = torch.sigmoid(model(batch)[:, 0] * 0.0 - torch.tensor([0.0, 0.0, 200.0, 0.0, 0.0, 0.0])[: len(batch)])
        return -torch.log(chance).mean()

    found = hunting(a_model(), batch, loss)
    assert (found.where, found.module, found.operation, found.samples) == ("loss", "", "log", (2,))
    assert "in loss: return -torch.log(chance).mean()" in found.line


def test_a_corrupted_weight_is_named_and_nothing_is_run(hunting: Callable[..., HuntResult]) -> None:
    model = a_model()
    model[1].linear.weight.data[0, 1] = INF
    model.register_forward_hook(lambda *_: pytest.fail("it was run"))
    found = hunting(model, a_batch())
    assert (found.where, found.tensors, found.num_bad) == ("parameter", ("1.linear.weight",), 1)
    assert "explains everything after them" in found.declined


def test_a_bad_statistic_and_a_bad_optimizer_state_are_noted(attach: Attach) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model.register_buffer("mask", torch.tensor([-INF]))
    optimizer = torch.optim.Adam(model.parameters())
    monitor = attach(model, optimizer, endpoint="tcp://127.0.0.1:9")
    model(a_batch()).sum().backward()
    optimizer.step()
    optimizer.state[model[0].weight]["exp_avg_sq"][1, 1] = NAN
    model[1].running_var[2] = INF
    found = monitor.hunt_nan(batch=a_batch())
    assert found is not None
    assert "buffer not finite: 1.running_var (1 elements)" in found.notes
    assert "optimizer state not finite: exp_avg_sq of 0.weight (1 elements)" in found.notes


def test_the_models_own_loss_is_used_where_it_has_one(hunting: Callable[..., HuntResult]) -> None:
    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = a_model()

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.body(inputs)
            return {"logits": logits, "loss": torch.log((logits * 0.0).sum() * labels.float().mean()).mean()}

    model = Whole()
    batch = {"inputs": a_batch(), "labels": torch.ones(6)}
    found = hunting(model, batch, lambda model, batch: model(**batch)["loss"])
    assert (found.where, found.module, found.operation) == ("output", "(the model itself)", "log")


def test_what_the_users_code_raises_is_in_the_result(hunting: Callable[..., HuntResult]) -> None:
    def breaks(_hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such expert")

    found = hunting(a_model(breaks), a_batch())
    assert found.where == ""
    assert found.declined == "the batch could not be run again: RuntimeError: no such expert"


def test_without_a_batch_it_says_how_to_have_one(attach: Attach) -> None:
    model = a_model()
    found = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), endpoint="tcp://127.0.0.1:9").hunt_nan()
    assert found is not None
    assert "attach(..., hunt=True)" in found.declined


def test_a_disabled_monitor_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABOOSE_DISABLED", "1")
    model = a_model()
    assert caboose.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)).hunt_nan(batch=a_batch()) is None


def test_the_time_it_takes_is_bounded() -> None:
    ticks = iter(range(0, 10_000, 50))
    calls = [capturing.Call((a_batch(),), {}) for _ in range(8)]
    suspect = investigation.Suspect(a_model(), (), capturing.Capture(step=3, calls=calls))
    found = investigation.investigate(suspect, clock=lambda: float(next(ticks)))
    assert found.took_seconds < 400, "eight micro-batches at fifty seconds each are not all run"


@contextlib.contextmanager
def training(monitor: caboose.Monitor, model: torch.nn.Module, optimizer: Any) -> Iterator[Callable[..., None]]:
    def step(batch: torch.Tensor) -> None:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss)

    yield step


def test_a_bad_step_is_hunted_by_itself_once_and_told_to_the_daemon(attach: Attach, listening: Collector) -> None:
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, hunt=True)
    batches = [a_batch() for _ in range(12)]
    batches[6][1, 2] = NAN
    with training(monitor, model, optimizer) as step:
        for batch in monitor.watch(batches):
            step(batch)
    (event,) = listening.wait_for(Event)
    assert event.fields["summary"] == "rank 0, step 7: input of batch 6 holds NaN or infinity, in sample 1 of 6"
    assert (event.fields["where"], event.fields["samples"], event.fields["batch"]) == ("input", "1", 6)
    assert "made the weights bad" in str(event.fields["declined"]), "the update was made, and it says so"
