"""Causes of numbers that break: which leads, on what numbers, and when it must not."""

from typing import Any

import numpy as np
import pytest

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_daemon.rules.parts.finding import Severity
from caboose_wire import Batch, Layer, Module
from support.cases import a_case, a_finding, a_group, order, told
from support.scenario import Scenario, scenario
from support.summaries import lacks

CALM = {"grad_norm": np.full(200, 1.5), "loss": np.full(200, 0.8)}
DEEP = tuple(Layer(name=f"layers.{i}.weight", numel=2304, kind="Linear") for i in range(10))
SEES = frozenset({"loss", "gradients", "weights", "activations", "clipping"})


def a_break(onset: int = 150, ranks: tuple[int, ...] = (0,), **values: float) -> Case:
    """The loss of these ranks is not finite, out of calm."""
    finding = a_finding("non_finite", onset, ranks=ranks, phase="forward", values=values)
    return a_case(finding, curves=CALM, visible=SEES, world=4)


def begun(ratio: tuple[float, float], *findings: Any, **changes: Any) -> Case:
    """A case of a model whose weights began at these lowest and highest ratios to He initialisation."""
    fields: dict[str, Any] = {
        "facts": {"init_he_min": ratio[0], "init_he_max": ratio[1], "activations": "Tanh"},
        "visible": SEES,
        **changes,
    }
    return a_case(*findings, **fields)


def best(diagnosis: Diagnosis) -> str:
    assert diagnosis.best is not None, order(diagnosis)
    return diagnosis.best.id


def of(story: Scenario) -> Diagnosis:
    """What is said of the only incident of a story."""
    (incident,) = story.job.incidents
    assert incident.diagnosis is not None
    return incident.diagnosis


def with_batches(story: Scenario, *ranks: int, **odd: float) -> Scenario:
    """From now on batches are looked at, and those of these ranks are odd."""
    fine = {"num_bad": 0, "lowest": -3.0, "highest": 3.0}
    return story.meanwhile(
        batch=lambda rank: Batch(**{"index": story.step, "epoch": 0, **fine, **(odd if rank in ranks else {})})
    )


# NaN: the loss, the data, the precision


def test_a_loss_that_breaks_out_of_calm_with_sound_inputs_takes_a_logarithm_of_zero() -> None:
    diagnosis = diagnose(
        a_break(bad_inputs=0.0, was_looked_into=1.0, loss_is_infinite=1.0, largest_activation=12.0, ranks=(0, 1))
    )

    assert best(diagnosis) == "log_of_zero"
    cause = told(diagnosis, "log_of_zero")
    assert lacks(cause.evidence_for, "the loss was the first bad number", "largest activation 12") == []
    assert "input_not_finite" not in order(diagnosis)


def test_an_infinite_loss_under_autocast_to_float16_is_an_overflow() -> None:
    values = {"bad_inputs": 0.0, "loss_is_infinite": 1.0, "largest_activation": 58_752.0}
    broke = a_finding("non_finite", 150, phase="forward", values=values)
    facts = {"precision": "float32", "computes_in": "float16", "scaler": False}

    assert best(diagnose(a_case(broke, curves=CALM, visible=SEES, facts=facts))) == "fp16_overflow"


def test_a_nan_inside_the_model_of_one_rank_alone_out_of_calm_is_its_hardware() -> None:
    """Its replica was equal when it was last sampled, before the break."""
    values = {"bad_inputs": 0.0, "loss_is_infinite": 0.0, "was_looked_into": 1.0, "largest_activation": 38.0}
    broke = a_finding("non_finite", 150, ranks=(1,), layers=("features.2",), phase="forward", values=values)
    seen = SEES | {"fingerprint"}

    assert order(diagnose(a_case(broke, curves=CALM, visible=seen, world=2)))[0] == "hardware_fault"
    assert "hardware_fault" not in order(diagnose(a_case(broke, curves=CALM, visible=seen, world=1)))


