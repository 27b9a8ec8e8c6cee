"""A hunt leaves everything as it was, is made at most so often, and never gets in the way of the run."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import caboose
from caboose.hunting import capturing
from caboose.hunting.hunter import MAX_HUNTS
from caboose.observe import step_vector
from support.fingerprints import changed, fingerprint

Attach = Callable[..., caboose.Monitor]
NAN = float("nan")
NOWHERE = "tcp://127.0.0.1:9"


class Restless(torch.nn.Module):
    """Changes all that a module can change in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(8, 1)
        self.num_calls = 0
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(inputs))
        self.num_calls += 1
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)  # another tensor each time
        random.random()
        np.random.rand()
        return self.last(self.dropout(hidden))  # type: ignore[no-any-return]


class Run:
    """A run under way: moments, gradients, a schedule."""

    def __init__(self, attach: Attach, model: torch.nn.Module | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = model or Restless()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.monitor = attach(self.model, self.optimizer, endpoint=NOWHERE, **{"sampling": 2, **options})
        self.losses: list[float] = []

    def step(self, *bad: int, is_hunted: bool = False) -> Any:
        batch = torch.randn(6, 4)
        batch[list(bad)] = NAN
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
        found = self.monitor.hunt_nan() if is_hunted else None
        if not bad:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        self.monitor.step(loss)
        self.losses.append(float(loss.detach()))
        return found


def test_everything_is_as_it_was_and_the_run_goes_on_as_if_nothing_had_been(attach: Attach) -> None:
    run = Run(attach, hunt=True)
    for _ in range(3):
        run.step()
    before = fingerprint(run.model, run.optimizer)
    assert run.monitor.hunt_nan() is not None
    batch = torch.full((6, 4), NAN)
    state = torch.get_rng_state()
    assert getattr(run.monitor.hunt_nan(batch=batch), "where", "") == "input"
    assert torch.equal(state, torch.get_rng_state())
    assert changed(before, fingerprint(run.model, run.optimizer)) == []
    for _ in range(3):
        run.step(is_hunted=True)

    plain = Run(attach)
    for _ in range(6):
        plain.step()
    assert run.losses == plain.losses


def test_the_dropout_of_the_step_is_drawn_again(attach: Attach) -> None:
    class Unlucky(torch.nn.Module):
        """Breaks only where dropout lets the first unit of the fourth sample live."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.dropout = torch.nn.Dropout(0.5)
            self.last: list[bool] = []

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            kept = self.dropout(torch.ones(6, 4))
            self.last = [bool(kept[3, 0])]
            return torch.log(self.linear(inputs).square() + 1.0 - 2.0 * (kept[:, :1] * (torch.arange(6) == 3)[:, None]))

    run = Run(attach, Unlucky(), hunt=True)
    answers = []
    for _ in range(12):
        found = run.step(is_hunted=True)
        assert isinstance(run.model, Unlucky)
        answers.append((run.model.last[0], bool(found.where)))
        if found.where:
            break
    assert answers[-1] == (True, True)
    assert all(was is said for was, said in answers), answers


def test_bad_steps_in_a_row_are_one_trouble_and_three_troubles_are_all(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(attach, hunt=True)
    results: list[Any] = []
    assert run.monitor._hunter is not None
    monkeypatch.setattr(run.monitor._hunter, "_report", results.append)
    for _ in range(MAX_HUNTS + 2):
        run.step(1)
        run.step(2)
        for _ in range(4):
            run.step()
    assert [(r.step, r.where, r.samples) for r in results] == [
        (1, "input", (1,)),
        (7, "input", (1,)),
        (13, "input", (1,)),
    ]
    assert run.monitor._hunter._captures is not None
    assert run.monitor._hunter._captures.steps == [], "nothing is kept any more"


class Late(step_vector.Vector):
    """Values that come off their device two steps later."""

    run: "Run"
    made_at = 0

    def is_ready(self) -> bool:
        return self.run.monitor.current_step >= self.made_at + 2


def test_numbers_that_come_late_off_a_device_still_find_the_batch_of_their_step(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(attach, hunt=True)
    results: list[Any] = []
    assert run.monitor._hunter is not None
    monkeypatch.setattr(run.monitor._hunter, "_report", results.append)
    pack = step_vector.StepVector.pack

    def pack_late(self: step_vector.StepVector) -> Late | None:
        made = pack(self)
        if made is None:
            return None
        late = Late(made.readback, made.parts)
        late.run, late.made_at = run, run.monitor.current_step
        return late

    monkeypatch.setattr(step_vector.StepVector, "pack", pack_late)
    for _ in range(4):
        run.step()
    run.step(3)
    run.step()
    assert results == [], "nobody has waited for them"
    run.step()
    assert [(r.step, r.samples) for r in results] == [(5, (3,))]


def test_each_micro_batch_of_a_step_is_run(attach: Attach) -> None:
    run = Run(attach, hunt=True)
    for bad in ([], [4]):
        batch = torch.randn(6, 4)
        batch[bad] = NAN
        run.model(batch).square().mean().backward()
    found = run.monitor.hunt_nan()
    assert found is not None
    assert (found.where, found.samples, found.notes[-1]) == ("input", (4,), "micro-batch 2 of 2")


def test_only_the_last_two_steps_are_held_and_batches_that_are_too_large_are_not(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(attach, hunt=True)
    assert run.monitor._hunter is not None
    captures = run.monitor._hunter._captures
    assert captures is not None
    for _ in range(6):
        run.step()
        assert len(captures.steps) <= 2
    monkeypatch.setattr(capturing, "MAX_BYTES", 64)
    found = run.step(1, is_hunted=True)
    assert found.declined == "its inputs have 0 MiB, and 0 are kept at most"


def test_inputs_changed_in_place_after_the_forward_are_noticed(attach: Attach) -> None:
    run = Run(attach, hunt=True)
    batch = torch.randn(6, 4)
    run.model(batch).sum().backward()
    batch.zero_()
    found = run.monitor.hunt_nan()
    assert found is not None
    assert "the inputs were changed in place after the forward: this is not quite what was run" in found.notes


def test_the_agents_own_hooks_see_nothing_of_a_hunt(attach: Attach) -> None:
    run = Run(attach, hunt=True)
    assert run.monitor._hunter is not None
    assert run.monitor._hunter._captures is not None
    run.model(torch.randn(6, 4)).sum().backward()
    before = run.monitor.clock.current
    run.monitor.hunt_nan()
    capture = run.monitor._hunter._captures.find(None)
    assert capture is not None
    assert (len(capture.calls), run.monitor.clock.current) == (1, before)


def test_a_graph_behind_the_inputs_is_let_go(attach: Attach) -> None:
    run = Run(attach, hunt=True)
    before = torch.nn.Linear(4, 4)
    run.model(before(torch.randn(6, 4))).sum().backward()
    assert run.monitor._hunter is not None
    assert run.monitor._hunter._captures is not None
    capture = run.monitor._hunter._captures.find(None)
    assert capture is not None
    assert capture.calls[0].args[0].grad_fn is None


def test_a_forward_that_raises_in_the_hunt_leaves_the_run_going(attach: Attach) -> None:
    class Moody(Restless):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if torch.is_anomaly_enabled():
                raise RuntimeError("not under watch")
            return super().forward(inputs)

    run = Run(attach, Moody(), hunt=True)
    run.step()
    run.step(3)
    run.step()
    assert run.monitor.is_active
    assert run.losses[0] == run.losses[0]
    assert not torch.is_anomaly_enabled()


def test_what_cannot_be_asked_for_gradients_is_still_run_forward(attach: Attach) -> None:
    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.last, self.first(inputs), use_reentrant=True)  # type: ignore[no-any-return]

    found = Run(attach, Checkpointed(), hunt=True).step(is_hunted=True)
    assert (found.where, found.declined) == ("", "")
    assert found.notes[-2].startswith("the backward could not be run: RuntimeError")


def test_the_precision_of_the_forward_is_used_again(attach: Attach) -> None:
    run = Run(attach, torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), hunt=True)
    batch = torch.randn(6, 4)
    batch[2] *= 1e6
    with torch.autocast("cpu", dtype=torch.float16):
        run.model(batch).sum().backward()
    found = run.monitor.hunt_nan()
    assert found is not None
    assert (found.where, found.module, found.samples, found.dtype) == ("output", "0", (2,), "float16")


def test_hunting_is_off_unless_it_is_switched_on(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(attach)
    assert run.monitor._hunter is None
    run.monitor.close()
    monkeypatch.setenv("CABOOSE_HUNT", "1")
    run = Run(attach)
    assert run.monitor._hunter is not None
    run.monitor.close()
    assert Run(attach, hunt=False).monitor._hunter is None
    with pytest.raises(ValueError, match=r"hunt='yes'"):
        Run(attach, hunt="yes")


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_collective_in_the_forward_is_never_begun_alone(attach: Attach) -> None:
    class Talking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
            self.num_done = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            mean = inputs.mean(dim=0)
            dist.all_reduce(mean)
            self.num_done += 1
            return self.linear(inputs - mean)  # type: ignore[no-any-return]

    model = Talking()
    monitor = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), endpoint=NOWHERE, hunt=True)
    model(torch.randn(6, 4)).sum().backward()
    found = monitor.hunt_nan()
    assert found is not None
    assert "CollectiveMet: the model runs a collective (c10d.allreduce_)" in found.declined
    assert model.num_done == 1


@pytest.mark.usefixtures("one_rank")
def test_a_sharded_model_is_not_run_again_but_batch_and_weights_are_looked_at(attach: Attach) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    fully_shard(model)  # type: ignore[no-untyped-call]  # torch gives no types
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = attach(model, optimizer, endpoint=NOWHERE, hunt=True)
    model(torch.randn(6, 4)).sum().backward()
    found = monitor.hunt_nan()
    assert found is not None
    assert found.where == ""
    assert found.declined.startswith("the parameters are sharded, so a forward is a collective")
    batch = torch.randn(6, 4)
    batch[5] = NAN
    found = monitor.hunt_nan(batch=batch)
    assert found is not None
    assert (found.where, found.samples) == ("input", (5,))
    assert found.declined
