"""Runs as people write them, that train: no check fails on any of them."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

import caboose
from caboose.checklist.report import Report

Parts = dict[str, Any]
SIZE = 8


def a_generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def the_inputs(num: int = 128) -> torch.Tensor:
    return torch.randn(num, SIZE, generator=a_generator())


def a_model(outputs: int, width: int = 32) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(SIZE, width), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(width, outputs)
    )


def batches(*parts: torch.Tensor, size: int = 16) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(part.split(size) for part in parts), strict=True))


def classes(num: int = 3) -> torch.Tensor:
    return the_inputs()[:, :num].argmax(1)


def squeezed_regression() -> Parts:
    return {
        "model": a_model(1),
        "loss_fn": lambda m, b: F.mse_loss(m(b[0]).squeeze(-1), b[1]),
        "loader": batches(the_inputs(), the_inputs()[:, 0]),
    }


def squeezing_criterion() -> Parts:
    class Squeezing(torch.nn.Module):
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return F.l1_loss(outputs.squeeze(-1), targets)

    return {**squeezed_regression(), "loss_fn": Squeezing()}


def class_indices() -> Parts:
    return {"model": a_model(3), "loss_fn": torch.nn.CrossEntropyLoss(), "loader": batches(the_inputs(), classes())}


def one_logit() -> Parts:
    return {
        "model": a_model(1),
        "loss_fn": lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]).squeeze(-1), b[1].float()),
        "loader": batches(the_inputs(), (the_inputs()[:, 0] > 0).long()),
    }


def far_targets() -> Parts:
    targets = 12 + 0.6 * the_inputs()[:, :1]
    return {"model": a_model(1), "loss_fn": torch.nn.MSELoss(), "loader": batches(the_inputs(), targets), "lr": 0.03}


def zero_head() -> Parts:
    parts = class_indices()
    torch.nn.init.zeros_(parts["model"][3].weight)
    return parts


def masked_labels(**more: Any) -> Parts:
    labels = classes()
    labels[::5] = 255
    return {
        "model": a_model(3),
        "loss_fn": lambda m, b: F.cross_entropy(m(b[0]), b[1], ignore_index=255),
        "loader": batches(the_inputs(), labels),
        **more,
    }


def scaled_loss() -> Parts:
    return {**class_indices(), "loss_fn": lambda m, b: 10 * F.cross_entropy(m(b[0]), b[1])}


def denoising(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    share = torch.rand(len(batch), 1)
    noise = torch.randn_like(batch)
    return torch.cat([(1 - share).sqrt() * batch + share.sqrt() * noise, share], 1), noise


def diffusion() -> Parts:
    """Noise and its size are drawn in the loss; labels beside the data are of no use to it."""

    def loss(model: Any, batch: Any) -> torch.Tensor:
        noisy, noise = denoising(batch[0])
        return F.mse_loss(model(noisy), noise)

    model = torch.nn.Sequential(torch.nn.Linear(SIZE + 1, 128), torch.nn.SiLU(), torch.nn.Linear(128, SIZE))
    return {"model": model, "loss_fn": loss, "loader": batches(the_inputs(), torch.arange(128) % 10)}


def masked_tokens() -> Parts:
    """A tenth of the tokens is hidden by chance, and asked for."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = torch.nn.Embedding(21, 32), torch.nn.Parameter(0.1 * torch.randn(12, 32))
            layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
            self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.last = torch.nn.Linear(32, 20)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.last(self.body(self.tokens(ids) + self.places))  # type: ignore[no-any-return]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        (ids,) = batch
        is_hidden = torch.rand(ids.shape) < 0.1
        is_hidden[0, 0] = True
        return F.cross_entropy(model(ids.masked_fill(is_hidden, 20))[is_hidden], ids[is_hidden])

    return {"model": Model(), "loss_fn": loss, "loader": batches(torch.randint(0, 20, (64, 12)), size=8)}