def test_gradients_that_explode_after_the_first_infinite_loss_do_not_speak_against_a_logarithm_of_zero() -> None:
    """Near zero a logarithm is steep; the run goes on, and breaks again."""
    values = {"bad_inputs": 0.0, "loss_is_infinite": 1.0}
    case = a_case(
        a_finding("non_finite", 138, phase="forward", values=values),
        a_finding("gradient_explosion", 168, values={"level": 1.0, "peak": 50.0}),
        a_finding("divergence", 183),
        curves=CALM,
        visible=SEES,
    )

    assert best(diagnose(case)) == "log_of_zero"


def test_a_loss_that_breaks_after_its_gradients_grew_is_no_logarithm_of_zero() -> None:
    norms = np.geomspace(1.0, 500.0, 149)
    explosion = a_finding("gradient_explosion", 140, step=149, values={"level": 20.0, "peak": 500.0})
    broke = a_finding("non_finite", 150, phase="forward", values={"was_looked_into": 0.0})

    diagnosis = diagnose(a_case(explosion, broke, curves={"grad_norm": norms}, visible=SEES))

    assert best(diagnosis) == "exploding_gradients"
    (growth,) = [text for text in told(diagnosis, "exploding_gradients").evidence_for if "grew" in text]
    assert "x over the 100 steps before" in growth


BLOWN_UP = (2.29, 2.43, 2.40, 2.25, 4.2, 9.6, 235.0, 6430.0, 1.7e8, 2.1e21)
"""The loss of SGD with momentum at a rate of 5."""


def an_early_break(**curves: Any) -> Case:
    """A NaN loss right after these curves, of which no rule had learned a level yet."""
    onset = max(len(values) for values in curves.values()) + 1
    values = {"was_looked_into": 0.0, "largest_activation": 5.3}
    finding = a_finding("non_finite", onset, ranks=(0,), phase="forward", values=values)
    return a_case(finding, curves={name: [*told, np.nan] for name, told in curves.items()}, visible=SEES)


@pytest.mark.parametrize(
    "curves",
    [
        {"loss": BLOWN_UP, "grad_norm": [0.3 * loss for loss in BLOWN_UP]},
        {"loss": BLOWN_UP},
        {"loss": [2.3] * 10, "grad_norm": [0.3 * loss for loss in BLOWN_UP]},
        {"loss": (2.3, 5e4), "grad_norm": (0.3, 3e5)},
    ],
    ids=["loss and norm", "a loss alone", "a norm alone", "two steps"],
)
def test_what_grew_to_its_break_in_the_first_steps_is_the_rate_and_no_undefined_number(curves: Any) -> None:
    diagnosis = diagnose(an_early_break(**curves))

    assert order(diagnosis)[:2] == ["lr_too_high", "exploding_gradients"]
    assert told(diagnosis, "lr_too_high").confidence > 0.5
    assert "grew from" in told(diagnosis, "lr_too_high").evidence_for[0]
    assert not {"log_of_zero", "input_not_finite"} & set(order(diagnosis))


def test_a_norm_that_is_huge_at_the_only_step_before_the_break_is_an_explosion() -> None:
    case = an_early_break(loss=[79.6], grad_norm=[160_525.0])
    diagnosis = diagnose(Case(**{**vars_of(case), "modules": (Module(name="rnn", kind="RNN"),)}))

    assert best(diagnosis) == "exploding_gradients"
    assert "gradient norm 1.61e+05 at the first step already" in (told(diagnosis, "exploding_gradients").evidence_for)
    assert "log_of_zero" not in order(diagnosis)


