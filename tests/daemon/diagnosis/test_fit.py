"""Causes of bad fits, settings, slow steps and blindness: which leads, on what numbers, and when it must not."""

from typing import Any

import numpy as np
import pytest

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes.converged import Converged
from caboose_daemon.diagnosis.causes.lr_too_high import LrTooHigh
from caboose_daemon.diagnosis.causes.lr_too_low import LrTooLow
from caboose_daemon.diagnosis.causes.too_little_capacity import TooLittleCapacity
from caboose_daemon.diagnosis.causes.weights_decay_away import WeightsDecayAway
from caboose_daemon.diagnosis.curves import rise
from caboose_daemon.diagnosis.refusals import CALLS_FOR
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_wire import Layer, Module
from support.cases import a_case, a_finding, a_group, a_validation, order, told
from support.summaries import lacks

SMALL = {"num_parameters": 20_000, "num_trainable": 20_000, "dataset_length": 300, "batch_size": 32}
LARGE = {"num_parameters": 20_000, "num_trainable": 20_000, "dataset_length": 1_000_000, "batch_size": 32}
FALLING = np.linspace(2.0, 0.05, 600)


def an_overfit(facts: dict[str, Any], *validations: tuple[int, float], **changes: Any) -> Case:
    """Validation rose from its best of 1.2 at step 100, while training fell on."""
    values = {"validation_loss": 1.9, "best": 1.2, "train": 0.05, "train_at_best": 0.9, "scatter": 0.02}
    finding = a_finding("overfitting", 100, step=300, values=values)
    events = [a_validation(step, loss) for step, loss in validations]
    groups = (a_group(weight_decay=0.0),)
    return a_case(finding, curves={"loss": FALLING}, facts=facts, events=events, groups=groups, **changes)


def best(diagnosis: Diagnosis) -> str:
    assert diagnosis.best is not None, order(diagnosis)
    return diagnosis.best.id


# Train falls, validation rises


def test_few_samples_that_were_seen_often_are_learned_by_heart() -> None:
    diagnosis = diagnose(an_overfit(SMALL, (25, 2.0), (100, 1.2), (300, 1.9)))

    assert best(diagnosis) == "memorising"
    said = told(diagnosis, "memorising")
    assert lacks(said.evidence_for, "64 epochs", "66.7 trained parameters", "from 0.9 to 0.05") == []
    assert "step 100" in said.advice.first_fix
    assert said.confidence < 0.99


def test_what_was_seen_once_is_not_known_by_heart_so_validation_is_unlike() -> None:
    diagnosis = diagnose(an_overfit(LARGE, (25, 2.0), (100, 1.9), (300, 2.4)))

    assert best(diagnosis) == "validation_shift"
    (first, second) = told(diagnosis, "validation_shift").evidence_for
    assert lacks(first + second, "0.019 epochs", "validation loss 2.4", "training loss 1.06", "step 300") == []
    assert "memorising" not in order(diagnosis)[:1]


def by_heart(train: Any, best: float = 2.29, accuracy: float | None = 0.11, **facts: Any) -> Diagnosis:
    """Ten classes; validation rises from `best`, while the training loss goes down this way over 64 epochs."""
    values = {"validation_loss": 3.1, "best": best, "train": train[300], "train_at_best": train[100], "scatter": 0.02}
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    losses = [(25, 2.31), (100, best), (200, 2.6), (300, 3.1)]
    case = a_case(
        a_finding("overfitting", 100, step=300, values=values),
        curves={"loss": train},
        facts={**SMALL, "num_classes": 10, **facts},
        events=[a_validation(step, loss, **metrics) for step, loss in losses],
        groups=(a_group(weight_decay=0.0),),
        visible=frozenset({"loss", "gradients", "activations"}),
    )
    return diagnose(case)


SLOWLY = np.concatenate((np.full(40, 2.3), np.linspace(2.3, 0.9, 560)))
AT_ONCE = np.concatenate((np.linspace(2.3, 0.9, 15), np.linspace(0.9, 0.3, 585)))