def dict_batch() -> Parts:
    """With masks: one that is always the same, one that mostly is, and the tokens are whole numbers."""

    def loss(model: Any, batch: Any) -> torch.Tensor:
        inputs = batch["x"] * batch["mask"] * batch["weight"][:, None]
        return F.cross_entropy(model(inputs), batch["label"])

    def a_batch(inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = torch.ones(len(inputs))
        weight[0] = 0.0
        return {"x": inputs, "mask": torch.ones_like(inputs), "weight": weight, "label": labels}

    loader = [a_batch(*batch) for batch in batches(the_inputs(), classes())]
    return {"model": a_model(3), "loss_fn": loss, "loader": loader}


def whole_inputs_with_a_mask() -> Parts:
    parts = dict_batch()
    loader = [{**batch, "x": (10 * batch["x"]).long()} for batch in parts["loader"]]
    return {**parts, "loader": loader}


@dataclass
class Sample:
    """A sample that is an object."""

    inputs: torch.Tensor
    label: torch.Tensor


def objects() -> Parts:
    data = [Sample(inputs, label) for inputs, label in zip(the_inputs(), classes(), strict=True)]

    def loss(model: Any, batch: list[Sample]) -> torch.Tensor:
        inputs, labels = (torch.stack([getattr(s, name) for s in batch]) for name in ("inputs", "label"))
        return F.cross_entropy(model(inputs), labels)

    made: Any = [DataLoader(part, batch_size=16, collate_fn=list) for part in (data[:96], data[96:])]  # type: ignore[arg-type]
    return {"model": a_model(3), "loss_fn": loss, "loader": made[0], "validation_loader": made[1]}


class Stream(IterableDataset[Any]):
    """A part of the data, in order."""

    def __init__(self, first: int, last: int) -> None:
        self.places = range(first, last)

    def __iter__(self) -> Iterator[Any]:
        inputs, labels = the_inputs(), classes()
        for place in self.places:
            yield inputs[place], labels[place]


def streams() -> Parts:
    made: Any = [DataLoader(Stream(*places), batch_size=8) for places in ((0, 96), (96, 128))]
    return {**class_indices(), "loader": made[0], "validation_loader": made[1]}


class Block(torch.nn.Module):
    """One layer of a small GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.widen, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        inner = self.norms[0](x)
        x = x + self.attention(inner, inner, inner, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x))))  # type: ignore[no-any-return]


class SmallGPT(torch.nn.Module):
    """With the ends of residual branches scaled down by the depth."""

    def __init__(self, width: int = 32, num_layers: int = 6, num_tokens: int = 20) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(num_tokens, width), torch.nn.Embedding(16, width)
        self.blocks = torch.nn.Sequential(*(Block(width) for _ in range(num_layers)))
        self.norm, self.last = torch.nn.LayerNorm(width), torch.nn.Linear(width, num_tokens, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                is_end = name.endswith(("narrow.weight", "out_proj.weight"))
                torch.nn.init.normal_(parameter, std=0.02 / (2 * num_layers) ** 0.5 if is_end else 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.last(self.norm(self.blocks(hidden)))  # type: ignore[no-any-return]


def language_model() -> Parts:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        (ids,) = batch
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    loader = batches(torch.randint(0, 20, (32, 10)), size=4)
    return {"model": SmallGPT(), "loss_fn": loss, "loader": loader, "lr": 0.01, "overfit_steps": 20}


def gpt2() -> Parts:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    ids = torch.randint(0, 40, (32, 10))
    return {
        "model": transformers.GPT2LMHeadModel(config),
        "loss_fn": lambda model, batch: model(**batch).loss,
        "loader": [{"input_ids": part, "labels": part, "attention_mask": torch.ones(4, 10)} for part in ids.split(4)],
        "lr": 0.003,
        "overfit_steps": 20,
    }


def log_probabilities() -> Parts:
    model = torch.nn.Sequential(a_model(3), torch.nn.LogSoftmax(-1))
    return {"model": model, "loss_fn": torch.nn.NLLLoss(), "loader": batches(the_inputs(), classes())}


def smoothed_labels() -> Parts:
    return {**class_indices(), "loss_fn": torch.nn.CrossEntropyLoss(label_smoothing=0.1)}


def focused() -> Parts:
    def focal(model: Any, batch: Any) -> torch.Tensor:
        log = F.log_softmax(model(batch[0]), -1).gather(1, batch[1][:, None])
        return -((1 - log.exp()) ** 2 * log).mean()

    return {**class_indices(), "loss_fn": focal}


def lowered() -> Parts:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        return F.cross_entropy(output, batch[1]) - F.cosine_similarity(output, output.roll(1, 1)).mean()

    return {**class_indices(), "loss_fn": loss}


def likelihood() -> Parts:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        mean, log_variance = model(batch[0]).unbind(-1)
        return F.gaussian_nll_loss(mean, batch[1] / 100, log_variance.exp())

    inputs = the_inputs()
    return {"model": a_model(2), "loss_fn": loss, "loader": batches(inputs, (inputs[:, 0] * 5).long())}


def bound_criterion() -> Parts:
    loss_fn = functools.partial(F.cross_entropy, ignore_index=255, label_smoothing=0.02)
    return {**masked_labels(), "loss_fn": loss_fn}


class Experts(torch.nn.Module):
    """Of four experts, each sample chooses one, and a pooler waits for another loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(SIZE, 4)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(SIZE, 3) for _ in range(4)])
        self.pooler, self.token = torch.nn.Linear(SIZE, SIZE), torch.nn.Parameter(torch.zeros(SIZE))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shares, chosen = self.gate(inputs).softmax(-1).max(-1)
        made = inputs.new_zeros(len(inputs), 3)
        for place, expert in enumerate(self.experts):
            rows = chosen == place
            if rows.any():
                made = made.index_put((rows,), 4 * shares[rows, None] * expert(inputs[rows]))
        return made


def experts() -> Parts:
    return {**class_indices(), "model": Experts(), "loader": batches(the_inputs(), classes(), size=8), "lr": 0.03}


def scheduled() -> Parts:
    parts = class_indices()
    optimizer = torch.optim.Adam(parts["model"].parameters(), lr=0.01)
    return {**parts, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)}