@pytest.mark.parametrize(
    "curves",
    [
        {"loss": (0.68, 0.59, 0.39, 0.14, 0.03, 0.012, 0.016), "grad_norm": (0.4, 0.7, 0.9, 0.6, 0.2, 0.16, 0.4)},
        {"loss": (0.7, 0.3, 0.1, 0.02, 0.001, 0.09), "grad_norm": (0.9, 0.5, 0.4, 0.2, 0.1, 30.0)},
        {"loss": [1.5], "grad_norm": [40.0]},
        {"loss": (2.3, 2.2), "grad_norm": (0.3, 2.9)},
    ],
    ids=["a loss that fell", "a steep batch beside the edge", "one usual step", "a norm not ten times as large"],
)
def test_a_break_out_of_calm_in_the_first_steps_is_still_a_logarithm_of_zero(curves: Any) -> None:
    diagnosis = diagnose(an_early_break(**curves))

    assert order(diagnosis)[0] == "log_of_zero"
    assert told(diagnosis, "log_of_zero").evidence_against == ()


def test_a_rank_that_broke_alone_after_the_loss_had_grown_is_not_blamed_on_its_data() -> None:
    calm, grown = ([2.0] * 10, [2.0, 2.0, 2.0, 9.0, 80.0, 900.0, 3e4])
    diagnoses = []
    for losses in (calm, grown):
        story = scenario(ranks=4).losses(*losses)
        diagnoses.append(of(story.nan_loss(2, at=story.step + 1, spreads=True)))

    assert [order(diagnosis)[0] for diagnosis in diagnoses] == ["input_not_finite", "lr_too_high"]
    assert "input_not_finite" not in order(diagnoses[1])


def test_a_batch_with_nan_is_named_with_rank_and_number_of_elements() -> None:
    story = with_batches(scenario(ranks=4), 2, num_bad=7).nan_loss(2, at=41, spreads=True)

    diagnosis = of(story)

    assert best(diagnosis) == "input_not_finite"
    cause = told(diagnosis, "input_not_finite")
    assert cause.evidence_for[0] == "7 elements of the batch on rank 2 were not finite at step 41"
    assert cause.advice.first_fix.startswith("inspect batch 41 of rank 2")


def test_one_rank_alone_with_a_batch_that_nobody_saw_points_at_its_data_first() -> None:
    diagnosis = of(scenario(ranks=4).nan_loss(2, at=61, spreads=True))

    assert order(diagnosis)[:2] == ["input_not_finite", "log_of_zero"]
    assert "only rank 2 of 4" in told(diagnosis, "input_not_finite").evidence_for[0]
    assert told(diagnosis, "input_not_finite").confidence < 0.95


def test_a_batch_that_was_seen_to_be_finite_clears_the_data() -> None:
    diagnosis = of(with_batches(scenario(ranks=4)).nan_loss(2, at=61, spreads=True))

    assert best(diagnosis) == "log_of_zero"
    assert "input_not_finite" not in order(diagnosis)


def test_a_scale_that_sinks_is_float16_overflowing() -> None:
    scale = a_finding(
        "loss_scale_collapse", 40, values={"scale": 0.25, "skipped_steps": 18.0, "largest_activation": 41000.0}
    )
    broke = a_finding("non_finite", 38, phase="forward", values={"was_looked_into": 0.0})

    diagnosis = diagnose(a_case(scale, broke, facts={"scaler": True, "precision": "float32"}, visible=SEES))

    assert best(diagnosis) == "fp16_overflow"
    says = told(diagnosis, "fp16_overflow").evidence_for
    assert lacks(says, "loss scale fell to 0.25", "activations reached 4.1e+04") == []


def test_an_infinite_loss_in_float16_is_an_overflow_before_a_logarithm() -> None:
    """The loss was looked into, and its inputs were sound: only the precision tells the two apart."""
    values = {"bad_inputs": 0.0, "was_looked_into": 1.0, "loss_is_infinite": 1.0, "largest_activation": 2.5}
    broke = a_finding("non_finite", 22, phase="forward", values=values)
    scale = a_finding("loss_scale_collapse", 30, values={"scale": 1.0, "skipped_steps": 18.0})

    diagnosis = diagnose(a_case(broke, scale, curves=CALM, facts={"scaler": True}, visible=SEES))

    assert best(diagnosis) == "fp16_overflow"
    assert "log_of_zero" not in order(diagnosis)


