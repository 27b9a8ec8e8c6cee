"""What a sampled step shows beside the norms, against numbers computed by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import caboose
from caboose.observe.activations import WINDOW
from caboose.observe.opaque import OPAQUE
from caboose.observe.weights import PART, Fingerprint
from caboose.tensors.subsample import BINS, LOWEST, histogram, sample, zero_fraction
from caboose_wire import Hello, StepReport
from support.collector import Collector
from support.norms import grad_norm

Attach = Callable[..., caboose.Monitor]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def one_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, monitor: caboose.Monitor, x: torch.Tensor
) -> None:
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss)


def first_report(
    attach: Attach, listening: Collector, model: torch.nn.Module, x: torch.Tensor, steps: int = 1
) -> StepReport:
    optimizer = sgd(model)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(1, overhead_budget=1.0))
    for _ in range(steps):
        one_step(model, optimizer, monitor, x)
    return listening.wait_for(StepReport, steps)[-1]


def by_module(listening: Collector, report: StepReport, name: str) -> dict[str, float]:
    hello = listening.wait_for(Hello)[-1]
    return {module.name: float(value) for module, value in zip(hello.modules, report.arrays[name], strict=False)}


# Samples and histograms


@pytest.mark.parametrize("shape", [(3,), (1,), (511,), (512,), (1000, 7), (64, 3, 5, 5)])
def test_a_sample_has_the_tensors_own_elements(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    row = sample([tensor])[0]
    assert row.shape == (512,)
    assert set(row.tolist()) <= set(tensor.flatten().tolist())


def test_a_histogram_counts_magnitudes_by_power_of_two_and_loses_nothing() -> None:
    row = torch.tensor([[0.0, 1.0, -1.5, 2.0, 1e-30, 1e30, math.nan, math.inf]])
    counts = histogram(row)[0] * row.shape[1]
    assert counts[-LOWEST] == 2, "1.0 and -1.5 lie in [1, 2)"
    assert counts[-LOWEST + 1] == 1
    assert counts[0] == 1, "the first bin is open below"
    assert counts[BINS - 1] == 1, "the last bin is open above"
    assert counts[BINS] == 1, "zeros"
    assert counts[BINS + 1] == 1, "negative"
    assert counts[: BINS + 1].sum() == 6, "what is not finite is in no bin"


def test_temporaries_stay_small_however_large_the_layers() -> None:
    big = [torch.zeros(4_000_000)]
    assert sample(big).numel() == 512
    assert zero_fraction(sample(big)).tolist() == [1.0]


# Activations


class Silent(torch.nn.Module):
    """A ReLU layer of which the first half of the units can never fire."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 8)
        self.relu = torch.nn.ReLU()
        self.head = torch.nn.Linear(8, 1)
        with torch.no_grad():
            self.inner.bias[:4] = -1e6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.inner(x)))


def test_dead_units_are_those_that_no_sample_of_the_window_moved(attach: Attach, listening: Collector) -> None:
    torch.manual_seed(0)
    report = first_report(attach, listening, Silent(), torch.randn(64, 4), steps=WINDOW)
    assert by_module(listening, report, "activation_dead")["relu"] == 0.5
    before = listening.reports[WINDOW - 2]
    assert by_module(listening, before, "activation_dead")["relu"] == -1, "the window was not full"
    assert by_module(listening, report, "activation_dead")["inner"] == -1, "a linear layer cannot be dead"


def test_statistics_of_an_activation_are_those_of_its_output(attach: Attach, listening: Collector) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x = torch.randn(128, 4)
    out = model[1](model[0](x)).detach()
    report = first_report(attach, listening, model, x)
    assert by_module(listening, report, "activation_std")["1"] == pytest.approx(float(out.std()), rel=1e-3)
    assert by_module(listening, report, "activation_max")["1"] == pytest.approx(float(out.abs().max()))
    assert report.arrays["activation_order"].tolist() == [0, 1, 2]
    assert report.arrays["activation_histogram"].shape == (3, 34)


@pytest.mark.parametrize(("kind", "gain"), [(torch.nn.Tanh, 1.0), (torch.nn.Sigmoid, 2.0)])
def test_saturation_is_counted_on_the_flat_ends_of_its_own_kind(
    attach: Attach, listening: Collector, kind: type[torch.nn.Module], gain: float
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), kind(), torch.nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    x = torch.tensor([[0.0], [2.17 * gain], [2.19 * gain], [-2.19 * gain]]).repeat(128, 1)
    report = first_report(attach, listening, model, x)
    assert by_module(listening, report, "activation_saturated")["1"] == pytest.approx(0.5)
    assert by_module(listening, report, "activation_saturated")["0"] == -1


