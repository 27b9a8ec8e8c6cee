"""Each check passes on a healthy run, and says what is wrong with one that has its disease, and only then."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import caboose
from caboose.checklist.catalogue import CHECKS
from caboose.checklist.report import Report

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Parts:
    """A healthy run; a test names what is ill about it."""

    model: torch.nn.Module = field(default_factory=lambda: a_model())
    loss_fn: Any = field(default_factory=torch.nn.CrossEntropyLoss)
    train: Any = None
    validation: Any = None
    lr: float = 0.01
    optimizer: Any = None
    scheduler: Any = None
    checkpoint: Any = None
    num_classes: int | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def report(self, *only: str) -> Report:
        data = the_data()
        optimizer = self.optimizer or torch.optim.Adam(self.model.parameters(), lr=self.lr)
        return caboose.preflight(
            self.model,
            self.loss_fn,
            self.train or DataLoader(Subset(data, range(96)), batch_size=16, shuffle=True),
            optimizer,
            validation_loader=self.validation or DataLoader(Subset(data, range(96, 128)), batch_size=16),
            scheduler=self.scheduler,
            checkpoint=self.checkpoint,
            num_classes=self.num_classes,
            only=only,
            **self.more,
        )


def a_model(width: int = 32, outputs: int = 3) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, width),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, outputs),
    )


def the_inputs(num: int = 128) -> Pair:
    inputs = torch.randn(num, 8, generator=torch.Generator().manual_seed(1))
    return inputs, inputs[:, :3].argmax(1)


def the_data() -> "TensorDataset":
    return TensorDataset(*the_inputs())


def loaded(inputs: torch.Tensor, targets: torch.Tensor, *, size: int = 16) -> list[Pair]:
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def test_a_healthy_run_passes_every_check() -> None:
    torch.manual_seed(0)
    model = a_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    saved = {"model": model.state_dict(), "schedule": scheduler.state_dict()}
    report = Parts(model, optimizer=optimizer, scheduler=scheduler, checkpoint=lambda: saved).report()
    assert {line.name: line.verdict.grade for line in report.lines} == {check.name: "pass" for check in CHECKS}, str(
        report
    )
    assert report.is_passed
    assert all(line.verdict.number for line in report.lines), "each rests on a number"


def sick(**changes: Any) -> Parts:
    return Parts(**changes)


def edited(edit: Any, outputs: int = 3) -> torch.nn.Sequential:
    model = a_model(outputs=outputs)
    with torch.no_grad():
        edit(model)
    return model


class Augmented(Dataset[Pair]):
    """Its samples are never the same twice."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Pair:
        inputs, targets = the_inputs()
        return inputs[96 + index] + 0.1 * torch.randn(8), targets[96 + index]


class Dropping(torch.nn.Module):
    """Drops in eval mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = a_model()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.inner(inputs), 0.2)


class Attending(Dropping):
    """Drops within its attention, in eval mode too."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        tokens = inputs[:, None, :, None]
        mixed = F.scaled_dot_product_attention(tokens, tokens, tokens, dropout_p=0.2)
        return self.inner(mixed[:, 0, :, 0])  # type: ignore[no-any-return]


class Sampling(Dropping):
    """Draws its hidden state, as a variational autoencoder does."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs + 0.1 * torch.randn_like(inputs))  # type: ignore[no-any-return]


class Detached(torch.nn.Module):
    """Its first part gets no gradient."""

    def __init__(self, *, is_used: bool = True) -> None:
        super().__init__()
        self.first, self.last, self.is_used = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3), is_used

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.is_used:
            return self.last(self.first(inputs).detach())  # type: ignore[no-any-return]
        with torch.no_grad():
            hidden = F.linear(inputs, self.first.weight, self.first.bias)
        return self.last(hidden)  # type: ignore[no-any-return]


class Unused(torch.nn.Module):
    """A part of it, as a pooler, is not needed for this loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.aux = a_model(), torch.nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.aux.weight.dtype is inputs.dtype
        return self.inner(inputs)  # type: ignore[no-any-return]


