"""Causes that somebody chose: a batch without its rate, smoothed labels, an evaluation in train mode, a gap."""

import math
from typing import Any

import numpy as np
import pytest

from caboose_daemon.diagnosis.causes.label_smoothing import loss_floor
from caboose_daemon.diagnosis.weighing import diagnose
from support.cases import a_case, a_finding, a_group, a_validation, order, told

SMOOTHED = {"num_classes": 10, "label_smoothing": 0.1}


def stepwise(before: float, after: float, at: int = 150, num: int = 300) -> np.ndarray[Any, Any]:
    return np.where(np.arange(1, num + 1) < at, before, after)


def batches(before: float, after: float, lr: tuple[float, float] = (0.1, 0.1)) -> dict[str, Any]:
    return {"loss": np.full(300, 1.0), "num_samples": stepwise(before, after), "lr": stepwise(*lr)}


def test_a_larger_batch_at_the_same_rate_explains_slow_progress() -> None:
    slow = a_finding("lr_too_low", 160)
    found = diagnose(a_case(slow, curves=batches(64, 512), groups=[a_group("SGD", lr=0.1)]))
    assert order(found)[0] == "rate_not_scaled"
    ranked = told(found, "rate_not_scaled")
    assert "64 to 512 samples at step 150" in ranked.evidence_for[0]
    assert "lr=0.8" in ranked.advice.code
    adam = diagnose(a_case(slow, curves=batches(64, 256, (1e-3, 1e-3)), groups=[a_group("Adam")]))
    assert "lr=0.002" in told(adam, "rate_not_scaled").advice.code


@pytest.mark.parametrize(
    "curves",
    [batches(64, 64), batches(64, 96), batches(64, 512, (0.1, 0.8)), {"loss": np.ones(300), "lr": np.ones(300)}],
    ids=["constant", "little", "followed", "unknown"],
)
def test_without_a_change_that_the_rate_did_not_follow_it_is_not_listed(curves: dict[str, Any]) -> None:
    found = diagnose(a_case(a_finding("lr_too_low", 160), curves=curves, groups=[a_group("SGD", lr=0.1)]))
    assert "rate_not_scaled" not in order(found)


def test_a_batch_that_changed_after_the_onset_is_not_the_cause() -> None:
    case = a_case(a_finding("plateau", 40), curves=batches(64, 512), groups=[a_group("SGD", lr=0.1)])
    early = told(diagnose(case), "rate_not_scaled").confidence
    late = a_case(a_finding("plateau", 160), curves=batches(64, 512), groups=[a_group("SGD", lr=0.1)])
    assert early < told(diagnose(late), "rate_not_scaled").confidence / 2


def test_a_loss_at_the_floor_of_label_smoothing_is_no_plateau() -> None:
    flat = a_finding("plateau", 300, values={"start": 2.3, "level": 0.55})
    events = [a_validation(100, 0.9, accuracy=0.6), a_validation(300, 0.8, accuracy=0.7)]
    near = a_case(flat, curves={"loss": np.full(300, 0.55)}, config=SMOOTHED, events=events)
    floor = loss_floor(near)
    assert floor == pytest.approx(-0.91 * math.log(0.91) - 9 * 0.01 * math.log(0.01))
    found = diagnose(near)
    assert order(found)[0] == "label_smoothing"
    assert "from 0.6 to 0.7" in told(found, "label_smoothing").evidence_for[1]
    far = a_case(flat, curves={"loss": np.full(300, 1.8)}, config=SMOOTHED)
    assert "label_smoothing" not in order(diagnose(far))


def test_an_evaluation_in_train_mode_is_not_training_in_eval_mode() -> None:
    mode = a_finding("eval_mode", 100, values={"in_train_mode": 2.0})
    found = diagnose(a_case(mode, facts={"norms": "BatchNorm2d"}))
    assert order(found)[0] == "validation_in_train_mode"
    assert "eval_mode_left_on" not in order(found)
    assert "validation_in_train_mode" not in order(diagnose(a_case(a_finding("eval_mode", 100))))


def test_a_training_loss_near_zero_and_a_validation_that_stands_are_memorised_data() -> None:
    gap = a_finding("generalisation_gap", 300, values={"train": 0.05, "validation_loss": 1.2, "scale": 2.3})
    found = diagnose(a_case(gap, curves={"loss": np.linspace(2.3, 0.05, 300)}))
    assert order(found)[0] == "memorising"
    assert {refusal.advice for refusal in found.refusals} >= {"more epochs", "a bigger model"}


def test_a_larger_batch_and_a_search_are_refused_without_evidence_for_them() -> None:
    swings = a_finding("oscillation", 200, values={"correlation": -0.8, "amplitude": 0.3})
    refused = {one.advice: one.why for one in diagnose(a_case(swings, curves={"loss": np.ones(300)})).refusals}
    assert "change that alone" in refused["a search over the settings"]
    assert "nothing shows" in refused["a larger batch"]
    small = a_case(swings, curves={"loss": np.ones(300)}, config={"batch_size": 2})
    assert "a larger batch" not in {one.advice for one in diagnose(small).refusals}