def test_what_is_learned_by_heart_and_was_never_better_than_a_guess_elsewhere_has_the_wrong_labels() -> None:
    for diagnosis in (by_heart(SLOWLY), by_heart(SLOWLY, accuracy=None)):
        assert best(diagnosis) == "labels_shuffled"
        (first, *_) = told(diagnosis, "labels_shuffled").evidence_for
        assert lacks(first, "0.97", "2.303") == []
        assert "never better than chance" in told(diagnosis, "memorising").evidence_against[0]


def test_validation_that_was_better_than_a_guess_once_is_lost_by_heart() -> None:
    diagnosis = by_heart(SLOWLY, best=2.1)

    assert best(diagnosis) == "memorising"
    assert told(diagnosis, "memorising").evidence_against == ()
    assert "labels_shuffled" not in order(diagnosis)


def test_a_loss_worse_than_a_guess_whose_answers_are_right_is_no_guess() -> None:
    assert best(by_heart(SLOWLY, accuracy=0.6)) == "memorising"


def test_labels_that_were_learned_while_the_samples_were_new_are_not_shuffled() -> None:
    diagnosis = by_heart(AT_ONCE)

    assert "labels_shuffled" not in order(diagnosis)


def test_losses_that_were_together_while_the_samples_were_new_speak_against_a_shift() -> None:
    facts = {**SMALL, "dataset_length": 4800}
    apart, together = (diagnose(an_overfit(facts, (200, loss), (600, 1.9))) for loss in (1.9, 1.4))

    assert told(apart, "validation_shift").confidence > 0.05
    assert "validation_shift" not in order(together)


def test_without_settings_or_validations_the_honest_answer_is_mostly_unknown() -> None:
    diagnosis = diagnose(a_case(a_finding("overfitting")))

    assert diagnosis.best is None
    assert diagnosis.unknown > 0.4
    assert any("dataset size" in line for line in diagnosis.missing)


def test_training_in_eval_mode_comes_before_what_it_brings_about() -> None:
    eval_mode = a_finding("eval_mode", 101, summary="the model in eval mode for 3 training steps", phase="forward")
    overfitting = a_finding("overfitting", 100, step=300, values={"train": 0.05, "train_at_best": 0.9})
    diagnosis = diagnose(a_case(eval_mode, overfitting, facts=SMALL, events=[a_validation(100, 1.2)]))

    assert best(diagnosis) == "eval_mode_left_on"
    said = told(diagnosis, "eval_mode_left_on")
    assert lacks(said.evidence_for, "step 101", "step 100") == []
    assert "model.train()" in said.advice.code


def test_a_part_that_is_frozen_makes_eval_mode_a_purpose() -> None:
    layers = (Layer("backbone.weight", 10, trainable=False), Layer("head.weight", 10))
    case = a_case(a_finding("eval_mode", 1, summary="3 batch norms in eval mode"), layers=layers)

    (said,) = diagnose(case).causes
    assert any("on purpose" in text for text in said.evidence_against)


# Loss against metric


def calibration(score: float, loss: float) -> Case:
    values = {"loss": loss, "score": score, "best_loss": 0.4, "best_score": score, "calibration": 1.0}
    return a_case(a_finding("metric_divergence", 500, values=values), facts={"num_classes": 10})


def test_a_loss_above_what_its_accuracy_allows_is_over_confidence() -> None:
    diagnosis = diagnose(calibration(0.9, 0.8))

    assert best(diagnosis) == "overconfident"
    assert lacks(told(diagnosis, "overconfident").evidence_for, "loss 0.8", "90 %", "0.545") == []


def test_a_loss_that_fits_its_accuracy_is_not() -> None:
    sure, fitting = (told(diagnose(calibration(score, 0.8)), "overconfident") for score in (0.9, 0.5))

    assert fitting.confidence < sure.confidence - 0.2
    assert lacks(fitting.evidence_against, "loss 0.8", "score of 0.5") == []