class Routed(torch.nn.Module):
    """The sign of the first feature chooses an expert for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList([a_model(), a_model()])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.experts[int(inputs[0, 0] > 0)](inputs)  # type: ignore[no-any-return]


def routed() -> list[Pair]:
    inputs, targets = the_inputs()
    found = loaded(inputs, targets)
    return sorted(found, key=lambda batch: float(batch[0][0, 0]))


def inputs_with(change: Any) -> list[Pair]:
    inputs, targets = the_inputs()
    return loaded(change(inputs.clone()), targets)


def targets_with(change: Any) -> list[Pair]:
    inputs, targets = the_inputs()
    return loaded(inputs, change(targets.clone()))


@dataclass
class Sample:
    """A sample that is an object."""

    inputs: torch.Tensor
    label: int


class Samples(Dataset[Sample]):
    """A part of the data, as objects, or as what cannot be looked into."""

    def __init__(self, *places: int, wrap: Any = lambda sample: sample, noise: float = 0.0) -> None:
        self.places, self.wrap, self.noise = range(*places), wrap, noise

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = the_inputs()
        place = self.places[index]
        return self.wrap(Sample(inputs[place] + self.noise * torch.randn(8), int(targets[place])))


class Opaque:
    """Shows nothing of what it holds."""

    __slots__ = ("_sample",)

    def __init__(self, sample: Sample) -> None:
        self._sample = sample


def collated(samples: list[Any]) -> Pair:
    samples = [getattr(sample, "_sample", sample) for sample in samples]
    return torch.stack([sample.inputs for sample in samples]), torch.tensor([sample.label for sample in samples])


def of_objects(train: Samples, validation: Samples) -> Parts:
    return sick(
        train=DataLoader(train, batch_size=16, collate_fn=collated),
        validation=DataLoader(validation, batch_size=16, collate_fn=collated),
    )


def put(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor[3] = value
    return tensor


def some_of(model: torch.nn.Sequential) -> torch.optim.Optimizer:
    return torch.optim.Adam(model[0].parameters(), lr=0.01)


def misplaced_schedule() -> dict[str, Any]:
    model = a_model()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "scheduler": torch.optim.lr_scheduler.StepLR(other, 3)}


def unsaved_schedule(checkpoint: Any) -> dict[str, Any]:
    model = a_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "checkpoint": checkpoint}


def partial() -> dict[str, Any]:
    model = a_model()
    return {"model": model, "optimizer": some_of(model)}


def focal(model: Any, batch: Any) -> torch.Tensor:
    log = F.log_softmax(model(batch[0]), -1).gather(1, batch[1][:, None])
    return -((1 - log.exp()) ** 2 * log).mean()


def resembling(model: Any, batch: Any) -> torch.Tensor:
    """As self-supervised learning has it: the labels in the batch are not used."""
    return -F.cosine_similarity(model(batch[0]), model(batch[0] + 0.1)).mean()


CASES: list[tuple[str, str, str, Any]] = [
    (
        "inputs",
        "fail",
        "23 of 1024 inputs are NaN",
        lambda: sick(train=inputs_with(lambda x: torch.where(x > 2.0, torch.nan, x))),
    ),
    ("inputs", "warn", "(bytes?)", lambda: sick(train=inputs_with(lambda x: (x * 64 + 128).clamp(0, 255).round()))),
    ("inputs", "fail", "all 8 batches are the same", lambda: sick(train=[loaded(*the_inputs())[0]] * 8)),
    (
        "inputs",
        "fail",
        "x: 1 of 128 inputs are NaN",
        lambda: sick(train=[{"wide": 50 * torch.randn(16, 8), "x": put(torch.randn(16, 8).view(-1), torch.nan)}]),
    ),
    ("inputs", "fail", "all inputs are 1", lambda: sick(train=[(torch.ones(4, 8), torch.arange(4) % 3)])),
    ("targets", "fail", "1 targets outside 0..2", lambda: sick(train=targets_with(lambda y: put(y, 3)), num_classes=3)),
    ("targets", "fail", "1 targets outside 0..2", lambda: sick(train=targets_with(lambda y: put(y, 3)))),
    (
        "targets",
        "fail",
        "1 targets outside 0..2",
        lambda: sick(train=targets_with(lambda y: put(y, 3)), loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1])),
    ),
    (
        "targets",
        "warn",
        "1 targets outside 0..2, which the loss takes",
        lambda: sick(
            train=targets_with(lambda y: put(y, 255)),
            loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1], ignore_index=255),
        ),
    ),
    ("targets", "fail", "are all 1", lambda: sick(train=targets_with(torch.ones_like))),
    (
        "targets",
        "warn",
        "every batch holds one class",
        lambda: sick(train=targets_with(lambda y: torch.arange(128) // 16 % 3)),
    ),
    (
        "targets",
        "fail",
        "1 of 128 targets are NaN",
        lambda: sick(train=targets_with(lambda y: put(y.float(), torch.nan)), loss_fn=lambda m, b: m(b[0]).mean()),
    ),
    (
        "output_shape",
        "fail",
        "broadcast to (16, 16)",
        lambda: sick(
            model=a_model(outputs=1),
            loss_fn=lambda m, b: ((m(b[0]) - b[1]) ** 2).mean(),
            train=targets_with(torch.Tensor.float),
        ),
    ),
    ("output_shape", "fail", "has the 5 classes", lambda: sick(num_classes=5)),
    (
        "output_shape",
        "fail",
        "not finite",
        lambda: sick(model=edited(lambda m: m[5].bias.fill_(torch.inf))),
    ),
    ("output_shape", "fail", "the same for every sample", lambda: sick(model=edited(lambda m: m[3].bias.fill_(-50)))),
    (
        "output_shape",
        "warn",
        "the same for every sample, as 5.weight is all zeros",
        lambda: sick(model=edited(lambda m: m[5].weight.zero_())),
    ),
    (
        "output_shape",
        "fail",
        "broadcast to (16, 16)",
        lambda: sick(
            model=edited(lambda m: m[5].weight.zero_(), outputs=1),
            loss_fn=lambda m, b: ((m(b[0]) - b[1]) ** 2).mean(),
            train=targets_with(torch.Tensor.float),
        ),
    ),
    (
        "output_shape",
        "fail",
        "broadcast to (16, 16)",
        lambda: sick(
            model=a_model(outputs=1),
            loss_fn=lambda m, b: ((m(b[0]) - b[1]) ** 2).mean(),
            train=targets_with(lambda y: 7 * y),
        ),
    ),
    (
        "output_shape",
        "fail",
        "broadcast to (16, 16)",
        lambda: sick(
            model=a_model(outputs=1),
            loss_fn=lambda m, b: (m(b[0]) - b[1]).abs().mean(),
            train=targets_with(lambda y: 1000.0 + y),
        ),
    ),
    (
        "output_shape",
        "fail",
        "no step can be made: KeyError: 'labels'",
        lambda: sick(loss_fn=lambda m, b: {}["labels"]),
    ),
    ("modes", "warn", "the model is in eval mode", lambda: sick(model=a_model().eval())),
    ("modes", "warn", "1 of 1 dropout and batch norm layers", lambda: sick(model=edited(lambda m: m[2].eval()))),
    ("modes", "fail", "dropout is at work", lambda: sick(model=Dropping())),
    ("modes", "fail", "dropout is at work", lambda: sick(model=Attending())),
    ("modes", "warn", "the model draws random numbers", lambda: sick(model=Sampling())),
    ("chance_level", "fail", "times chance (ln 3)", lambda: sick(model=edited(lambda m: m[5].weight.mul_(100)))),
    (
        "chance_level",
        "warn",
        "twice that for the batch taken twice",
        lambda: sick(loss_fn=torch.nn.CrossEntropyLoss(reduction="sum")),
    ),
    (
        "chance_level",
        "warn",
        "times what the targets' mean would cost",
        lambda: sick(
            model=a_model(outputs=1), loss_fn=torch.nn.MSELoss(), train=targets_with(lambda y: 12 + 0.6 * y[:, None])
        ),
    ),
    (
        "chance_level",
        "warn",
        "is not the cross entropy of the output alone",
        lambda: sick(loss_fn=lambda m, b: 20 * F.cross_entropy(m(b[0]), b[1])),
    ),
    (
        "chance_level",
        "warn",
        "knows something already",
        lambda: sick(loss_fn=lambda m, b: 0.3 * F.cross_entropy(m(b[0]), b[1])),
    ),
    ("chance_level", "fail", "no log-probabilities", lambda: sick(loss_fn=torch.nn.NLLLoss())),
    ("chance_level", "fail", "no log-probabilities", lambda: sick(loss_fn=lambda m, b: F.nll_loss(m(b[0]), b[1]))),
    (
        "chance_level",
        "fail",
        "no log-probabilities",
        lambda: sick(loss_fn=torch.nn.NLLLoss(), model=torch.nn.Sequential(a_model(), torch.nn.Softmax(-1))),
    ),
    ("chance_level", "fail", "below zero", lambda: sick(loss_fn=lambda m, b: -F.cross_entropy(m(b[0]), b[1]))),
    ("chance_level", "fail", "below zero", lambda: sick(loss_fn=lambda m, b: -focal(m, b))),
    ("chance_level", "warn", "below zero", lambda: sick(model=a_model(outputs=8), loss_fn=resembling)),
    ("initial_weights", "warn", "0.weight has a std of", lambda: sick(model=edited(lambda m: m[0].weight.mul_(50)))),
    ("initial_weights", "warn", "5.weight is all zeros", lambda: sick(model=edited(lambda m: m[5].weight.zero_()))),
    (
        "activation_variance",
        "warn",
        "the output of 1 is dead",
        lambda: sick(model=edited(lambda m: m[0].bias.fill_(-50))),
    ),
    (
        "activation_variance",
        "warn",
        "signals fade",
        lambda: sick(model=edited(lambda m: (m[3].weight.mul_(1e-3), m[3].bias.zero_()))),
    ),
    ("gradient_flow", "fail", "first.weight, first.bias get no gradient", lambda: sick(model=Detached())),
    ("gradient_flow", "fail", "first.weight, first.bias get no gradient", lambda: sick(model=Detached(is_used=False))),
    ("gradient_flow", "warn", "aux.weight, aux.bias are not used in forward", lambda: sick(model=Unused())),
    ("gradient_flow", "warn", "get a gradient on some batches only", lambda: sick(model=Routed(), train=routed())),
    ("gradient_flow", "fail", "are trained, but in no optimizer", lambda: sick(**partial())),
    ("gradient_flow", "warn", "exactly zero", lambda: sick(model=edited(lambda m: m[0].bias.fill_(-50)))),
    ("loss_falls", "warn", "raises the loss", lambda: sick(lr=30.0)),
    ("loss_falls", "fail", "changes nothing", lambda: sick(lr=0.0)),
    (
        "overfits",
        "fail",
        "a plain AdamW gets to",
        lambda: sick(loss_fn=lambda m, b: F.cross_entropy(m(b[0] * 0), b[1])),
    ),
    ("overfits", "fail", "no cross entropy is below zero", lambda: sick(loss_fn=torch.nn.NLLLoss())),
    ("overfits", "fail", "is below zero", lambda: sick(loss_fn=lambda m, b: -F.cross_entropy(m(b[0]), b[1]))),
    ("overfits", "fail", "is below zero", lambda: sick(loss_fn=lambda m, b: -focal(m, b))),
    ("overlap", "fail", "16 of 32 validation indices", lambda: _overlapping()),
    (
        "overlap",
        "fail",
        "4 validation samples are in the training set (128 training",
        lambda: sick(train=loaded(*the_inputs()), validation=[tuple(part[:4] for part in the_inputs())]),
    ),
    (
        "validation_repeatable",
        "fail",
        "32 of 32 validation samples differ",
        lambda: sick(validation=DataLoader(Augmented(), batch_size=8)),
    ),
    (
        "overlap",
        "fail",
        "8 validation samples are in the training set",
        lambda: of_objects(Samples(64), Samples(56, 96)),
    ),
    (
        "overlap",
        "skipped",
        "a sample holds a value of type Opaque",
        lambda: of_objects(Samples(64, wrap=Opaque), Samples(56, 96, wrap=Opaque)),
    ),
    (
        "validation_repeatable",
        "fail",
        "32 of 32 validation samples differ",
        lambda: of_objects(Samples(64), Samples(64, 96, noise=0.1)),
    ),
    (
        "validation_repeatable",
        "skipped",
        "a sample holds a value of type Opaque",
        lambda: of_objects(Samples(64), Samples(64, 96, wrap=Opaque)),
    ),
    ("validation_repeatable", "warn", "another order", lambda: sick(validation=Shuffled())),
    ("scheduler_state", "fail", "does not hold the state", lambda: sick(**unsaved_schedule({"model": {}, "epoch": 3}))),
    ("scheduler_state", "skipped", "is not known", lambda: sick(**unsaved_schedule(None))),
    ("scheduler_state", "skipped", "no scheduler", lambda: sick()),
    ("lr_logged", "fail", "another optimizer", lambda: sick(**misplaced_schedule())),
    ("lr_logged", "fail", "the learning rate is 0", lambda: sick(lr=0.0)),
]


@pytest.mark.parametrize(
    ("test", "grade", "says"),
    [
        (range(112, 128), "pass", "80 training and 16 validation samples read"),
        (range(70, 90), "fail", "10 of 20 test indices are training indices as well"),
        (range(90, 120), "fail", "6 of 30 test indices are validation indices as well"),
    ],
)
def test_a_test_set_is_kept_apart_from_both(test: range, grade: str, says: str) -> None:
    data = the_data()
    parts = sick(
        train=DataLoader(Subset(data, range(80)), batch_size=16),
        validation=DataLoader(Subset(data, range(80, 96)), batch_size=16),
        more={"test_loader": DataLoader(Subset(data, test), batch_size=16)},
    )
    verdict = parts.report("overlap")["overlap"]
    assert (verdict.grade, says in verdict.says) == (grade, True), verdict.says


def _overlapping() -> Parts:
    data = the_data()
    return sick(
        train=DataLoader(Subset(data, range(96)), batch_size=16),
        validation=DataLoader(Subset(data, range(80, 112)), batch_size=16),
    )


def split_by(train: Any, validation: Any, data: Any = None, batches: Any = None) -> Parts:
    """One dataset for both, from which samplers take."""
    data = data or the_data()
    return sick(
        train=DataLoader(data, batch_size=16, sampler=train),
        validation=DataLoader(data, batch_sampler=batches)
        if batches
        else DataLoader(data, batch_size=16, sampler=validation),
    )


class Odd(Sampler[int]):
    """Nobody knows what it takes."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, 128, 2))

    def __len__(self) -> int:
        return 64