def test_float32_without_a_scaler_does_not_overflow_like_float16() -> None:
    case = a_break(was_looked_into=0.0)
    diagnosis = diagnose(Case(**{**vars_of(case), "facts": {"precision": "float32", "scaler": False}}))

    assert "fp16_overflow" not in order(diagnosis)


def vars_of(case: Case) -> dict[str, Any]:
    """Its fields, to make another one of."""
    return {name: getattr(case, name) for name in case.__dataclass_fields__}


# Explosions


def test_a_jump_out_of_calm_in_a_plain_net_is_not_called_an_explosion_of_the_gradients() -> None:
    jump = a_finding("gradient_explosion", 150, step=152, values={"level": 1.5, "peak": 45.0})
    spike = a_finding("loss_spike", 150, step=152)

    diagnosis = diagnose(a_case(jump, spike, curves=CALM, visible=SEES))

    assert "gradient norm jumped within one step, without growth before" in (
        told(diagnosis, "exploding_gradients").evidence_against
    )
    assert order(diagnosis)[0] != "exploding_gradients"


def test_the_same_jump_in_a_recurrent_net_is_and_clipping_is_advised_at_its_level() -> None:
    jump = a_finding("gradient_explosion", 150, step=180, values={"level": 1.5, "peak": 4500.0})
    modules = (Module(name="rnn", kind="RNN"),)

    diagnosis = diagnose(a_case(jump, curves=CALM, visible=SEES, modules=modules))

    assert order(diagnosis)[0] == "exploding_gradients"
    cause = told(diagnosis, "exploding_gradients")
    assert lacks(cause.evidence_for, "gradient norm reached 4,500, 3,000x its level") == []
    assert "clip_grad_norm_(model.parameters(), 3)" in cause.advice.code


def test_a_batch_out_of_range_comes_before_exploding_gradients() -> None:
    story = with_batches(scenario(ranks=2, noise=0.02))
    for _ in range(4):
        story.sampled().healthy(9)
    with_batches(story, 0, 1, lowest=-700.0, highest=765.0).loss_spike(at=41, height=20, steps=3, grad_height=30)

    diagnosis = of(story)

    assert order(diagnosis)[0] in ("unnormalised_input", "outlier_batch")
    cause = told(diagnosis, "unnormalised_input")
    assert lacks(cause.evidence_for[0], "1.46e+03", "244x") == []
    assert "exploding_gradients" not in order(diagnosis)[:2]


def test_inputs_within_the_usual_range_are_not_called_unnormalised() -> None:
    story = with_batches(scenario(ranks=2, noise=0.02))
    for _ in range(4):
        story.sampled().healthy(9)
    story.loss_spike(at=41, height=20, steps=3, grad_height=30)

    assert "unnormalised_input" not in order(of(story))


# Layers


def a_fade(**changes: Any) -> Any:
    values = {"first_rms": 2.3e-9, "last_rms": 4.8e-3}
    return a_finding(
        "gradient_vanishing", 1, step=50, layers=("layers.0.weight",), phase="backward", values=values, **changes
    )


def test_ten_sigmoids_without_norms_are_too_deep() -> None:
    facts = {"init_he_min": 0.41, "init_he_max": 0.41, "activations": "Sigmoid"}

    diagnosis = diagnose(a_case(a_fade(), facts=facts, layers=DEEP, visible=SEES))

    assert best(diagnosis) == "vanishing_depth"
    cause = told(diagnosis, "vanishing_depth")
    assert lacks(cause.evidence_for[0], "from 4.8e-03 to 2.3e-09", "10 weight matrices") == []
    assert lacks(cause.evidence_for, "each sigmoid passes at most a quarter") == []
    assert "do not raise the learning rate" in cause.advice.avoid


def test_the_same_fade_with_weights_five_times_too_large_and_saturated_units_is_the_initialisation() -> None:
    saturated = a_finding("saturation", 1, step=41, layers=("layers.1",), values={"share": 0.8})

    diagnosis = diagnose(begun((5.5, 5.7), a_fade(), saturated, layers=DEEP))

    assert best(diagnosis) == "bad_init"
    assert "initial weights up to 5.7x those of He initialisation" in (told(diagnosis, "bad_init").evidence_for)
    assert "xavier_uniform_" in told(diagnosis, "bad_init").advice.code


