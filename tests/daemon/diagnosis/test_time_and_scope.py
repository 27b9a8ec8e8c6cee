"""Evidence of its time and scope: the peak of a schedule, the first break, the validation before and after it."""

from typing import Any

import numpy as np
import pytest

from caboose_daemon.diagnosis.sample_history import InputRange, UpdateRatio
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.rules.parts.finding import Severity
from support.cases import a_case, a_finding, a_group, a_validation

SEEN = frozenset({"gradients", "activations", "updates"})
STUCK = (a_finding("not_learning", 1), a_finding("underfitting", 100))


def best(*findings: Any, **changes: Any) -> str | None:
    found = diagnose(a_case(*findings, **changes)).best
    return None if found is None else found.id


def noisy(values: Any) -> Any:
    values = np.asarray(values, dtype=float)
    return values * np.exp(0.03 * np.random.default_rng(1).standard_normal(len(values)))


def flat_at_chance(peak: float, update: float) -> dict[str, Any]:
    """A run of 300 steps that learned nothing, at the end of a cosine schedule."""
    decay = 0.5 * (1.0 + np.cos(np.linspace(0.0, np.pi, 300))) + 0.01
    samples = range(20, 300, 20)
    return {
        "curves": {"loss": noisy([1.609] * 300), "lr": peak * decay, "grad_norm": noisy([0.5] * 300)},
        "facts": {"num_classes": 5, "optimizer": "SGD", "loss_kind": "cross_entropy"},
        "groups": [a_group("SGD", lr=peak)],
        "update_ratios": [UpdateRatio(1, step, update * float(decay[step])) for step in samples],
        "visible": SEEN,
    }


def test_a_rate_that_was_low_at_its_peak_was_too_low_also_after_its_decay() -> None:
    assert best(*STUCK, **flat_at_chance(5e-6, 5e-6)) == "lr_too_low"


def test_steps_that_were_usual_before_the_decay_were_not_too_small() -> None:
    assert best(*STUCK, **flat_at_chance(2e-2, 1e-3)) == "labels_shuffled"


def test_a_graph_with_one_softmax_is_not_contradicted_by_a_loss_that_fits_two() -> None:
    advice = a_finding("config_advice", 200, values={"softmax_twice": 1.0})
    curves = {"loss": noisy([0.78] * 200)}
    facts = {"num_classes": 4}

    assert best(advice, curves=curves, facts=facts, visible=SEEN) == "softmax_twice"
    assert best(advice, curves=curves, facts={**facts, "loss_kind": "cross_entropy"}, visible=SEEN) != "softmax_twice"


def test_weights_that_begin_at_zero_stop_the_gradient_at_any_depth() -> None:
    values = {"first_rms": 1e-16, "last_rms": 2e-3}
    vanishing = a_finding("gradient_vanishing", 1, layers=("in.weight",), values=values)
    advice = a_finding("config_advice", 1, values={"initial_weights": 1.0})
    still = a_finding("lr_too_low", 1, values={"update_ratio": 0.0})
    facts = {"init_he_min": 0.0, "init_he_max": 4e-5}

    assert best(advice, vanishing, still, facts=facts, visible=SEEN) == "bad_init"


def test_a_validation_that_breaks_later_does_not_hide_the_batch_that_broke_it() -> None:
    batch = a_finding(
        "non_finite",
        170,
        severity=Severity.CRITICAL,
        phase="input",
        ranks=(0,),
        values={"bad_inputs": 1.0},
    )
    later = a_finding("non_finite", 181, values={"steps": 0.0})

    odd = a_finding("bad_batch", 170, ranks=(0,), phase="input")
    assert best(batch, later, odd, visible=SEEN) == "input_not_finite"


@pytest.mark.parametrize("is_back", [False, True])
def test_data_that_changed_and_were_learned_leave_the_validation_behind(is_back: bool) -> None:
    loss = noisy([0.34] * 175 + list(np.linspace(1.9, 0.35, 10)) + [0.32] * 215)
    after = 0.23 if is_back else 0.45
    events = [a_validation(step, 0.24 if step < 175 else after) for step in range(20, 400, 20)]
    norm = noisy([0.6] * 175 + [6.0] * 5 + [0.8] * 220)
    spike = a_finding("loss_spike", 175, severity=Severity.CRITICAL)
    found = [spike] if is_back else [spike, a_finding("overfitting", 160)]
    curves = {"loss": loss, "grad_norm": norm, "lr": [1e-3] * 400}

    assert (best(*found, curves=curves, events=events, visible=SEEN) == "data_changed") is not is_back


def test_inputs_that_are_far_too_large_come_before_the_units_they_kill() -> None:
    dead = a_finding("dead_units", 160, severity=Severity.CRITICAL, layers=("act",), values={"share": 0.83})
    advice = a_finding("config_advice", 1, values={"large_inputs": 1.0}, summary="inputs of up to 2.55e+03")

    ranges = [InputRange(1, step, -2.5e3 - step, 2.5e3 + step, 0.01 * step) for step in range(20, 220, 20)]
    collapsed = a_finding("activation_collapse", 101)
    assert best(advice, dead, collapsed, input_ranges=ranges, visible=SEEN) == "unnormalised_input"


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_small_steps_of_weights_with_few_digits_are_lost_to_rounding(precision: str) -> None:
    low = a_finding("lr_too_low", 100, values={"update_ratio": 2.5e-6})
    run = flat_at_chance(6.8e-6, 2.5e-6)
    run["facts"] |= {"precision": precision, "optimizer": "Lion"}
    run["groups"] = [a_group("Lion", lr=6.8e-6)]
    wanted = "precision_lost" if precision == "bfloat16" else "lr_too_low"

    assert best(*STUCK, low, a_finding("config_advice", 1, values={"lost_updates": 1.0}), **run) == wanted


def test_a_batch_with_nan_that_is_seen_later_explains_the_first_one() -> None:
    first = a_finding("non_finite", 308, severity=Severity.CRITICAL, phase="forward", ranks=(0,), values={"steps": 0.0})
    later = a_finding("bad_batch", 516, ranks=(0,), phase="input", values={"bad_elements": 20.0})

    assert best(first, later, visible=SEEN) == "input_not_finite"
    assert best(first, a_finding("bad_batch", 516, ranks=(0,), phase="input"), visible=SEEN) != "input_not_finite"
