"""What was wrong before the first step, or in the loop itself, comes before what it looks like."""

from typing import Any

import numpy as np
import pytest

from caboose_daemon.diagnosis.sample_history import InputRange
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.rules.parts.finding import Severity
from support.cases import a_case, a_finding, a_validation, order

SEEN = frozenset({"gradients", "activations", "updates"})
ELEVEN = {"num_classes": 5.0}


def first(*findings: Any, **changes: Any) -> str:
    return order(diagnose(a_case(*findings, **{"visible": SEEN, **changes})))[0]


def blown_up(start: float) -> dict[str, list[float]]:
    return {"loss": [start, 1e6, *([1.61] * 300)], "grad_norm": [start, 1e8, *([0.01] * 300)]}


TOO_HIGH = {"rewritten": 1.8, "first": 100.0, "thrown_to": 1e6, "is_thrown": 1.0}


@pytest.mark.parametrize(
    ("start", "facts", "cause"),
    [
        (100.0, {"init_he_min": 4.0, "init_he_max": 15.0}, "bad_init"),
        (1.61, {"init_he_min": 0.4, "init_he_max": 0.4}, "lr_too_high"),
    ],
)
def test_a_first_loss_far_above_chance_is_no_learning_rate(start: float, facts: dict[str, float], cause: str) -> None:
    found = a_finding("lr_too_high", 100, values=TOO_HIGH)

    assert first(found, curves=blown_up(start), facts={**ELEVEN, **facts}) == cause


def test_a_run_that_had_learned_did_not_break_at_its_start() -> None:
    """The labels change at step 201, within the first three hundred steps."""
    loss = [*np.linspace(1.6, 0.2, 100), *([0.2] * 100), *([1.61] * 100)]
    spike = a_finding("loss_spike", 203, onset_step=201, values={"level": 0.2, "peak": 1.7})
    curves = {"loss": loss, "lr": [0.001] * 300, "grad_norm": [1.0] * 200 + [3.0] * 100}

    assert first(spike, curves=curves, facts=ELEVEN) == "data_changed"


def test_units_that_see_one_number_alone_are_not_dying() -> None:
    dead = a_finding("dead_units", 300, values={"share": 1.0})
    frozen = a_finding("frozen_parameters", 200, values={"without_gradient": 4.0, "zero_gradient": 4.0})
    ranges = [InputRange(1, step, 0.0, 0.0) for step in range(20, 220, 20)]

    assert first(dead, frozen, facts={"activations": "ReLU"}, input_ranges=ranges) == "constant_input"


def test_losses_that_were_apart_from_the_start_are_not_memorised() -> None:
    found = a_finding("overfitting", 300, values={"train_at_best": 1.0, "train": 0.2})
    loss = np.linspace(1.0, 0.1, 300).tolist()
    sizes = {"batch_size": 32.0, "dataset_length": 3500.0, "num_trainable": 9000.0, "num_parameters": 9000.0}
    events = [a_validation(step, 10.0) for step in (50, 100, 150, 200)]

    assert first(found, curves={"loss": loss}, facts=sizes, events=events) == "validation_shift"


def test_gradients_that_are_kept_outweigh_the_steps_that_they_make() -> None:
    found = a_finding("lr_too_high", 60, values=TOO_HIGH)
    advice = a_finding("config_advice", 6, values={"kept_gradients": 1.0})

    assert first(found, advice, curves=blown_up(1.6), facts={"keeps_gradients": True}) == "gradients_not_zeroed"


def test_a_loop_without_an_optimizers_step_has_no_cut_graph() -> None:
    flat = a_finding("underfitting", 300, values={"level": 1.6, "reference": 1.6})

    assert first(flat, facts={"never_steps": True}, curves={"loss": [1.6] * 300}) == "parameters_frozen"
    assert first(flat, curves={"loss": [1.6] * 300, "grad_norm": [0.0] * 300}) == "graph_disconnected"


def test_a_layer_without_a_unit_that_fires_is_no_cut_in_the_graph() -> None:
    """A ReLU at the output: every prediction is 0, and so is every gradient."""
    flat = a_finding("not_learning", 1, values={"level": 1.6})
    dead = a_finding("dead_units", 1, values={"share": 1.0, "num_layers": 1.0})
    curves = {"loss": [1.6] * 300, "grad_norm": [0.0] * 300}

    assert first(dead, flat, curves=curves, facts={"activations": "ReLU"}) == "dying_relu"


def test_a_clipping_limit_of_zero_is_no_limit() -> None:
    """The norm that was clipped has overflowed, and the ratio is zero."""
    found = a_finding("clipping", 250, values={"share": 1.0, "clip_ratio": 0.0})
    norms = {"grad_norm": [1e30] * 300, "loss": [2.0] * 300}

    assert "clip_too_tight" in order(diagnose(a_case(found, curves=norms)))


def test_inputs_of_one_odd_range_are_constant_though_units_die() -> None:
    dead = a_finding("dead_units", 300, severity=Severity.CRITICAL, values={"share": 0.9})
    ranges = [InputRange(1, step, -3.51, 3.916) for step in range(20, 220, 20)]

    assert first(dead, facts={"activations": "ReLU"}, input_ranges=ranges) == "constant_input"