class Late(TensorDataset):
    """What lies beyond the first 96 is read as it is; what lies before is augmented."""

    def __getitem__(self, index: int) -> Any:
        inputs, targets = super().__getitem__(index)
        return (inputs if index >= 96 else inputs + torch.randn(8)), targets


LATE = range(96, 128)


@pytest.mark.parametrize(
    "make",
    [
        lambda: split_by(SubsetRandomSampler(range(96)), SubsetRandomSampler(LATE)),
        lambda: split_by(SubsetRandomSampler(torch.arange(96)), list(LATE)),
        lambda: split_by(
            SubsetRandomSampler(range(96)), None, batches=BatchSampler(SubsetRandomSampler(LATE), 8, drop_last=False)
        ),
        lambda: split_by(WeightedRandomSampler([1.0] * 96 + [0.0] * 32, 96), SubsetRandomSampler(LATE)),
        lambda: sick(
            train=DataLoader(whole := the_data(), batch_size=16, sampler=SubsetRandomSampler(range(96))),
            validation=DataLoader(Subset(Subset(whole, range(64, 128)), range(32, 64)), batch_size=16),
        ),
    ],
    ids=["by samplers", "by a list", "by batches", "by weights", "by a sampler and a subset of a subset"],
)
def test_one_dataset_may_be_split_by_samplers(make: Any) -> None:
    report = make().report("overlap", "validation_repeatable")
    assert report["overlap"].says == "96 training and 32 validation samples read, and no index is in both"
    assert report["validation_repeatable"].number == "32 equal"