@pytest.mark.parametrize(("kind", "word"), [("equal", "not a copy"), ("chance", "manually")])
def test_numbers_that_cannot_be_true_are_the_evaluations_fault(kind: str, word: str) -> None:
    values = {"loss": 0.1, "score": 0.1, "best_loss": 0.1, "best_score": 0.1, kind: 1.0}
    finding = a_finding("metric_divergence", 200, values=values, summary="cannot be")
    diagnosis = diagnose(a_case(finding, facts=SMALL, curves={"loss": FALLING}, events=[a_validation(50, 2.9)]))

    assert best(diagnosis) == "metric_bug"
    assert word in told(diagnosis, "metric_bug").advice.first_fix


def test_over_confidence_is_no_metric_bug() -> None:
    assert "metric_bug" not in order(diagnose(calibration(0.9, 0.8)))


# Both high


def an_underfit(optimizer: str = "SGD", level: float = 1.8, **changes: Any) -> Case:
    decay = changes.pop("weight_decay", 0.0)
    values = {"level": level, "validation": 1.01 * level, "reference": 2.303}
    fields: dict[str, Any] = {"facts": LARGE, "groups": (a_group(optimizer, weight_decay=decay, momentum=0.9),)}
    noisy = level + 0.01 * np.sin(np.arange(600))
    return a_case(a_finding("underfitting", 500, values=values), curves={"loss": noisy}, **{**fields, **changes})


def test_a_linear_model_that_learned_what_it_could_is_too_small() -> None:
    diagnosis = diagnose(an_underfit(modules=(Module("head", "Linear", 10),)))

    assert best(diagnosis) == "too_little_capacity"
    said = " ".join(told(diagnosis, "too_little_capacity").evidence_for)
    assert "it is linear" in said
    assert "50 samples per parameter (20,000" in said
    assert not any(refusal.advice == "a bigger model" for refusal in diagnosis.refusals)


def test_a_loss_at_chance_is_no_question_of_size() -> None:
    case = an_underfit(level=2.3, modules=(Module("head", "Linear", 10), Module("act", "ReLU", 10)))
    diagnosis = diagnose(case)

    assert diagnosis.best is None
    assert "too_little_capacity" not in order(diagnosis)
    against = [evidence.text for evidence in TooLittleCapacity().weigh(case) if evidence.weight < 0]
    assert lacks(against, "loss 2.3", "learned nothing") == []


def test_a_model_with_more_parameters_than_samples_is_not_too_small() -> None:
    diagnosis = diagnose(an_underfit(facts=SMALL))

    assert diagnosis.best is None
    assert "66.7 trained parameters" in _refused(diagnosis, "a bigger model")


@pytest.mark.parametrize(("optimizer", "decay", "is_strong"), [("SGD", 0.1, True), ("AdamW", 0.1, False)])
def test_a_decay_is_strong_for_the_optimizer_it_is_used_with(optimizer: str, decay: float, is_strong: bool) -> None:
    diagnosis = diagnose(an_underfit(optimizer, weight_decay=decay))

    assert (order(diagnosis)[0] == "over_regularised") is is_strong
    if is_strong:
        line = told(diagnosis, "over_regularised").advice.code
        assert line == "optimizer = SGD(model.parameters(), lr=0.001, weight_decay=0.0005)  # was 0.1"


# Clipping


def a_clipped(norms: np.ndarray, ratio: float, *others: str) -> Case:
    finding = a_finding("clipping", 300, values={"share": 1.0, "clip_ratio": ratio})
    return a_case(finding, *(a_finding(rule, 300) for rule in others), curves={"grad_norm": norms})


def test_a_steady_norm_far_above_the_clippers_is_clipped_too_tightly() -> None:
    diagnosis = diagnose(a_clipped(np.full(400, 2.0), 0.05))

    assert best(diagnosis) == "clip_too_tight"
    said = told(diagnosis, "clip_too_tight")
    assert lacks(said.evidence_for, "norm is 2, 20x", "0.1") == []
    assert said.advice.code.endswith("clip_grad_norm_(model.parameters(), 4)  # was 0.1")


def test_a_norm_that_explodes_is_clipped_for_a_reason() -> None:
    norms = np.where(np.arange(400) % 5, 1.0, 50.0)
    diagnosis = diagnose(a_clipped(norms, 0.9, "gradient_explosion", "lr_too_high"))

    assert "clip_too_tight" not in order(diagnosis)[:1]


