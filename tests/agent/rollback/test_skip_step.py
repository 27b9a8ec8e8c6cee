"""Updates that are left out: which, and that nothing at all happens in them."""

import logging
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from caboose.rollback.skip_step import MAX_IN_ROW, NormGate, StepSkipper

Install = Callable[..., StepSkipper]


@pytest.fixture
def install() -> Iterator[Install]:
    """A skipper, taken out again afterwards; no failure may hide behind its guard."""
    made: list[StepSkipper] = []

    def put_in(mode: str, *optimizers: torch.optim.Optimizer, **options: Any) -> StepSkipper:
        made.append(StepSkipper(mode, optimizers, **options))
        return made[-1]

    yield put_in
    for skipper in made:
        skipper.close()
        assert skipper.guard.num_failures == 0


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "fused": True}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("AdamW", {"weight_decay": 0.1, "foreach": True}),
    ("AdamW", {"weight_decay": 0.1, "fused": True}),
    ("Adagrad", {"weight_decay": 0.1}),
    ("Adadelta", {"weight_decay": 0.1}),
    ("Adamax", {"weight_decay": 0.1}),
    ("ASGD", {"weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1}),
    ("RMSprop", {"weight_decay": 0.1, "momentum": 0.9}),
    ("Rprop", {}),
    ("Adafactor", {"weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_a_step_left_out_changes_neither_weights_nor_state(
    install: Install, name: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    skipper = install("nonfinite", optimizer)

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def everything() -> list[Any]:
        states = [
            {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
            for state in optimizer.state.values()
        ]
        return [*(p.tolist() for p in model.parameters()), *states]

    step(torch.randn(5, 4))
    before = everything()
    step(torch.full((5, 4), torch.inf))
    assert everything() == before
    assert skipper.num_skipped == 1
    step(torch.randn(5, 4))
    assert everything() != before
    assert skipper.num_skipped == 1


def test_nothing_is_decided_on_a_healthy_run_and_all_on_the_norm_alone() -> None:
    gate = NormGate("nonfinite")
    assert [gate.objection(norm) for norm in (1.0, 1e30, 0.0)] == ["", "", ""]
    assert gate.objection(math.nan) == "the gradient's norm is nan"
    assert gate.objection(math.inf) == "the gradient's norm is inf"


def test_an_outlier_needs_a_history_and_must_be_far_out() -> None:
    draw = random.Random(3)
    gate = NormGate("outlier")
    for _ in range(31):
        assert gate.objection(1.0 + 0.1 * draw.gauss(0, 1)) == ""
    assert gate.objection(50.0) == "", "too few to compare with"
    for _ in range(31):
        assert gate.objection(1.0 + 0.1 * draw.gauss(0, 1)) == ""
    assert gate.objection(1.9) == "", "many sigmas, yet less than twice the usual"
    assert "is far from the" in gate.objection(2.5)
    assert gate.objection(1.1) == ""
    wide = NormGate("outlier")
    for number in range(64):
        assert wide.objection([0.2, 1.0, 1.8][number % 3]) == ""
    assert wide.objection(4.0) == "", "four times the usual, yet within its scatter"


def test_a_long_noisy_run_loses_next_to_nothing() -> None:
    draw = random.Random(5)
    gate = NormGate("outlier")
    skipped = sum(bool(gate.objection(draw.lognormvariate(0, 0.25))) for _ in range(20_000))
    assert skipped <= 10


def test_a_new_level_is_accepted_after_a_few_steps() -> None:
    gate = NormGate("outlier")
    for number in range(100):
        gate.objection(1.0 + 0.01 * (number % 7))
    answers = [bool(gate.objection(10.0)) for _ in range(40)]
    assert answers == [True] * MAX_IN_ROW + [False] * (40 - MAX_IN_ROW)


def test_equal_norms_give_equal_decisions() -> None:
    draw = random.Random(9)
    norms = [draw.lognormvariate(0, 1.5) for _ in range(2000)]
    gates = [NormGate("outlier") for _ in range(3)]
    decisions = [[bool(gate.objection(norm)) for norm in norms] for gate in gates]
    assert decisions[0] == decisions[1] == decisions[2]
    assert 0 < sum(decisions[0]) < 400


def test_a_clipper_over_two_optimizers_stops_both(install: Install) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    skipper = install("nonfinite", *optimizers)
    model(torch.full((1, 2), torch.nan)).sum().backward()
    clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    assert skipper.num_skipped == 2
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_loop_that_looks_at_the_norm_itself_and_goes_on_loses_no_other_step(install: Install) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipper = install("nonfinite", optimizer)
    for x in (torch.full((2, 4), float("nan")), torch.ones(2, 4)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if not torch.isfinite(clip_grad_norm_(model.parameters(), 1.0)):
            continue
        optimizer.step()

    assert skipper.num_skipped == 0
    assert not torch.isnan(model.weight).any()


def test_a_loop_that_never_clips_is_told_so_once(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipper = install("outlier", optimizer)
    with caplog.at_level(logging.WARNING, logger="caboose"):
        for _ in range(6):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert [record.getMessage() for record in caplog.records] == [
        "caboose: skip_step='outlier' is off: 3 steps without torch.nn.utils.clip_grad_norm_, whose norm decides"
    ]
    assert "clip_grad_norm_" in skipper.why_off


def test_a_loop_that_limits_nothing_may_clip_at_infinity(install: Install) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipper = install("nonfinite", optimizer)
    for x in (1.0, 1e10, torch.inf, torch.nan, 1.0):
        model(torch.full((1, 2), x)).sum().backward()
        before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        clip_grad_norm_(model.parameters(), float("inf"))
        if math.isfinite(x):
            assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))
        optimizer.step()
        optimizer.zero_grad()
    assert (skipper.num_skipped, skipper.why_off) == (2, "")
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_gradients_made_by_a_closure_switch_it_off(install: Install) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    skipper = install("nonfinite", optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert "closure" in skipper.why_off


@pytest.mark.parametrize("is_unscaled", [True, False])
def test_under_a_scaler_the_norm_is_that_of_the_unscaled_gradients(install: Install, is_unscaled: bool) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=40)
    skipper = install("outlier", optimizer, scaler=scaler)
    for number in range(60):
        scaler.scale(model(torch.ones(1, 2) * (1 + 0.01 * (number % 5))).sum()).backward()
        if is_unscaled:
            scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipper.end_step()
    assert skipper.num_skipped == 0, "though the scale has doubled"
    assert ("unscale_" in skipper.why_off) == (not is_unscaled)


def test_a_step_that_the_scaler_leaves_out_itself_does_not_stop_the_next(install: Install) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    skipper = install("nonfinite", optimizer, scaler=scaler)
    for x in (torch.ones(1, 2), torch.full((1, 2), torch.inf), torch.ones(1, 2)):
        before = model.weight.clone()
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipper.end_step()
    assert not torch.equal(model.weight, before)
    assert skipper.num_skipped == 0
