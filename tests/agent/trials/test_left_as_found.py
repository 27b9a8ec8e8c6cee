"""Model, optimizer, scheduler, random numbers and loader are as they were, bit for bit, whatever a tool did."""

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import caboose
from caboose.trials.sources import BatchSource
from support.fingerprints import changed, fingerprint

SIZE = 8


class Restless(torch.nn.Module):
    """Changes all that a module can change in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(SIZE, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.frozen_norm = torch.nn.BatchNorm1d(16)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.dropout = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(16, 3)
        self.num_calls = 0
        self.recent: list[float] = []
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen_norm(self.frozen(torch.relu(self.norm(self.first(inputs)))))
        self.num_calls += 1
        self.recent.append(float(hidden.detach().mean()))
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)  # another tensor each time
        return self.last(self.dropout(hidden))  # type: ignore[no-any-return]


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    """Draws from every generator there is, and counts."""

    def __init__(self) -> None:
        self.inputs = torch.randn(64, SIZE, generator=torch.Generator().manual_seed(3))
        self.own = np.random.default_rng(5)
        self.num_read = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.num_read += 1
        noise = random.random() + np.random.rand() + float(torch.rand(())) + self.own.random()
        return self.inputs[index] + 0.01 * noise, int(self.inputs[index, :3].argmax())


class Run:
    """Everything of a run that has begun: gradients, moments and a schedule are under way."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = Restless()
        self.model.frozen_norm.eval()
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=0.01)
        warm = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=3)
        cool = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [warm, cool], [3])
        self.loader = DataLoader(Noisy(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(7))
        self.num_averaged = 0
        self.optimizer.register_step_post_hook(self.average)
        self.model.last.register_forward_hook(lambda *_: None)
        self.train()

    def average(self, *_: Any) -> None:
        self.num_averaged += 1

    def train(self) -> list[float]:
        losses = []
        for inputs, targets in self.loader:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, Any]:
        return {
            **fingerprint(self.model, self.optimizer, self.scheduler, self.loader),
            "averaged": self.num_averaged,
            "attributes": (self.model.num_calls, list(self.model.recent)),
        }