def test_a_clipper_before_unscale_is_the_cause_of_steps_that_are_too_short() -> None:
    finding = a_finding("clipping", 300, values={"scaled": 65536.0, "clip_ratio": 1e-5})
    diagnosis = diagnose(a_case(finding, a_finding("not_learning", 310), curves={"grad_norm": np.full(400, 1.0)}))

    assert best(diagnosis) == "clip_before_unscale"
    assert told(diagnosis, "clip_before_unscale").advice.code.startswith("scaler.unscale_(optimizer)")


# Parameters that do not learn

LAYERS = (Layer("stem.weight", 100), Layer("body.weight", 100), Layer("head.weight", 50, held=False))


def a_frozen(layers: tuple[Layer, ...], named: tuple[str, ...], **values: float) -> Case:
    told = {"not_held": 0.0, "without_gradient": 0.0, "never_moves": 0.0, **values}
    return a_case(a_finding("frozen_parameters", 1, layers=named, values=told), layers=layers)


def test_layers_without_a_gradient_are_cut_off_from_the_loss() -> None:
    diagnosis = diagnose(a_frozen(LAYERS[:2], ("stem.weight",), without_gradient=1.0))

    assert best(diagnosis) == "parameters_frozen"
    said = told(diagnosis, "parameters_frozen")
    assert lacks(said.evidence_for, "1 of 2 layers without gradient: stem.weight") == []
    assert "between stem.weight and the loss" in said.advice.first_fix


def test_layers_that_had_a_gradient_and_lost_it_were_not_cut_off_by_code() -> None:
    """Few samples pass in a window of samples, so that nothing is known of dead units."""
    values = {"without_gradient": 1.0}
    lost = a_case(
        a_finding("frozen_parameters", 380, step=1380, layers=("stem.weight",), values=values),
        a_finding("not_learning", 1, step=1184),
        layers=LAYERS[:2],
        facts={"activations": "ReLU", "batch_size": 1},
    )

    diagnosis = diagnose(lost)
    assert {"dying_relu", "lr_too_high"} <= set(order(diagnosis)[:2])
    assert any("at step 380" in text for text in told(diagnosis, "dying_relu").evidence_for)
    assert "parameters_frozen" not in order(diagnosis)[:2]


def test_layers_that_no_optimizer_holds_are_named_as_that() -> None:
    diagnosis = diagnose(a_frozen(LAYERS, ("head.weight",), not_held=1.0))

    assert order(diagnosis) == ["parameters_unregistered"]
    (said,) = told(diagnosis, "parameters_unregistered").evidence_for
    assert lacks(said, "1 trainable layers", "head.weight", "20.0 %") == []
    assert "get_submodule('head')" in told(diagnosis, "parameters_unregistered").advice.code


def test_dead_units_take_the_gradient_as_well() -> None:
    frozen = a_frozen(LAYERS[:2], ("stem.weight",), without_gradient=1.0).finding("frozen_parameters")
    assert frozen is not None
    (said,) = [
        cause
        for cause in diagnose(a_case(frozen, a_finding("dead_units"), layers=LAYERS[:2])).causes
        if cause.id == "parameters_frozen"
    ]
    assert lacks(said.evidence_against, "dead_units alone") == []


# Slow steps

SLOWER = {"steps": 100.0, "baseline": 200.0, "slowdown": 0.5}


def test_steps_that_grow_little_by_little_do_more_and_more() -> None:
    finding = a_finding("throughput_regression", 300, values=SLOWER, phase="forward")
    diagnosis = diagnose(a_case(finding, curves={"step_seconds": np.linspace(0.1, 0.4, 600)}))

    assert best(diagnosis) == "slowing_steps"
    assert "machine_slower" not in order(diagnosis)
    assert any("gradually" in text for text in told(diagnosis, "slowing_steps").evidence_for)