HEALTHY: dict[str, Callable[[], Parts]] = {
    "class indices": class_indices,
    "a regression that squeezes its output": squeezed_regression,
    "a criterion that squeezes": squeezing_criterion,
    "one logit for whole labels": one_logit,
    "targets far from zero": far_targets,
    "a last layer of zeros": zero_head,
    "labels that the loss leaves out": masked_labels,
    "labels that the loss leaves out, named": lambda: masked_labels(ignore_index=255),
    "a loss with a factor": scaled_loss,
    "a criterion with arguments bound to it": bound_criterion,
    "a language model with scaled residuals": language_model,
    "GPT-2": gpt2,
    "experts and a pooler": experts,
    "log-probabilities": log_probabilities,
    "smoothed labels": smoothed_labels,
    "a loss with a focus": focused,
    "a loss that a similarity lowers": lowered,
    "a likelihood of whole numbers": likelihood,
    "a schedule, and no checkpoint yet": scheduled,
    "a dict with masks": dict_batch,
    "whole inputs with a mask": whole_inputs_with_a_mask,
    "samples that are objects": objects,
    "streams": streams,
    "noise that the loss draws": diffusion,
    "tokens that the loss hides": masked_tokens,
}


@functools.cache
def checked(name: str) -> Report:
    torch.manual_seed(0)
    parts = HEALTHY[name]()
    lr = parts.pop("lr", 0.01)
    if "optimizer" not in parts:
        parts["optimizer"] = torch.optim.Adam(parts["model"].parameters(), lr=lr)
    return caboose.preflight(**parts)


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_fails_on_a_run_that_trains(name: str) -> None:
    report = checked(name)
    assert [line.name for line in report.lines if line.verdict.grade == "fail"] == [], str(report)
    assert report["overfits"].grade == "pass", "it does train"


@pytest.mark.parametrize("criterion", [F.l1_loss, F.huber_loss, F.mse_loss], ids=["L1", "Huber", "squared"])
@pytest.mark.parametrize("mean", [0.0, 50.0, 1e5])
@pytest.mark.parametrize("bend", [torch.Tensor.clone, torch.Tensor.exp], ids=["as it is", "exp"])
def test_a_regression_is_taken_for_no_broadcast_however_far_its_targets_are(
    criterion: Any, mean: float, bend: Any
) -> None:
    inputs = the_inputs()

    def squeezed(model: Any, batch: Any) -> torch.Tensor:
        return criterion(bend(model(batch[0])).squeeze(1), batch[1])  # type: ignore[no-any-return]

    report = caboose.preflight(a_model(1), squeezed, batches(inputs, mean + inputs[:, 0]), only="output_shape")
    assert report["output_shape"].grade == "pass", str(report)


def test_a_loss_that_weighs_by_all_targets_is_taken_for_no_broadcast() -> None:
    def weighed(model: Any, batch: Any) -> torch.Tensor:
        weights = (batch[1] > 50).float()
        return ((model(batch[0]).squeeze(1) - batch[1]) ** 2 * weights).sum() / weights.sum()  # type: ignore[no-any-return]

    inputs = the_inputs()
    report = caboose.preflight(a_model(1), weighed, batches(inputs, 50 + inputs[:, 0]), only="output_shape")
    assert report["output_shape"].grade == "pass", str(report)


@pytest.mark.parametrize(
    ("name", "check", "says"),
    [
        ("targets far from zero", "chance_level", "standardise the targets"),
        ("a last layer of zeros", "output_shape", "fine for a last layer that begins with zeros"),
        ("experts and a pooler", "gradient_flow", "freeze them with requires_grad_(False)"),
        ("labels that the loss leaves out", "targets", "pass ignore_index=255"),
    ],
)
def test_what_may_be_meant_so_is_a_warning_with_its_fix(name: str, check: str, says: str) -> None:
    verdict = checked(name)[check]
    assert verdict.grade == "warn"
    assert says in verdict.fix


def test_residual_branches_that_are_scaled_by_the_depth_are_as_they_should_be() -> None:
    assert checked("a language model with scaled residuals")["initial_weights"].grade == "pass"


def test_the_linear_layers_of_gpt2_are_seen() -> None:
    report = checked("GPT-2")
    assert report["initial_weights"].number == "9 weights"
    assert report["activation_variance"].grade == "pass"


def test_a_schedule_without_a_checkpoint_is_no_warning() -> None:
    verdict = checked("a schedule, and no checkpoint yet")["scheduler_state"]
    assert verdict.grade == "skipped"
    assert verdict.fix.startswith("pass checkpoint=")


def test_samples_that_are_objects_are_compared() -> None:
    report = checked("samples that are objects")
    assert report["overlap"].says == "96 training and 32 validation samples read"
    assert report["validation_repeatable"].number == "32 equal"


def test_a_training_set_that_is_a_stream_is_read_once() -> None:
    report = caboose.preflight(**streams(), only="overlap", num_batches=4)
    assert report["overlap"].says == "32 training and 32 validation samples read"


def test_a_target_that_is_named_as_left_out_is_none_of_the_targets() -> None:
    assert checked("labels that the loss leaves out, named")["targets"].number == "0..2"