@pytest.mark.parametrize(
    ("train", "shared"),
    [
        (SubsetRandomSampler(range(100)), 4),
        (RandomSampler(range(128)), 32),
        (SequentialSampler(range(128)), 32),
        (DistributedSampler(the_data(), 2, 0), 32),
    ],
    ids=["subset", "random", "sequential", "distributed"],
)
def test_what_samplers_share_is_a_leak(train: Any, shared: int) -> None:
    verdict = split_by(train, SubsetRandomSampler(LATE)).report("overlap")["overlap"]
    assert verdict.grade == "fail"
    assert verdict.says.startswith(f"{shared} of 32 validation indices")


@pytest.mark.parametrize("batches", [None, BatchSampler(Odd(), 8, drop_last=False), [[1, 2], [3, 4]]])
def test_a_sampler_that_is_not_known_is_no_reason_to_claim_anything(batches: Any) -> None:
    report = split_by(SubsetRandomSampler(range(96)), Odd(), batches=batches).report("overlap", "validation_repeatable")
    for name in ("overlap", "validation_repeatable"):
        assert report[name].grade == "skipped"
        assert "knows" in report[name].says
        assert "of a Subset" in report[name].fix


def test_only_what_validation_takes_is_read_again() -> None:
    parts = split_by(SubsetRandomSampler(range(96)), SubsetRandomSampler(LATE), Late(*the_inputs()))
    assert parts.report("validation_repeatable")["validation_repeatable"].number == "32 equal"


