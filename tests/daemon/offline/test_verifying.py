"""A change is given credit only for what a curve would not have done by itself; otherwise nobody can tell."""

from typing import Any

import numpy as np
import pytest

from caboose_daemon.offline.verifying.quantity import (
    QuantityChange,
    compare_levels,
    compare_rates,
    compare_slopes,
    compare_states,
    pair,
)
from caboose_daemon.offline.verifying.stretch import Floats, measure, student
from caboose_daemon.offline.verifying.verdict import Verification, judge

NUM = 300


def wandering(rng: np.random.Generator, num: int, memory: float) -> Floats:
    """Noise of scale 1 in which each value keeps this share of the one before."""
    fresh = rng.normal(0, np.sqrt(1 - memory**2), num + 200)
    values = np.zeros(num + 200)
    for i in range(1, num + 200):
        values[i] = memory * values[i - 1] + fresh[i]
    return values[200:]


def changes(curve: Any, *, noise: Any, tries: int = 15, jump: float = 0.0) -> tuple[list[str], list[str]]:
    """What is said of level and slope in many runs of a curve, with a jump in the middle."""
    rng = np.random.default_rng(7)
    steps = np.arange(500.0, 500.0 + 2 * NUM)
    levels, slopes = [], []
    for _ in range(tries):
        values = curve(steps) + noise(rng, 2 * NUM)
        values[NUM:] += jump
        both = pair((steps[:NUM], values[:NUM]), (steps[NUM:], values[NUM:]))
        levels.append(compare_levels(both, 0.02).change)
        slopes.append(compare_slopes(both).change)
    return levels, slopes


def flat(steps: Floats) -> Floats:
    return np.full(len(steps), 2.0)


def falling(steps: Floats) -> Floats:
    return 2.0 + 6.0 * (steps + 50.0) ** -0.4


NOISES = {
    "independent": lambda rng, num: rng.normal(0, 0.05, num),
    "heavy-tailed": lambda rng, num: rng.standard_t(2, num) * 0.03,
    "remembering": lambda rng, num: 0.05 * wandering(rng, num, 0.9),
    "wandering without end": lambda rng, num: np.cumsum(rng.normal(0, 0.005, num)),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("curve", [flat, falling])
def test_where_nothing_was_changed_a_change_is_hardly_ever_seen(curve: Any, noise: str) -> None:
    levels, slopes = changes(curve, noise=NOISES[noise])

    for said in (levels, slopes):
        assert sum(word in ("lower", "higher") for word in said) <= 1, said


@pytest.mark.parametrize("curve", [flat, falling])
def test_a_loss_that_falls_further_than_its_line_leads_is_lower(curve: Any) -> None:
    levels, _ = changes(curve, noise=NOISES["independent"], jump=-0.4)

    assert set(levels) == {"lower"}


def test_a_loss_that_jumps_up_is_higher() -> None:
    levels, _ = changes(falling, noise=NOISES["independent"], jump=0.4)

    assert set(levels) == {"higher"}


def test_a_loss_that_merely_goes_on_falling_is_given_no_credit() -> None:
    levels, _ = changes(lambda steps: 4.0 - 0.002 * steps, noise=NOISES["independent"])

    assert "lower" not in levels


def test_a_quiet_flat_curve_is_the_same_and_not_merely_unknown() -> None:
    levels, _ = changes(flat, noise=lambda rng, num: rng.normal(0, 0.02, num))

    assert set(levels) == {"same"}


def test_noise_that_remembers_counts_for_less() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(2000.0)

    independent = measure(steps, rng.normal(0, 1, 2000))
    remembering = measure(steps, wandering(rng, 2000, 0.9))

    assert independent.num_independent > 1500
    assert 75 < remembering.num_independent < 150, "in theory 2000 / 19"
    assert remembering.level_error > 3 * independent.level_error


def test_a_curve_that_bends_does_not_wander() -> None:
    steps = np.arange(500.0)
    values = 2 + 2 * np.exp(-steps / 300) + np.random.default_rng(0).normal(0, 0.03, 500)

    assert measure(steps, values).num_independent > 250


def test_single_values_far_off_do_not_move_a_stretch() -> None:
    steps = np.arange(300.0)
    values = 3 - 0.001 * steps + np.random.default_rng(0).normal(0, 0.02, 300)
    plain = measure(steps, values)
    values[::25] = 1e6

    spoilt = measure(steps, values)

    assert spoilt.level == pytest.approx(plain.level, abs=0.02)
    assert spoilt.slope == pytest.approx(plain.slope, abs=2e-4)


def test_a_curve_without_noise_breaks_nothing() -> None:
    steps = np.arange(100.0)
    both = pair((steps, np.full(100, 2.0)), (steps + 100, np.full(100, 1.0)))

    assert compare_levels(both, 0.02).change == "lower"
    assert compare_slopes(both).change in ("unknown", "same")


def test_a_divergence_that_ends_is_a_slope_that_helps() -> None:
    _, slopes = changes(lambda steps: np.where(steps < 800, 0.002 * steps, 1.6), noise=NOISES["independent"])

    assert set(slopes) == {"lower"}


@pytest.mark.parametrize(("freedom", "exact"), [(5, 4.032), (10, 3.169), (30, 2.750), (1000, 2.581)])
def test_students_quantiles_are_those_of_the_tables(freedom: float, exact: float) -> None:
    assert student(0.99, freedom) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [((8, 1000), (0, 1000), "lower"), ((1, 1000), (0, 1000), "unknown"), ((0, 900), (9, 900), "higher")],
)
def test_counts_are_compared_exactly(before: tuple[int, int], after: tuple[int, int], said: str) -> None:
    assert compare_rates(*before, *after).change == said


