"""Causes of curves that go wrong: rates too high, too low, gone or jumping; odd batches, other data, no signal."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.weighing import diagnose
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_daemon.rules.parts.finding import Severity
from support.cases import a_case, a_finding, a_group, a_validation, order, told
from support.curves import views
from support.ranks import EVERYTHING, LAYERS
from support.summaries import lacks

SEEN = frozenset(EVERYTHING)
CHANCE = float(np.log(10))


def flat(level: float, steps: int, noise: float = 0.01) -> NDArray[np.float64]:
    return level * (1 + noise * np.random.default_rng(0).standard_normal(steps))


def moving(case: Case, ratio: float) -> Case:
    """The same case, where the last sample found the weights moving by this share of themselves."""
    (view,) = views([1.0], updates={0: ratio}, layers=LAYERS)
    return replace(case, sampled=view.step, layers=LAYERS)


def healed(case: Case, step: int) -> Case:
    """The same case, all of it over at this step."""
    members = tuple(
        replace(m, is_open=False, last=msgspec.structs.replace(m.last, step=step, state="resolved"))
        for m in case.incident.episodes
    )
    return replace(case, incident=msgspec.structs.replace(case.incident, episodes=members))


def lasting(case: Case, step: int) -> Case:
    """The same case, all of it seen last at this step."""
    members = tuple(replace(m, last=msgspec.structs.replace(m.last, step=step)) for m in case.incident.episodes)
    return replace(case, incident=msgspec.structs.replace(case.incident, episodes=members))


def says(diagnosis: Diagnosis, cause: str, *numbers: str) -> None:
    """The evidence for a cause holds these."""
    text = " | ".join(told(diagnosis, cause).evidence_for)
    for number in numbers:
        assert number in text, text


# The rate is too high


def test_weights_written_anew_in_one_step_speak_for_a_rate_that_is_too_high() -> None:
    values = {"rewritten": 1.3, "update_ratio": 0.01, "is_above": 0.0, "level": 2.2, "first": 2.3}
    case = a_case(
        a_finding("lr_too_high", 3, values=values),
        a_finding("dead_units", 151),
        curves={"loss": flat(2.2, 300), "lr": [0.1] * 300},
        groups=(a_group("Adam", lr=0.1),),
    )

    diagnosis = diagnose(case)

    assert diagnosis.best is not None
    assert diagnosis.best.id == "lr_too_high"
    says(diagnosis, "lr_too_high", "130 %", "0.1 is unusually high for Adam")
    assert diagnosis.best.advice.code == "optimizer = Adam(model.parameters(), lr=0.01)  # was 0.1"


def test_a_run_that_was_thrown_off_and_died_is_the_opposite_of_one_that_never_moved() -> None:
    """Both end with a flat loss and weights that no longer move; only the beginning tells."""
    jump = np.concatenate([flat(2.32, 10), np.linspace(3.0, 5.2, 10), flat(2.34, 580)])
    died = np.concatenate([flat(0.6, 10), flat(4.0, 20), flat(0.14, 570)])

    def case(loss: NDArray[np.float64], norms: NDArray[np.float64], lr: float) -> Diagnosis:
        curves = {"loss": loss, "grad_norm": norms, "lr": [lr] * 600}
        still = a_case(a_finding("not_learning", 1), curves=curves, visible=SEEN, groups=(a_group("SGD", lr=lr),))
        return diagnose(moving(still, 2e-9))

    dead = case(jump, died, 1.0)
    assert order(dead)[0] == "lr_too_high"
    assert "lr_too_low" not in order(dead)
    says(dead, "lr_too_high", "to 5.2", "to 0.14")

    assert order(case(flat(2.32, 600), flat(0.6, 600), 1e-6))[0] == "lr_too_low"
    faded = case(flat(2.32, 600), died, 0.005)
    assert "lr_too_low" not in order(faded), "gradients that were there, and are gone"


def test_a_rate_that_is_ample_for_its_optimizer_is_not_too_low() -> None:
    curves = {"loss": flat(2.3, 600), "lr": [0.1] * 600}
    ample = moving(a_case(a_finding("not_learning", 1), curves=curves, groups=(a_group("SGD", lr=0.1),)), 2e-6)
    unknown = moving(a_case(a_finding("not_learning", 1), curves={"loss": flat(2.3, 600)}), 2e-6)

    assert told(diagnose(unknown), "lr_too_low").confidence > 0.3
    ranked = diagnose(ample).causes
    assert next((cause.confidence for cause in ranked if cause.id == "lr_too_low"), 0.0) < 0.2


def test_an_early_break_on_unchanged_data_is_the_rates_and_not_the_datas() -> None:
    """A log with losses and rates alone: thrown up at once, and never below its beginning again."""
    loss = np.concatenate([[2.32], flat(40.0, 20, 0.3), flat(3.2, 179), flat(6.0, 100)])
    above = {"is_above": 1.0, "level": 9.3, "first": 2.32, "thrown_to": 72.7, "rewritten": 0.0}
    case = a_case(
        a_finding("lr_too_high", 3, step=32, values=above),
        a_finding("divergence", 200, severity=Severity.CRITICAL),
        curves={"loss": loss, "lr": [10.0] * 300},
    )

    ranked = order(diagnose(case))
    assert ranked[0] == "lr_too_high"
    assert "data_changed" not in ranked


def test_a_model_that_died_did_not_meet_other_data() -> None:
    loss = np.concatenate([flat(1.2, 299), flat(2.3, 100)])
    breaks = a_finding("divergence", 300)

    def share(after: float) -> float:
        norms = np.concatenate([flat(1.5, 299), flat(after, 100)])
        ranked = diagnose(a_case(breaks, curves={"loss": loss, "grad_norm": norms, "lr": [0.3] * 399})).causes
        return next((cause.confidence for cause in ranked if cause.id == "data_changed"), 0.0)

    assert share(after=2.0) > 0.5
    assert share(after=0.1) < 0.3


def test_a_loss_that_breaks_as_the_rate_climbs_is_the_rates_and_one_late_in_a_decay_is_not() -> None:
    loss = np.concatenate([flat(0.5, 299), np.linspace(0.5, 3.0, 100)])
    breaks = a_finding("divergence", 300)

    rising = diagnose(a_case(breaks, curves={"loss": loss, "lr": 0.05 * 1.006 ** np.arange(399)}))
    decayed = diagnose(a_case(breaks, curves={"loss": loss, "lr": 0.05 * 0.98 ** np.arange(399)}))

    assert order(rising)[0] == "lr_too_high"
    says(rising, "lr_too_high", "from 0.05", "0.3")
    assert decayed.best is None or decayed.best.id != "lr_too_high"
    assert "lr_too_high" not in order(decayed) or "of its peak" in told(decayed, "lr_too_high").evidence_against[0]


def test_swings_speak_for_the_rate_and_small_updates_against_it() -> None:
    swings = a_finding("oscillation", 200, values={"amplitude": 0.5, "correlation": -0.6})
    case = a_case(swings, curves={"loss": flat(1.0, 400, 0.3)}, visible=SEEN)

    diagnosis = diagnose(case)
    assert order(diagnosis)[0] == "lr_too_high"
    says(diagnosis, "lr_too_high", "from step to step by 50 %")
    against = told(diagnose(moving(case, 1e-3)), "lr_too_high")
    assert lacks(against.evidence_against, "0.1 % per step") == []
    assert against.confidence < told(diagnosis, "lr_too_high").confidence


def test_a_spike_alone_is_nobodys_fault() -> None:
    diagnosis = diagnose(a_case(a_finding("loss_spike", 10, severity=Severity.CRITICAL)))

    assert diagnosis.best is None
    assert diagnosis.unknown > 0.4


def test_what_is_broken_from_the_first_line_on_is_not_blamed_on_steps_that_nobody_saw() -> None:
    broken = a_finding("non_finite", 1, severity=Severity.CRITICAL)

    excerpt = diagnose(a_case(broken, curves={"loss": [0.0] * 10}, is_live=False))
    live = diagnose(a_case(broken, curves={"loss": [np.nan] * 10}))

    assert excerpt.best is None
    assert "lr_too_high" not in order(live) or live.causes[0].id != "lr_too_high"


# The rate is too low, or gone


def test_weights_that_hardly_move_speak_for_a_rate_that_is_too_low_and_say_by_how_much() -> None:
    case = a_case(
        a_finding("not_learning", 1, values={"level": CHANCE}),
        a_finding("lr_too_low", 1, values={"update_ratio": 4e-7}),
        curves={"loss": flat(CHANCE, 600), "lr": [1e-6] * 600, "grad_norm": flat(0.5, 600)},
        groups=(a_group("SGD", lr=1e-6),),
        config={"num_classes": 10},
        visible=SEEN,
    )

    diagnosis = diagnose(moving(case, 4e-7))

    assert order(diagnosis)[0] == "lr_too_low"
    says(diagnosis, "lr_too_low", "4e-07", "1e-06 is unusually low for SGD")
    assert "# was 1e-06" in told(diagnosis, "lr_too_low").advice.code
    assert diagnose(moving(a_case(a_finding("not_learning", 1)), 3e-3)).best is None


def test_a_plateau_after_the_rate_has_gone_is_the_schedules() -> None:
    values = {"start": 2.3, "level": 2.1, "lr": 1e-9, "peak_lr": 1e-3}
    rates = np.where(np.arange(600) < 60, 1e-3, 1e-9)
    loss = np.concatenate([np.linspace(2.3, 2.1, 60), flat(2.1, 540)])
    case = a_case(
        a_finding("plateau", 400, values=values), curves={"loss": loss, "lr": rates}, facts={"scheduler": "StepLR"}
    )

    diagnosis = diagnose(case)

    assert order(diagnosis)[0] == "lr_decayed"
    says(diagnosis, "lr_decayed", "below 2 % of its peak 0.001", "since step 61", "90 % of all steps")
    assert "StepLR" in told(diagnosis, "lr_decayed").advice.first_fix

    healthy = diagnose(replace(case, recent=[replace(s, lr=1e-3) for s in case.recent]))
    assert order(healthy)[0] != "lr_decayed"


def test_a_low_loss_that_stands_with_its_validation_has_converged() -> None:
    values = {"start": 2.3, "level": 0.1, "lr": 1e-3, "peak_lr": 1e-3}
    case = a_case(
        a_finding("plateau", 400, values=values),
        curves={"loss": flat(0.1, 600), "lr": [1e-3] * 600},
        events=[a_validation(100 * i, 0.12) for i in range(1, 6)],
    )

    diagnosis = diagnose(case)

    assert order(diagnosis)[0] == "converged"
    says(diagnosis, "converged", "4.3 %", "0.12")
    high = a_finding("plateau", 400, values={**values, "level": 2.1})
    assert order(diagnose(a_case(high, curves={"loss": flat(2.1, 600), "lr": [1e-3] * 600})))[0] != "converged"


def test_weights_that_began_alike_make_a_saddle() -> None:
    values = {"start": 2.3, "level": 2.0, "lr": 0.05, "peak_lr": 0.05}
    case = a_case(
        a_finding("plateau", 400, values=values),
        curves={"loss": flat(2.0, 600), "lr": [0.05] * 600},
        facts={"init_he_min": 0, "init_he_max": 0.41},
    )

    diagnosis = diagnose(case)

    assert order(diagnosis)[0] == "saddle"
    says(diagnosis, "saddle", "almost equal", "start 2.3")
    usual = diagnose(replace(case, facts={"init_he_min": 0.4, "init_he_max": 0.41}))
    assert told(usual, "saddle").confidence < 0.5


# Nothing to learn, or no way to


@pytest.fixture
def at_chance() -> Case:
    """Flat at chance from the first step, with nothing else found."""
    return a_case(
        a_finding("not_learning", 1, values={"level": CHANCE}),
        curves={"loss": flat(CHANCE, 800, 0.002), "grad_norm": flat(0.2, 800), "lr": [1e-3] * 800},
        config={"num_classes": 10},
        visible=SEEN,
        events=[a_validation(100 * i, CHANCE, accuracy=0.1) for i in range(1, 8)],
    )


def test_a_model_that_works_and_stays_at_chance_has_the_wrong_labels(at_chance: Case) -> None:
    diagnosis = diagnose(moving(at_chance, 3e-3))

    assert order(diagnosis)[0] == "labels_shuffled"
    says(diagnosis, "labels_shuffled", "2.303", "0.3 %", "accuracy 0.1", "10 classes")
    assert "optimizer" in told(diagnosis, "labels_shuffled").advice.avoid


def test_labels_are_not_blamed_where_weights_stand_or_the_loss_is_below_chance(at_chance: Case) -> None:
    still = diagnose(moving(at_chance, 1e-7))
    assert order(still)[0] != "labels_shuffled"

    learned = replace(at_chance, recent=[replace(s, loss=1.5) for s in at_chance.recent])
    below = diagnose(moving(learned, 3e-3))
    assert below.best is None
    assert "well below chance" in told(below, "labels_shuffled").evidence_against[0]


def test_no_gradient_anywhere_means_that_the_graph_is_cut(at_chance: Case) -> None:
    cut = replace(at_chance, recent=[replace(s, grad_norm=0.0) for s in at_chance.recent])

    diagnosis = diagnose(moving(cut, 0.0))

    assert order(diagnosis)[0] == "graph_disconnected"
    says(diagnosis, "graph_disconnected", "on any of 800 steps")
    assert "graph_disconnected" not in order(diagnose(moving(at_chance, 3e-3)))


# The schedule


def scheduled(kind: str, before: float, lr: float, *more: Any, **changes: Any) -> Case:
    return a_case(a_finding("lr_schedule", 500, values={kind: 1.0, "before": before, "lr": lr}), *more, **changes)


def test_a_jump_is_the_schedules_and_comes_before_the_rate_itself() -> None:
    loss = np.concatenate([flat(0.2, 503), flat(1.5, 200, 0.2)])
    rates = np.where(np.arange(703) < 499, 0.02, 0.2)
    diagnosis = diagnose(
        scheduled("jump", 0.02, 0.2, a_finding("divergence", 504), curves={"loss": loss, "lr": rates}, visible=SEEN)
    )

    assert order(diagnosis)[0] == "schedule_jump"
    says(diagnosis, "schedule_jump", "10x (0.02 to 0.2) at step 500", "4 steps later")
    assert "= 0.02" in told(diagnosis, "schedule_jump").advice.code
    assert "schedule_jump" not in order(diagnose(a_case(a_finding("divergence", 504), visible=SEEN)))


def test_a_reset_on_resume_is_a_state_that_was_not_restored() -> None:
    diagnosis = diagnose(scheduled("reset", 3e-4, 2e-3))

    assert order(diagnosis)[0] == "scheduler_not_restored"
    says(diagnosis, "scheduler_not_restored", "0.002 at step 500", "0.0003")
    assert "load_state_dict" in told(diagnosis, "scheduler_not_restored").advice.code
    assert order(diagnose(scheduled("jump", 3e-4, 2e-3)))[0] == "schedule_jump"


def test_a_scheduler_without_effect_is_idle_and_a_rate_of_zero_has_decayed() -> None:
    idle = diagnose(scheduled("unmoved", 1e-3, 1e-3, facts={"scheduler": "CosineAnnealingLR"}))
    assert order(idle)[0] == "scheduler_idle"
    says(idle, "scheduler_idle", "0.001", "CosineAnnealingLR")

    # A warm-up that is never stepped stays at its first rate, far below the one that it should reach.
    low = {"loss": np.linspace(3.0, 2.9, 700), "lr": np.full(700, 1e-6)}
    groups = (a_group("AdamW", lr=1e-6, initial_lr=1e-3),)
    warmup = diagnose(scheduled("unmoved", 1e-6, 1e-6, curves=low, groups=groups, facts={"scheduler": "LambdaLR"}))
    assert order(warmup)[0] == "scheduler_idle"
    assert "lr_decayed" not in order(warmup)

    rates = np.where(np.arange(700) < 499, 1e-3, 0.0)
    assert order(diagnose(scheduled("zero", 0.0, 0.0, curves={"loss": flat(1, 700), "lr": rates})))[0] == "lr_decayed"


# Batches and data


def test_a_short_spike_out_of_calm_is_a_batch_and_points_are_counted_as_a_log_writes_them() -> None:
    spike = a_finding("loss_spike", 1000, values={"level": 2.0})
    case = a_case(spike, curves={"loss": flat(2.0, 300), "grad_norm": flat(1.0, 300)})
    sparse = replace(case, recent=[replace(s, step=10 * s.step) for s in case.recent])

    diagnosis = diagnose(healed(sparse, 1090))
    assert order(diagnosis)[0] == "outlier_batch"
    says(diagnosis, "outlier_batch", "over after 10 points")
    assert diagnose(lasting(sparse, 2500)).best is None, "what lasts for so long is no batch's doing"


def test_a_loss_that_steps_up_and_stays_there_has_other_data() -> None:
    loss = np.concatenate([flat(0.3, 499), flat(CHANCE, 300)])
    case = a_case(
        a_finding("loss_spike", 500, severity=Severity.CRITICAL),
        a_finding("divergence", 503, severity=Severity.CRITICAL),
        curves={"loss": loss, "lr": [1e-3] * 799},
        config={"num_classes": 10},
    )

    diagnosis = diagnose(lasting(case, 799))

    assert order(diagnosis)[0] == "data_changed"
    says(diagnosis, "data_changed", "from 0.3 to 2.3", "is chance")
    assert diagnosis.causes[0].confidence < 0.98

    crept = np.concatenate([flat(0.3, 449), np.linspace(0.3, 3.0, 350)])
    assert order(diagnose(a_case(a_finding("divergence", 500), curves={"loss": crept})))[:1] != ["data_changed"]


def test_a_jump_that_comes_back_is_not_laid_to_other_data_before_it_is_over() -> None:
    back, up = (
        diagnose(lasting(a_case(a_finding("loss_spike", 500), curves={"loss": [*[3.0] * 499, *(3 + rise)]}), 511))
        for rise in (2.3 * np.exp(-np.arange(12) / 8), np.full(12, 2.3))
    )

    assert order(back)[0] == "outlier_batch"
    assert _confidence(back, "data_changed") < 0.5 * _confidence(up, "data_changed")


def _confidence(diagnosis: Diagnosis, cause: str) -> float:
    return next((c.confidence for c in diagnosis.causes if c.id == cause), 0.0)


def test_a_model_thrown_by_one_gradient_out_of_calm_had_an_odd_batch_not_too_high_a_rate() -> None:
    """With SGD a step is as large as its gradient: one price with the point lost, and the weights are rewritten."""
    norms = np.concatenate([np.full(400, 0.53), [76.7, 40.0], np.full(300, 2.0)])
    loss = np.concatenate([np.full(400, 0.11), [10.4, 6.0], np.geomspace(2.0, 1.1, 300)])
    findings = (
        a_finding("gradient_explosion", 401, severity=Severity.CRITICAL, values={"level": 0.53, "peak": 76.7}),
        a_finding("loss_spike", 401),
        a_finding("lr_too_high", 401, step=700, values={"rewritten": 0.4, "first": 0.99, "level": 1.13}),
    )

    def of(optimizer: str) -> Diagnosis:
        groups = (a_group(optimizer, lr=0.02),)
        return diagnose(a_case(*findings, curves={"loss": loss, "grad_norm": norms}, groups=groups, visible=SEEN))

    assert order(of("SGD"))[0] == "outlier_batch"
    says(of("SGD"), "outlier_batch", "145x the usual norm")
    assert order(of("AdamW"))[0] == "lr_too_high", "whose steps do not grow with the gradient"