class Shuffled:
    """The same samples, in another order each time."""

    def __iter__(self) -> Iterator[Pair]:
        inputs, targets = (part[96:] for part in the_inputs())
        order = torch.randperm(32)
        return iter(loaded(inputs[order], targets[order]))


@pytest.mark.parametrize(("name", "grade", "says", "make"), CASES, ids=[f"{c[0]} {c[1]}: {c[2]}"[:70] for c in CASES])
def test_a_disease_is_named_with_its_fix(name: str, grade: str, says: str, make: Any) -> None:
    verdict = make().report(name)[name]
    assert (verdict.grade, says in verdict.says) == (grade, True), verdict
    assert verdict.fix


def test_every_check_is_shown_ill() -> None:
    assert {case[0] for case in CASES} == {check.name for check in CHECKS}


def test_a_check_that_raises_has_failed_and_the_others_go_on() -> None:
    class Broken(Augmented):
        def __getitem__(self, index: int) -> Pair:
            raise OSError("disk is gone")

    report = sick(validation=DataLoader(Broken(), batch_size=8)).report("overlap", "validation_repeatable", "lr_logged")
    assert report["overlap"].says == "OSError: disk is gone"
    assert report["lr_logged"].grade == "pass"
    assert not report.is_passed


def test_language_models_are_understood() -> None:
    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.last = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 20)

        def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.last(self.embedding(ids))}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch["input_ids"])["logits"].flatten(0, 1), batch["labels"].flatten())

    torch.manual_seed(0)
    ids = torch.randint(0, 20, (8, 12))
    labels = ids.clone()
    labels[:, 0] = -100
    model = Tokens()
    batches = [{"input_ids": ids, "labels": labels}]
    report = caboose.preflight(model, loss, batches, torch.optim.AdamW(model.parameters(), lr=0.01))
    assert report["chance_level"].says.endswith("times chance (ln 20)")
    assert report["targets"].number == "0..19"
    assert report.is_passed, str(report)