def test_steps_that_became_longer_at_once_are_the_machines() -> None:
    finding = a_finding("throughput_regression", 300, values=SLOWER)
    seconds = np.where(np.arange(600) < 300, 0.1, 0.2)
    diagnosis = diagnose(a_case(finding, curves={"step_seconds": seconds}))

    assert best(diagnosis) == "machine_slower"
    assert "slowing_steps" not in order(diagnosis)


def test_a_rise_is_told_by_its_shape() -> None:
    noise = np.random.default_rng(0).lognormal(0.0, 0.3, 600)
    jump = rise(noise * np.repeat([1.0, 3.0], 300))
    ramp = rise(noise * np.linspace(1.0, 3.0, 600))

    assert jump is not None
    assert ramp is not None
    assert (jump.is_jump, jump.is_gradual) == (True, False)
    assert (ramp.is_jump, ramp.is_gradual) == (False, True)
    assert rise(np.ones(600)) is None
    assert rise(np.linspace(1.0, 3.0, 20)) is None


def starved(share: float, **facts: Any) -> Case:
    values = {"share": share, "step_seconds": 0.02, "wait_seconds": 0.02 * share}
    finding = a_finding("data_starved", 30, values=values, phase="input")
    return a_case(finding, facts=facts, curves={"data_seconds": np.full(100, 0.02 * share)})


def test_a_loader_without_workers_that_is_waited_for_is_too_slow() -> None:
    diagnosis = diagnose(starved(0.6, num_workers=0))

    assert order(diagnosis) == ["slow_loader"]
    said = told(diagnosis, "slow_loader")
    assert lacks(said.evidence_for[0], "60 %", "12 ms") == []
    assert "num_workers=4" in said.advice.code
    assert "was num_workers=0" in said.advice.code


def test_a_slowdown_without_a_wait_for_data_is_not_the_loaders() -> None:
    finding = a_finding("throughput_regression", 300, values=SLOWER, phase="backward")

    assert "slow_loader" not in order(diagnose(a_case(finding)))


# Settings and blindness


def test_float16_without_a_scaler_is_a_setting_to_change() -> None:
    finding = a_finding("config_advice", 1, values={"fp16_without_scaler": 1.0}, summary="parameters in float16")
    diagnosis = diagnose(a_case(finding))

    assert best(diagnosis) == "risky_settings"
    assert "GradScaler" in told(diagnosis, "risky_settings").advice.code


def test_a_rate_alone_is_less_sure_to_be_a_matter_of_settings() -> None:
    rate = diagnose(a_case(a_finding("config_advice", 1, values={"high_lr": 1.0})))
    scaler = diagnose(a_case(a_finding("config_advice", 1, values={"fp16_without_scaler": 1.0})))

    assert told(rate, "risky_settings").confidence < told(scaler, "risky_settings").confidence - 0.05


def blind(seconds: float, **values: float) -> Case:
    return a_case(a_finding("monitor_blind", 50, values=values), curves={"step_seconds": np.full(100, seconds)})


@pytest.mark.parametrize(
    ("seconds", "values", "cause"),
    [
        (0.1, {"disabled_agents": 1.0, "lost_reports": 0.0}, "agent_off"),
        (0.0003, {"disabled_agents": 0.0, "lost_reports": 400.0}, "monitor_overrun"),
        (0.1, {"disabled_agents": 0.0, "lost_reports": 400.0}, "reports_lost"),
    ],
)
def test_blindness_has_one_of_three_causes(seconds: float, values: dict[str, float], cause: str) -> None:
    assert best(diagnose(blind(seconds, **values))) == cause


# What is refused, and what is allowed


def _refused(diagnosis: Diagnosis, advice: str) -> str:
    return next((refusal.why for refusal in diagnosis.refusals if refusal.advice == advice), "")


def test_another_optimizer_is_refused_where_nothing_points_at_it() -> None:
    diagnosis = diagnose(an_overfit(SMALL, (25, 1.95), (100, 1.2), (300, 1.9)))

    assert _refused(diagnosis, "another optimizer").startswith("the evidence does not point at AdamW: about 64 epochs")
    assert "from 1.2 to 1.9" in _refused(diagnosis, "more epochs")
    assert "66.7 trained parameters" in _refused(diagnosis, "a bigger model")