def test_units_that_saturate_late_from_usual_weights_were_not_begun_so() -> None:
    saturated = a_finding("saturation", 3000, step=3100, layers=("layers.1",), values={"share": 0.8})

    diagnosis = diagnose(begun((0.41, 0.41), saturated))

    assert "bad_init" not in order(diagnosis)


def test_a_plateau_alone_does_not_blame_initialisation_decay_or_depth() -> None:
    diagnosis = diagnose(
        begun(
            (0.41, 0.41),
            a_finding("plateau", 3000),
            groups=(a_group(weight_decay=0.01),),
            layers=DEEP,
        )
    )

    ours = {"bad_init", "weights_decay_away", "vanishing_depth", "dying_relu", "fp16_overflow"}
    assert sum(cause.confidence for cause in diagnosis.causes if cause.id in ours) < 0.25
    assert diagnosis.best is None


def test_units_that_die_in_training_are_dying_relus_and_those_dead_from_the_start_may_be_begun_so() -> None:
    facts = {"activations": "ReLU", "init_he_min": 0.41, "init_he_max": 0.41}
    late = a_finding("dead_units", 900, severity=Severity.CRITICAL, layers=("layer2",), values={"share": 0.7})
    early = a_finding("dead_units", 141, layers=("layer2",), values={"share": 0.88})

    dying, dead = (diagnose(a_case(found, facts=facts, visible=SEES)) for found in (late, early))

    assert best(dying) == "dying_relu"
    assert lacks(told(dying, "dying_relu").evidence_for, "70 % of the units of layer2") == []
    assert "bad_init" not in order(dying)
    assert {"dying_relu", "bad_init"} == set(order(dead)[:2])


def test_weights_that_shrank_with_the_outputs_were_taken_by_decay() -> None:
    values = {"std": 0.0012, "usual": 0.54, "num_modules": 1.0, "weight_ratio": 0.13}
    collapse = a_finding("activation_collapse", 481, layers=("layer2",), values=values)

    diagnosis = diagnose(a_case(collapse, groups=(a_group("SGD", lr=0.1, weight_decay=5e-4),), visible=SEES))

    assert best(diagnosis) == "weights_decay_away"
    cause = told(diagnosis, "weights_decay_away")
    assert lacks(cause.evidence_for, "shrank to 13 %") == []
    assert "weight_decay=0.0001" in cause.advice.code


@pytest.mark.parametrize(
    ("values", "decay"),
    [({"std": 0.001, "usual": 0.5, "weight_ratio": 1.02}, 5e-4), ({"std": 0.001, "usual": 0.5}, 0.0)],
    ids=["weights as large as ever", "no decay at all"],
)
def test_outputs_that_collapse_over_sound_weights_are_not_blamed_on_decay(
    values: dict[str, float], decay: float
) -> None:
    collapse = a_finding("activation_collapse", 481, layers=("layer2",), values=values)

    diagnosis = diagnose(a_case(collapse, groups=(a_group("SGD", lr=0.1, weight_decay=decay),), visible=SEES))

    assert "weights_decay_away" not in order(diagnosis)


def test_strong_decay_explains_a_run_that_gets_nowhere() -> None:
    groups = (a_group("SGD", lr=0.1, momentum=0.9, weight_decay=0.1),)

    diagnosis = diagnose(a_case(a_finding("plateau", 400), groups=groups, visible=SEES))

    assert lacks(told(diagnosis, "weights_decay_away").evidence_for, "10 % of the weights per step") == []


def test_without_evidence_nothing_is_sure() -> None:
    diagnosis = diagnose(a_case(a_finding("non_finite", 5000), is_live=False))

    assert diagnosis.best is None
    assert diagnosis.unknown > 0.3