LOSS = torch.nn.CrossEntropyLoss()
BATCH = (torch.randn(16, SIZE, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3)
TOOLS: dict[str, Callable[[Run], Any]] = {
    "preflight": lambda run: caboose.preflight(
        run.model,
        LOSS,
        run.loader,
        run.optimizer,
        validation_loader=run.loader,
        scheduler=run.scheduler,
        num_batches=2,
        overfit_steps=5,
    ),
    "find_lr": lambda run: caboose.find_lr(run.model, LOSS, run.loader, run.optimizer, num_steps=20),
    "sharpness": lambda run: caboose.sharpness(run.model, LOSS, run.loader, num_directions=1, num_iterations=3),
    "inspect": lambda run: caboose.inspect(run.model, LOSS, BATCH),
    "overfit_one_batch": lambda run: caboose.overfit_one_batch(run.model, LOSS, run.loader, run.optimizer, num_steps=5),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_everything_is_as_it_was_and_the_run_goes_on_as_if_nothing_had_been(tool: str) -> None:
    control = Run().train()
    run = Run()
    before = run.state()
    TOOLS[tool](run)
    assert changed(before, run.state()) == []
    assert run.train() == control


def test_an_optimizer_that_never_made_a_step_has_no_state_afterwards() -> None:
    model = torch.nn.Linear(SIZE, 3)
    optimizer = torch.optim.Adam(model.parameters())
    caboose.overfit_one_batch(model, LOSS, [BATCH], optimizer, num_steps=3)
    assert len(optimizer.state) == 0
    assert model.weight.grad is None


class Centres(torch.nn.Module):
    """A criterion that learns and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = torch.nn.Parameter(torch.randn(3, 3, generator=torch.Generator().manual_seed(2)))
        self.register_buffer("num_seen", torch.zeros(3))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.num_seen += torch.bincount(targets, minlength=3)
        return LOSS(outputs, targets) + 0.1 * (outputs - self.centres[targets]).square().mean()


CENTRES = Centres()


class Weighed:
    """A loss that is a plain object, and holds a criterion."""

    def __init__(self, criterion: Centres) -> None:
        self.criterion, self.num_calls = criterion, 0

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        self.num_calls += 1
        return self.criterion(model(batch[0]), batch[1])  # type: ignore[no-any-return]


def named_outside(model: Any, batch: Any) -> torch.Tensor:
    return CENTRES(model(batch[0]), batch[1])  # type: ignore[no-any-return]


LOSSES: dict[str, Callable[[Centres], Any]] = {
    "the criterion": lambda criterion: criterion,
    "a function around it": lambda criterion: lambda model, batch: criterion(model(batch[0]), batch[1]),
    "a function that names it": lambda criterion: named_outside,
    "an object": Weighed,
    "bound to it": lambda criterion: functools.partial(lambda m, b, c: c(m(b[0]), b[1]), c=criterion),
}


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("is_trained", [True, False])
def test_a_criterion_with_weights_and_buffers_of_its_own_is_left_as_it_was(how: str, is_trained: bool) -> None:
    model, criterion = torch.nn.Linear(SIZE, 3), CENTRES if "names" in how else Centres()
    learned = [*model.parameters(), *(criterion.parameters() if is_trained else ())]
    optimizer = torch.optim.SGD(learned, lr=0.1, momentum=0.9)
    gradient = torch.ones(3, 3)
    criterion.centres.grad = gradient
    loss_fn = LOSSES[how](criterion)
    before = fingerprint(criterion, optimizer)
    caboose.preflight(model, loss_fn, [BATCH, BATCH], optimizer, overfit_steps=3)
    caboose.inspect(model, loss_fn, BATCH)
    assert changed(before, fingerprint(criterion, optimizer)) == []
    assert criterion.centres.grad is gradient
    assert torch.equal(gradient, torch.ones(3, 3))
    assert getattr(loss_fn, "num_calls", 0) == 0


class Tally:
    """An object that is no module, with all sorts of things in it."""

    def __init__(self) -> None:
        self.num, self.recent, self.mean, self.place = 0, [0.0], torch.zeros(3), Place(0)


@dataclass(slots=True)
class Place:
    """One without a dictionary."""

    at: int


class Hiding(torch.nn.Module):
    """Counts in a plain object, and has a teacher that is no child of it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(SIZE, 3)
        self.tally = Tally()
        self.teachers = [torch.nn.BatchNorm1d(SIZE)]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.tally.num += 1
        self.tally.recent.append(float(inputs.mean()))
        self.tally.mean += 1.0
        self.tally.place.at += 1
        return self.last(self.teachers[0](inputs))  # type: ignore[no-any-return]


def test_what_modules_hold_beside_their_children_is_left_as_it_was() -> None:
    model = Hiding()
    teacher, tally, mean = model.teachers[0], model.tally, model.tally.mean
    before = fingerprint(teacher)
    caboose.overfit_one_batch(model, LOSS, [BATCH], torch.optim.SGD(model.parameters(), lr=0.1), num_steps=3)
    assert changed(before, fingerprint(teacher)) == []
    assert model.tally is tally
    assert (tally.num, tally.recent, tally.place.at) == (0, [0.0], 0)
    assert tally.mean is mean
    assert torch.equal(mean, torch.zeros(3))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_ends_a_tool_midway_leaves_everything_as_it_was(error: type[BaseException]) -> None:
    run = Run()
    before = run.state()
    calls = iter(range(100))

    def breaks(model: Any, batch: Any) -> torch.Tensor:
        if next(calls) == 4:
            raise error
        return LOSS(model(batch[0]), batch[1])  # type: ignore[no-any-return]

    with pytest.raises(error):
        caboose.find_lr(run.model, breaks, run.loader, run.optimizer, num_steps=20)
    assert changed(before, run.state()) == []


def test_a_loss_that_takes_its_batch_apart_does_not_change_it() -> None:
    batch = {"x": BATCH[0].clone(), "labels": BATCH[1].clone()}

    def pops(model: Any, batch: Any) -> torch.Tensor:
        labels = batch.pop("labels")
        return LOSS(model(batch["x"].mul_(0.5)), labels)  # type: ignore[no-any-return]

    model = torch.nn.Linear(SIZE, 3)
    caboose.preflight(model, pops, [batch], torch.optim.SGD(model.parameters(), lr=0.1), overfit_steps=3)
    assert set(batch) == {"x", "labels"}
    assert torch.equal(batch["x"], BATCH[0])


class Stream:
    """A loader with a position of its own, which is its own iterator."""

    def __init__(self) -> None:
        self._place = [3]

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> int:
        self._place[0] += 1
        return self._place[0]

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place[0]}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._place = [state["place"]]


def test_a_stateful_loader_goes_back_to_its_position() -> None:
    stream = Stream()
    with BatchSource("preflight", stream) as source:
        assert source.take(4) == [4, 5, 6, 7]
    assert next(stream) == 4


def test_an_epoch_under_way_is_not_disturbed() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=2)
    seen: Iterator[Any] = iter(loader)
    next(seen)
    with BatchSource("preflight", loader) as source:
        source.take(3)
    assert next(seen)[0].tolist() == [2.0, 3.0]