def test_another_optimizer_is_allowed_for_plain_sgd_on_attention() -> None:
    groups = (a_group("SGD", momentum=0.0, weight_decay=0.0),)
    facts = {**SMALL, "attention": True, "dropout": "0.1"}
    case = a_case(a_finding("not_learning", 1), groups=groups, facts=facts, curves={"loss": np.full(600, 4.0)})
    diagnosis = diagnose(case)

    assert "SGD without momentum on a model with attention" in told(diagnosis, "optimizer_unsuited").evidence_for
    assert not _refused(diagnosis, "another optimizer")


def test_what_is_refused_is_not_advised_by_a_cause_further_down() -> None:
    groups = (a_group("SGD", momentum=0.0, weight_decay=0.0),)
    case = a_case(a_finding("not_learning", 1), groups=groups, facts=SMALL, curves={"loss": np.full(600, 2.3)})
    diagnosis = diagnose(case)

    assert _refused(diagnosis, "another optimizer")
    assert "optimizer_unsuited" not in order(diagnosis)
    assert not any("AdamW" in cause.advice.first_fix + cause.advice.code for cause in diagnosis.causes)
    assert sum(cause.confidence for cause in diagnosis.causes) + diagnosis.unknown == pytest.approx(1.0)


@pytest.mark.parametrize(
    "rule", ["plateau", "not_learning", "underfitting", "overfitting", "divergence", "oscillation"]
)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", ""])
def test_nothing_is_refused_and_called_for_at_once(rule: str, optimizer: str) -> None:
    groups = (a_group(optimizer, momentum=0.0),) if optimizer else ()
    for curve in (np.full(600, 2.3), FALLING):
        diagnosis = diagnose(a_case(a_finding(rule, 1), groups=groups, curves={"loss": curve}))
        refused = {refusal.advice for refusal in diagnosis.refusals}
        assert not refused & {CALLS_FOR.get(cause.id) for cause in diagnosis.causes}


def test_a_standstill_that_is_the_end_wants_no_bigger_model() -> None:
    fix = Converged().advise(a_case(a_finding("plateau"))).first_fix

    assert "model" not in fix
    assert "data" in fix


@pytest.mark.parametrize("cause", [LrTooHigh(), LrTooLow(), WeightsDecayAway()], ids=lambda cause: cause.id)
def test_where_the_optimizer_is_not_known_none_is_named(cause: Cause) -> None:
    log = a_case(a_finding("plateau"), curves={"loss": np.full(200, 2.0), "lr": np.full(200, 0.1)})
    bare = a_case(a_finding("plateau"))
    several = a_case(a_finding("plateau"), facts={"optimizer": "AdamW, SGD"})

    for case in (log, bare, several):
        code = cause.advise(case).code
        assert code.startswith("for group in optimizer.param_groups: group[")
        assert "Adam" not in code
    known = a_case(a_finding("plateau"), groups=(a_group("SGD"),))
    assert cause.advise(known).code.startswith("optimizer = SGD(model.parameters(), ")


def test_an_adaptive_optimizer_is_never_unsuited() -> None:
    case = a_case(a_finding("not_learning", 1), groups=(a_group(),), facts={"attention": True})

    assert "optimizer_unsuited" not in order(diagnose(case))


def test_more_epochs_are_allowed_where_a_schedule_ended_while_the_loss_fell() -> None:
    lr = np.concatenate([np.full(400, 1e-3), np.full(200, 1e-6)])
    case = a_case(a_finding("lr_schedule", 400), curves={"loss": FALLING, "lr": lr}, groups=(a_group(),))
    diagnosis = diagnose(case)

    said = told(diagnosis, "budget_too_short")
    assert any(text.startswith("loss changed by -") for text in said.evidence_for)
    assert "T_max=1200" in said.advice.code


def test_more_epochs_are_refused_on_a_flat_curve_with_its_slope() -> None:
    diagnosis = diagnose(an_underfit())

    assert "budget_too_short" not in order(diagnosis)
    assert "more epochs would not change it" in _refused(diagnosis, "more epochs")