def test_the_first_module_that_is_not_finite_is_known_by_the_order(attach: Attach, listening: Collector) -> None:
    class Backwards(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(4, 4)  # listed first, called last
            self.first = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.log(self.first(x) * 0 - 1))

    report = first_report(attach, listening, Backwards(), torch.randn(8, 4))
    order = by_module(listening, report, "activation_order")
    largest = by_module(listening, report, "activation_max")
    assert order["first"] < order["last"]
    assert math.isfinite(largest["first"])
    assert not math.isfinite(largest["last"])


def test_functional_activations_are_seen_where_they_are_called(attach: Attach, listening: Collector) -> None:
    class Functional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = torch.nn.Module()
            self.one = torch.nn.Linear(4, 4)
            self.two = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.tanh(F.relu(self.one(x))) + F.relu(x))

    report = first_report(attach, listening, Functional(), torch.randn(64, 4), steps=2)
    names = by_module(listening, report, "activation_zero_fraction")
    assert {"relu", "relu#2", "tanh"} <= set(names)
    assert 0.2 < names["relu#2"] < 0.8


def test_recomputation_by_checkpointing_is_not_counted_twice(attach: Attach, listening: Collector) -> None:
    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.inner = torch.nn.Linear(4, 4)
            self.relu = torch.nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def part(y: torch.Tensor) -> torch.Tensor:
                self.calls += 1
                return self.relu(self.inner(y))

            return checkpoint(part, x, use_reentrant=False)

    model = Checkpointed()
    report = first_report(attach, listening, model, torch.randn(8, 4))
    assert model.calls == 2
    assert report.arrays["activation_order"].tolist() == [0, 1]


def test_an_error_in_the_forward_leaves_nothing_behind(attach: Attach, listening: Collector) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    attach(model, sgd(model), endpoint=listening.endpoint, sampling=1)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.randn(2, 5))
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert torch._C._len_torch_function_stack() == 0


def test_a_compiled_model_is_stated_blindness(attach: Attach, listening: Collector) -> None:
    model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
    report = first_report(attach, listening, model, torch.randn(2, 4))
    hello = listening.wait_for(Hello)[0]
    assert hello.blind["activations"] == OPAQUE["compiled"]
    assert "activations" not in hello.visible
    assert "grad_norm" in report.arrays


# Weights


def test_the_update_ratio_is_that_of_the_real_update(attach: Attach, listening: Collector) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 32)  # 512 elements: the sample is the whole
    before = model.weight.detach().clone()
    report = first_report(attach, listening, model, torch.randn(8, 16))
    moved = (model.weight.detach() - before).norm() / before.norm()
    assert report.arrays["update_ratio"][0] == pytest.approx(float(moved), rel=1e-5)
    assert report.arrays["weight_norm"][0] == pytest.approx(float(model.weight.detach().norm()), rel=1e-6)
    assert report.arrays["weight_histogram"].shape == (2, 34)
    assert report.arrays["grad_zero_fraction"].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_flipped_bit_anywhere_changes_the_fingerprint(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(37, dtype=dtype), torch.randn(8, 5, dtype=dtype), torch.randn(2, 3, 4, 4, dtype=dtype)]
    tensors[2] = tensors[2].to(memory_format=torch.channels_last)
    prints = Fingerprint(tensors)
    whole, layers = prints.take()
    again, _ = Fingerprint([t.clone() for t in tensors]).take()
    assert torch.equal(whole, again)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensors[0].element_size()]
    rng = np.random.default_rng(0)
    for _ in range(60):
        number = int(rng.integers(3))
        bits = tensors[number].as_strided((tensors[number].numel(),), (1,)).view(integers)
        where, bit = int(rng.integers(bits.numel())), int(rng.integers(8 * tensors[0].element_size() - 1))
        bits[where] ^= 1 << bit
        changed, changed_layers = prints.take()
        assert not torch.equal(changed, whole)
        assert (changed_layers != layers).nonzero().flatten().tolist() == [number]
        bits[where] ^= 1 << bit
    assert torch.equal(prints.take()[0], whole)


