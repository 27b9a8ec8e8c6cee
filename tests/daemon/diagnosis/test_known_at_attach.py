"""Causes that facts show, whatever the symptoms: precision, a second softmax, momentum, inputs, initial weights."""

from typing import Any

import numpy as np
import pytest

from caboose_daemon.diagnosis.sample_history import InputRange, UpdateRatio
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.rules.parts.finding import Severity
from caboose_wire import Module
from support.cases import a_case, a_finding, a_group, a_validation, order, told

SEEN = frozenset({"gradients", "activations", "updates"})


def best(*findings: Any, **changes: Any) -> str | None:
    found = diagnose(a_case(*findings, **changes)).best
    return None if found is None else found.id


def wavy(level: float, num: int = 400, scatter: float = 0.2) -> list[float]:
    return (level * np.exp(scatter * np.random.default_rng(1).standard_normal(num))).tolist()


@pytest.mark.parametrize(("precision", "cause"), [("bfloat16", "precision_lost"), ("float32", "lr_too_low")])
def test_small_updates_are_rounded_away_in_bfloat16_alone(precision: str, cause: str) -> None:
    small = a_finding("lr_too_low", 200, values={"update_ratio": 2e-5})

    found = best(small, facts={"precision": precision}, groups=[a_group("SGD", lr=1e-5)], visible=SEEN)

    assert found == cause


def test_updates_that_bfloat16_holds_are_not_lost() -> None:
    flat = a_finding("plateau", 300)
    kept = [UpdateRatio(1, 20, 0.01)]

    diagnosis = diagnose(a_case(flat, facts={"precision": "bfloat16"}, update_ratios=kept, visible=SEEN))

    assert "precision_lost" not in order(diagnosis)[:1]


def softmaxed(lowest: float, accuracy: float, kind: str = "Softmax") -> str | None:
    falls = np.linspace(2.3, lowest, 400).tolist()
    return best(
        a_finding("underfitting", 400, values={"level": lowest, "reference": 2.3}),
        curves={"loss": falls},
        facts={"num_classes": 10},
        modules=[Module("head", "Linear"), Module("end", kind)],
        events=[a_validation(400, lowest, accuracy=accuracy)],
        visible=SEEN,
    )


def test_a_loss_that_stays_above_the_floor_of_probabilities_has_a_second_softmax() -> None:
    assert softmaxed(1.52, 0.95) == "softmax_twice"
    assert softmaxed(1.52, 0.95, kind="Linear") == "softmax_twice", "accuracy and loss fit no other"
    assert softmaxed(0.9, 0.7) != "softmax_twice", "below the floor"


def test_a_norm_that_grows_as_smoothly_as_a_sum_is_one() -> None:
    steps = np.arange(1, 401)
    diverges = a_finding("divergence", 200, severity=Severity.CRITICAL)
    smooth = {"loss": wavy(2.0), "grad_norm": (steps * 0.5 + 0.02 * np.sin(steps)).tolist()}
    noisy = {"loss": wavy(2.0), "grad_norm": (steps * 0.5 * np.array(wavy(1.0))).tolist()}

    assert best(diverges, curves=smooth, visible=SEEN) == "gradients_not_zeroed"
    assert best(diverges, curves=noisy, visible=SEEN) != "gradients_not_zeroed"


@pytest.mark.parametrize(
    ("optimizer", "settings"), [("SGD", {"momentum": 0.998}), ("Adam", {"betas": "(0.995, 0.999)"})]
)
def test_momentum_is_read_from_any_optimizer(optimizer: str, settings: dict[str, Any]) -> None:
    swings = a_finding("oscillation", 200, values={"amplitude": 0.5, "correlation": 0.8})

    assert best(swings, groups=[a_group(optimizer, lr=0.01, **settings)], visible=SEEN) == "momentum_too_high"
    usual = {name: 0.9 if name == "momentum" else "(0.9, 0.999)" for name in settings}
    assert best(swings, groups=[a_group(optimizer, lr=0.01, **usual)], visible=SEEN) == "lr_too_high"


def test_inputs_that_never_change_explain_that_nothing_is_learned() -> None:
    stands = a_finding("not_learning", 300)
    same = [InputRange(1, step, 0.0, 0.0) for step in (20, 40, 60, 80)]
    other = [InputRange(1, step, -2.0 - 0.01 * step, 3.0) for step in (20, 40, 60, 80)]

    assert best(stands, input_ranges=same, visible=SEEN) == "constant_input"
    assert "constant_input" not in order(diagnose(a_case(stands, input_ranges=other, visible=SEEN)))


def test_values_that_chase_themselves_are_told_from_gradients_that_explode() -> None:
    rises = np.geomspace(0.05, 500.0, 400).tolist()
    diverges = a_finding("divergence", 200, severity=Severity.CRITICAL)
    facts = {"objective": "reinforcement"}

    assert best(diverges, curves={"loss": rises}, facts=facts, visible=SEEN) == "bootstrapped_targets"
    classes = diagnose(a_case(diverges, curves={"loss": rises}, facts={"num_classes": 10}, visible=SEEN))
    assert "bootstrapped_targets" not in order(classes)


def test_a_cause_competes_on_strong_evidence_though_its_usual_symptoms_were_not_reported() -> None:
    flat = a_finding("gradient_vanishing", 60, values={"first_rms": 1e-6, "last_rms": 1e-3})

    diagnosis = diagnose(a_case(flat, facts={"batch_size": 2, "norms": "BatchNorm1d"}, visible=SEEN))

    assert told(diagnosis, "batch_too_small").evidence_for
    assert any("gradient_vanishing" in text for text in told(diagnosis, "batch_too_small").evidence_against)


@pytest.mark.parametrize("rule", ["straggler", "throughput_regression", "eval_mode", "config_advice"])
def test_the_speed_of_a_machine_is_not_explained_by_the_numbers_of_a_model(rule: str) -> None:
    facts = {"batch_size": 2, "norms": "BatchNorm1d", "init_he_max": 40, "init_he_min": 40, "num_parameters": 10}

    diagnosis = diagnose(a_case(a_finding(rule, 60), facts={**facts, "dropout": "0.99"}, visible=SEEN))

    own = {"batch_too_small", "bad_init", "over_regularised"} if rule != "config_advice" else set()
    assert not own & set(order(diagnosis))


def test_an_update_after_the_break_does_not_speak_for_the_rate_that_broke_it() -> None:
    broke = a_finding("divergence", 200, severity=Severity.CRITICAL)
    ratios = [UpdateRatio(1, 190, 0.2), UpdateRatio(1, 210, 1e-5)]

    diagnosis = diagnose(a_case(broke, update_ratios=ratios, visible=SEEN))

    assert any("20 %" in text and "190" in text for text in told(diagnosis, "lr_too_high").evidence_for)