@pytest.mark.slow
def test_persistent_workers_under_way_are_not_disturbed() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader: Any = DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True)
    seen = iter(loader)
    next(seen)
    with BatchSource("preflight", loader) as source:
        source.take(3)
    assert loader._iterator is seen
    assert next(seen)[0].tolist() == [2.0, 3.0]
    seen._shutdown_workers()


def test_a_bare_iterator_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match="cannot be put back; pass the loader that it came from"):
        caboose.preflight(torch.nn.Linear(8, 3), LOSS, iter([BATCH]))


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "lazy", [torch.nn.LazyLinear, lambda _: torch.nn.LazyBatchNorm1d(affine=False)], ids=["parameters", "buffers"]
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_layers_that_are_not_initialised_are_refused_and_can_be_afterwards(tool: str, lazy: Any) -> None:
    run: Any = Run()
    run.model = torch.nn.Sequential(lazy(SIZE), torch.nn.Linear(SIZE, 3))
    with pytest.raises(
        ValueError, match=rf"{tool}\(\): layers are not initialised yet: call model\(batch\) once first"
    ):
        TOOLS[tool](run)
    assert run.model(BATCH[0]).shape == (16, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no model", LOSS, [BATCH]), "expected a torch.nn.Module, got str"),
        ((torch.nn.Linear(8, 3), "no loss", [BATCH]), r"got str; give a criterion, a function of \(model, batch\)"),
        ((torch.nn.Linear(8, 3), LOSS, 3), "expected something to iterate over, got int"),
        ((torch.nn.Linear(8, 3), LOSS, BATCH), r"looks like one batch; to use that one alone, pass \[batch\]"),
        ((torch.nn.Linear(8, 3), LOSS, {"x": BATCH[0]}), "this dict looks like one batch"),
        ((torch.nn.Linear(8, 3), LOSS, [BATCH], "adam"), "expected a torch optimizer, got str"),
        ((torch.nn.Linear(8, 3).requires_grad_(False), LOSS, [BATCH]), "is everything frozen"),
        ((torch.nn.Linear(8, 3), LOSS, []), "it has no batches"),
        ((torch.nn.Linear(8, 3, device="meta"), LOSS, [BATCH]), "meta device"),
    ],
)
def test_a_wrong_argument_is_named(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        caboose.preflight(*arguments)