def test_counts_of_thousands_are_compared_too() -> None:
    assert compare_rates(1500, 1500, 1500, 1500).change == "unknown"
    assert compare_rates(3000, 5000, 1500, 5000).change == "lower"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (".x" * 100, "." * 200, "lower"),
        ("." * 200, ".x" * 100, "higher"),
        ("." * 100 + "x" * 10 + "." * 90, "." * 200, "unknown"),
        ("." * 100 + "x" * 90 + "." * 10, "." * 200, "unknown"),
        ("." * 190 + "x" * 10, "." * 200, "unknown"),
        ("." * 170 + "x" * 30, "." * 200, "lower"),
        ("." * 170 + "x" * 30, "x" * 5 + "." * 195, "unknown"),
        ("." * 200, "." * 100 + "x" * 100, "higher"),
        ("." * 200, "." * 180 + "x" * 20, "unknown"),
        (".x" * 100, "." * 100 + "x" * 100, "unknown"),
        ("x" * 1500, "x" * 1500, "unknown"),
        ("." * 200, "." * 200, "same"),
    ],
)
def test_bursts_are_counted_and_not_the_steps_of_one(before: str, after: str, said: str) -> None:
    assert compare_states([c == "x" for c in before], [c == "x" for c in after]).change == said


def test_too_few_steps_say_how_many_it_takes() -> None:
    steps = np.arange(100.0)
    said = pair((steps, steps), (steps[:12], steps[:12]))

    assert isinstance(said, QuantityChange)
    assert said.change == "unknown"
    assert said.why == "only 12 steps after the change; 30 are needed"
    assert said.more_steps == 18


# The verdict


def rows(losses: Any, first: int = 1, **changes: Any) -> list[dict[str, Any]]:
    fields = {"attempt": 1, "time": 0.0, "lr": 1e-3, "grad_norm": None, "step_seconds": None, "num_ranks": 2}
    return [{**fields, "step": first + i, "loss": loss, **changes} for i, loss in enumerate(losses)]


def verdict(before: Any, after: Any, incidents: Any = (), events: Any = (), **changes: Any) -> Verification:
    old = rows(before)
    around = {"before": old, "after": rows(after, len(old) + 1, **changes), "num_before": len(old)}
    change = {"attempt": 1, "step": len(old), "fields": {}, "kind": "fix"}
    return judge({**around, "num_after": len(after)}, change, list(events), list(incidents), settling=20)


def noisy(level: float, num: int = 200) -> list[float]:
    return list(np.random.default_rng(3).normal(level, 0.02, num))


def test_a_lower_loss_is_a_change_that_helped() -> None:
    assert verdict(noisy(2.0), noisy(1.5)).overall == "helped"
    assert verdict(noisy(2.0), noisy(2.5)).overall == "hurt"
    assert verdict(noisy(2.0), noisy(2.0)).overall == "same"
    assert verdict(noisy(2.0), noisy(1.5, 40)).overall == "unknown", "twenty of the forty settle"


def test_a_faster_step_with_a_higher_loss_is_mixed() -> None:
    old, new = rows(noisy(2.0), step_seconds=0.2), rows(noisy(2.5), 201, step_seconds=0.1)
    around = {"before": old, "after": new, "num_before": 200, "num_after": 200}

    found = judge(around, {"attempt": 1, "step": 200, "fields": {}}, [], [], settling=0)

    assert found.overall == "mixed"


def test_another_gradient_norm_is_noted_and_does_not_count() -> None:
    old, new = rows(noisy(2.0), grad_norm=2.0), rows(noisy(2.0), 201, grad_norm=1.0)
    around = {"before": old, "after": new, "num_before": 200, "num_after": 200}

    found = judge(around, {"attempt": 1, "step": 200, "fields": {}}, [], [], settling=0)

    assert found.quantities[-1].meaning == "noted"
    assert found.overall == "same"


def test_a_loss_that_is_no_longer_finite_is_worse_and_one_that_is_again_is_better() -> None:
    assert verdict(noisy(2.0), ["NaN"] * 100).overall == "hurt"
    assert verdict(["NaN"] * 100, noisy(2.0)).overall == "helped"


def test_one_burst_that_was_over_long_before_an_unrelated_change_gives_it_no_credit() -> None:
    burst = [*noisy(2.0, 100), *["NaN"] * 10, *noisy(2.0, 90)]

    assert verdict(burst, noisy(2.0)).overall == "same"


@pytest.mark.parametrize(("after", "loss"), [(noisy(2.0), "same"), (noisy(2.0, 25), "unknown")])
def test_steps_that_are_merely_faster_have_not_helped(after: list[float], loss: str) -> None:
    old, new = rows(noisy(2.0), step_seconds=0.2), rows([*after, *[None] * 60], 201, step_seconds=0.1)
    around = {"before": old, "after": new, "num_before": 200, "num_after": len(new)}

    found = judge(around, {"attempt": 1, "step": 200, "fields": {}}, [], [], settling=0)

    assert found.quantities[0].meaning == loss
    assert found.overall == "faster"


def test_what_else_changed_is_said() -> None:
    incident = {"id": "train/3", "rule": "loss_spike", "attempt": 1, "onset_step": 190, "opened_step": 190}
    incident |= {"closed_step": 230, "members": [{"rule": "loss_spike"}]}
    event = {"kind": "data_switch", "attempt": 1, "step": 150, "fields": {}}

    found = verdict(noisy(2.0), noisy(1.5), [incident], [event], attempt=2, lr=5e-4, num_ranks=4)

    for text in ("attempt 2", "data_switch", "from 0.001 to 0.0005", "2 ranks", "train/3"):
        assert any(text in caveat for caveat in found.caveats), (text, found.caveats)