@pytest.mark.parametrize("num", [PART - 1, PART, PART + 1, 3 * PART + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_layer_has_the_fingerprint_of_its_whole_sum(dtype: torch.dtype, num: int) -> None:
    """It is summed in parts, which must not change what other versions of the agent report."""
    layer = torch.randn(num).to(dtype)
    folded = Fingerprint([layer]).take()[1]
    whole = layer.view({2: torch.int16, 4: torch.int32}[layer.element_size()]).sum(dtype=torch.int64)

    assert folded.tolist() == [int((whole ^ (whole >> 24) ^ (whole >> 48)) & 0xFFFFFF)]


def test_only_a_parameters_own_elements_enter_the_fingerprint() -> None:
    """What lies between them in memory is nobody's, and differs from rank to rank."""
    bases = [torch.randn(6, 8) for _ in range(2)]
    bases[1][:, :4] = bases[0][:, :4]
    here, there = (Fingerprint([torch.nn.Parameter(base[:, :4])]).take()[0] for base in bases)
    assert torch.equal(here, there)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parameters_have_a_fingerprint(dtype: torch.dtype) -> None:
    tensor = torch.randn(5, dtype=dtype)
    before, _ = Fingerprint([tensor]).take()
    tensor[3] += 1e-3j
    assert not torch.equal(before, Fingerprint([tensor]).take()[0])


# The rest


def test_modes_batches_and_settings_are_reported(attach: Attach, listening: Collector) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    model[1].eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    monitor = attach(
        model,
        optimizer,
        endpoint=listening.endpoint,
        scheduler=scheduler,
        sampling=caboose.Sampling(1, overhead_budget=1.0),
    )
    data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(6, 4), torch.zeros(6))
    for x, _y in monitor.watch(torch.utils.data.DataLoader(data, batch_size=3)):
        one_step(model, optimizer, monitor, x)
        scheduler.step()
    first, second = listening.wait_for(StepReport, 2)
    assert first.mode is not None
    assert (first.mode.is_training, first.mode.num_norms_in_eval, first.mode.num_dropouts_in_eval) == (True, 1, 0)
    assert first.batch is not None
    assert (first.batch.index, first.batch.epoch, first.batch.shape, first.batch.num_bad) == (0, 0, (3, 4), 0)
    assert second.batch is not None
    assert (second.batch.index, second.batch.lowest, second.batch.highest) == (1, 12.0, 23.0)
    assert (first.num_scheduler_steps, second.num_scheduler_steps) == (0, 1)
    assert first.host_bytes is not None
    assert first.host_bytes > 2**20
    facts = listening.wait_for(Hello)[-1].facts
    assert (facts["batch_size"], facts["dataset_length"], facts["norms"]) == (3, 6, "BatchNorm1d")
    assert facts["num_workers"] == 0
    assert facts["dropout"] == "0.5"


def test_the_batch_of_a_step_that_went_wrong_is_looked_at_also_between_samples(
    attach: Attach, listening: Collector
) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = sgd(model)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=1000)
    batches = [torch.ones(2, 4) for _ in range(4)]
    batches[2][0, 1] = math.nan
    for x in monitor.watch(batches):
        one_step(model, optimizer, monitor, x)
    reports = listening.wait_for(StepReport, 4)
    assert [r.batch.num_bad for r in reports if r.batch is not None][1:3] == [None, 1]


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float16, "float16"), (torch.bfloat16, None)])
def test_half_precision_under_autocast_is_a_fact(
    attach: Attach, listening: Collector, dtype: torch.dtype, expected: str | None
) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampling = caboose.Sampling(1, overhead_budget=1.0)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=sampling)
    for _ in range(3):
        with torch.autocast("cpu", dtype=dtype):
            loss = model(torch.ones(8, 4)).float().mean()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    listening.wait_for(StepReport, 3)

    facts = listening.wait_for(Hello)[-1].facts
    assert (facts["precision"], facts.get("computes_in")) == ("float32", expected)


def test_parameters_that_no_optimizer_holds_are_told(attach: Attach, listening: Collector) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    attach(model, torch.optim.SGD(model[0].parameters(), lr=0.1), endpoint=listening.endpoint)
    assert [layer.held for layer in listening.wait_for(Hello)[0].layers] == [True, True, False, False]


def test_steps_that_a_scaler_skips_are_counted(attach: Attach, listening: Collector) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    monitor = attach(model, optimizer, scaler=scaler, endpoint=listening.endpoint)
    for bad in (False, True, False):
        loss = model(torch.ones(2, 4)).mean() * (math.inf if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        monitor.step(loss)
    reports = listening.wait_for(StepReport, 3)
    assert [r.scaler.num_skipped for r in reports if r.scaler is not None] == [0, 1, 1]
    assert grad_norm(reports[1]) is None
    assert [r.scaler.scale for r in reports if r.scaler is not None] == [8.0, 4.0, 4.0]
