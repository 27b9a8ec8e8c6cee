"""The five hypotheses on curves whose truth is known."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from caboose_daemon.offline.hypotheses.curvature import Curvature
from caboose_daemon.offline.hypotheses.examining import HYPOTHESES, examine
from caboose_daemon.offline.hypotheses.expected_curve import expected
from caboose_daemon.offline.runs.run import Run

NUM, EVERY = 4000, 100
STEPS = np.arange(1, NUM + 1)
FALL = 1.0 + 3 * (1 + STEPS / 60) ** -0.5
EVALUATED = list(range(EVERY, NUM + 1, EVERY))
Validation = Callable[[int], float]


def run(
    losses: Any,
    validation: Validation,
    *,
    others: Callable[[int], Mapping[str, float]] = lambda step: {},
    updates: Validation | None = None,
    **curves: Any,
) -> Run:
    given = {"loss": losses, **curves}
    return Run(
        "night",
        "log",
        "night.csv",
        np.ones(NUM, np.int64),
        STEPS,
        {name: np.asarray(values, dtype=np.float64) for name, values in given.items()},
        np.zeros(NUM, np.int64),
        validations=tuple((step, validation(step), others(step)) for step in EVALUATED),
        updates=tuple((step, updates(step)) for step in EVALUATED) if updates is not None else (),
    )


def noisy(seed: int, scale: float) -> Any:
    return np.random.default_rng(seed).normal(0, scale, NUM)


def following(seed: int = 1, scale: float = 0.02, stops: int = NUM, above: float = 0.2) -> Validation:
    noise = noisy(seed, scale)
    return lambda step: float(FALL[min(step, stops) - 1] + above + noise[step - 1])


def verdicts(found: Run, curvature: Curvature | None = None) -> dict[str, str]:
    return {one["id"]: one["verdict"] for one in examine(found, curvature)["hypotheses"]}


LOSSES = FALL + noisy(0, 0.1)


@pytest.mark.parametrize("seed", range(8))
def test_a_run_on_its_curve_converges_normally_and_nothing_else_is_supported(seed: int) -> None:
    healthy = run(
        FALL + noisy(seed, 0.1),
        following(seed + 100),
        grad_norm=np.exp(noisy(seed + 200, 0.2)),
        lr=np.full(NUM, 1e-3),
        updates=lambda step: 1e-3,
    )
    assert [name for name, verdict in verdicts(healthy).items() if verdict == "supported"] == ["normal_convergence"]


def test_a_validation_too_noisy_to_show_the_fall_is_normal_and_one_that_would_show_it_is_not() -> None:
    assert verdicts(run(LOSSES, following(stops=1000, scale=0.5)))["normal_convergence"] == "supported"
    assert verdicts(run(LOSSES, following(stops=1000, scale=0.003)))["normal_convergence"] == "refuted"


def test_training_that_stopped_short_of_its_curve_is_no_convergence() -> None:
    stopped = np.where(STEPS < 1500, FALL, FALL[1500]) + noisy(0, 0.02)
    assert verdicts(run(stopped, following(stops=1500)))["normal_convergence"] == "refuted"


def test_a_decayed_schedule_shows_in_the_updates_and_without_them_in_the_rate() -> None:
    rates = 1e-3 * np.where(STEPS < 1500, 1.0, 1e-4)
    with_updates = run(LOSSES, following(), lr=rates, updates=lambda step: float(rates[step - 1]))
    assert verdicts(with_updates)["decayed_schedule"] == "supported"
    assert verdicts(run(LOSSES, following(), lr=rates))["decayed_schedule"] == "supported"
    assert verdicts(run(LOSSES, following(), lr=np.full(NUM, 1e-3)))["decayed_schedule"] == "refuted"
    tenth = np.where(STEPS < 1500, 1e-3, 1e-4)
    assert verdicts(run(LOSSES, following(), lr=tenth))["decayed_schedule"] == "undecided"


@pytest.mark.parametrize("decayed_at", [600, 1000, 1500, 2500])
def test_a_schedule_may_have_decayed_long_ago(decayed_at: int) -> None:
    rates = 1e-3 * np.where(decayed_at > STEPS, 1.0, 1e-5)
    found = run(LOSSES, following(), lr=rates, updates=lambda step: float(rates[step - 1]))
    assert verdicts(found)["decayed_schedule"] == "supported"


def test_samples_that_ended_before_the_decay_say_nothing_about_now() -> None:
    rates = 1e-3 * np.where(STEPS < 1500, 1.0, 1e-5)
    found = run(LOSSES, following(), lr=rates, updates=lambda step: 1e-3)
    old = dataclasses.replace(found, updates=found.updates[:14])
    assert verdicts(old)["decayed_schedule"] == "supported"


def test_a_low_rate_whose_updates_are_as_large_as_before_has_not_decayed() -> None:
    rates = 1e-3 * np.where(STEPS < 1500, 1.0, 1e-4)
    found = run(LOSSES, following(), lr=rates, updates=lambda step: 1e-3)
    assert verdicts(found)["decayed_schedule"] == "refuted"


def test_equal_results_are_no_measurement_but_a_rounded_log_may_repeat_one() -> None:
    assert verdicts(run(LOSSES, lambda step: 1.2345678))["same_number"] == "supported"
    rounded = run(FALL[-1] + noisy(0, 0.1), lambda step: 1.23)
    assert verdicts(rounded)["same_number"] != "refuted"
    two_digits = run(LOSSES, lambda step: round(1.23 + 0.01 * (step % 200 == 0) * (step < 3800), 2))
    assert verdicts(two_digits)["same_number"] == "undecided"
    assert verdicts(run(LOSSES, following()))["same_number"] == "refuted"


def test_results_that_return_in_a_cycle_are_not_new() -> None:
    values = (1.2345678, 1.3456789, 1.4567891)
    assert verdicts(run(LOSSES, lambda step: values[step // EVERY % 3]))["same_number"] == "supported"


def test_a_stamp_that_stands_or_falls_behind_is_an_old_checkpoint() -> None:
    stands = run(LOSSES, following(stops=1000), others=lambda step: {"checkpoint_step": min(step, 1000)})
    assert verdicts(stands)["same_number"] == verdicts(stands)["overfit_or_stale"] == "supported"
    lags = run(LOSSES, following(stops=1000), others=lambda step: {"checkpoint_step": 1000 + step // 10})
    assert verdicts(lags)["overfit_or_stale"] == "supported"
    moves = run(LOSSES, following(), others=lambda step: {"checkpoint_step": step - 50})
    assert verdicts(moves)["overfit_or_stale"] == "refuted"


def test_a_rising_validation_and_a_falling_accuracy_are_overfitting() -> None:
    noise = noisy(3, 0.02)
    rising = run(LOSSES, lambda step: float(2.0 + 1e-4 * max(0, step - 1500) + noise[step - 1]))
    assert verdicts(rising)["overfit_or_stale"] == "supported"
    accuracy = run(
        LOSSES,
        following(stops=1000),
        others=lambda step: {"accuracy": float(0.9 - 1e-5 * step + 0.05 * noise[step - 1])},
    )
    assert verdicts(accuracy)["overfit_or_stale"] == "supported"


def test_a_small_gradient_alone_does_not_tell_a_saddle_from_a_minimum() -> None:
    norms = np.exp(noisy(2, 0.2)) * np.where(STEPS < 1500, 1.0, 0.02)
    small = run(LOSSES, following(), grad_norm=norms)
    assert verdicts(small)["flat_region"] == "undecided"
    assert verdicts(small, Curvature(1.0, 10.0, -3.0, 0.9, 0.01))["flat_region"] == "supported"
    assert verdicts(small, Curvature(1.0, 10.0, -0.1, 0.01, 0.01))["flat_region"] == "refuted"
    assert verdicts(small, Curvature(1.0, 10.0, -3.0, 0.01, 0.5))["flat_region"] == "undecided"
    assert verdicts(run(LOSSES, following(), grad_norm=np.exp(noisy(2, 0.2))))["flat_region"] == "refuted"


def test_what_is_missing_is_named_wherever_nothing_can_be_decided() -> None:
    bare = Run("x", "log", "x", np.ones(9, np.int64), STEPS[:9], {"loss": LOSSES[:9]}, np.zeros(9, np.int64))
    for one in examine(bare)["hypotheses"]:
        assert one["verdict"] == "undecided"
        assert one["missing"]
    assert len(HYPOTHESES) == 5


def test_the_expected_curve_holds_the_truth_for_laws_that_are_not_in_its_grid() -> None:
    for power, scale in ((0.25, 30), (0.4, 700), (0.85, 200)):
        for seed in range(5):
            found = expected(STEPS, 0.5 + 2 * (1 + STEPS / scale) ** -power + noisy(seed, 0.05))
            assert found is not None
            assert abs(found.above) < 3, (power, scale, seed, found)