def test_fixed_weights_are_no_initial_ones() -> None:
    model = edited(lambda m: m[0].weight.mul_(50))
    model[0].weight.requires_grad_(requires_grad=False)
    verdict = sick(model=model).report("initial_weights")["initial_weights"]
    assert (verdict.grade, verdict.number) == ("pass", "2 weights")


def test_regression_is_measured_against_the_mean() -> None:
    inputs, _ = the_inputs()
    verdict = sick(
        model=a_model(outputs=1), loss_fn=torch.nn.MSELoss(), train=loaded(inputs, inputs[:, :1] * 2)
    ).report("chance_level")["chance_level"]
    assert verdict.grade == "pass"
    assert "the targets' mean" in verdict.says


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_its_width(width: int) -> None:
    table = sick(model=Detached(), lr=0.0).report().table(width)
    assert max(map(len, table.splitlines())) <= width
    assert "FAIL gradient_flow" in table
    assert "fix: remove a detach() or no_grad()" in table


def test_what_is_skipped_is_dimmed_with_its_fix() -> None:
    lines = sick().report("scheduler_state", "lr_logged").table(100, has_colors=True).splitlines()
    assert lines[1] == "\x1b[2m     fix: pass scheduler=, if the run has one\x1b[0m"
    assert lines[0].startswith("\x1b[2m-    scheduler_state")
    assert lines[2].startswith("\x1b[32mok  \x1b[0m lr_logged")


def test_an_unknown_check_is_named() -> None:
    with pytest.raises(ValueError, match="no check 'overfit'; there are activation_variance"):
        sick().report("overfit")


def test_healthy_ranges_stand_beside_the_numbers() -> None:
    found = sick().report("gradient_flow", "loss_falls")
    assert "in all (0.1 to 10 is usual)" in found["gradient_flow"].says
    assert "of the weights (0.001 is usual)" in found["loss_falls"].says


def test_an_explosion_of_all_layers_is_warned_of() -> None:
    found = sick(loss_fn=lambda m, b: 1e8 * F.cross_entropy(m(b[0]), b[1])).report("gradient_flow")
    assert found["gradient_flow"].grade == "warn"
    assert "exploding: the gradient norm of the whole model" in found["gradient_flow"].says


def test_a_single_input_far_out_is_warned_of() -> None:
    inputs, targets = the_inputs(20_000)
    inputs[77, 3] = 150.0
    found = sick(train=DataLoader(TensorDataset(inputs, targets), batch_size=4096)).report("inputs")
    assert found["inputs"].grade == "warn"
    assert "1 of 160000 inputs are beyond 100, the farthest is 150" in found["inputs"].says
