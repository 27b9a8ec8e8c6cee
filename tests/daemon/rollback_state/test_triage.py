"""What is becoming of a loss that left its level: both sides of every edge, in the run's own noise."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest

from caboose_daemon.rollback_state.cost import Cost, weigh
from caboose_daemon.rollback_state.loss_level import Losses, level_of
from caboose_daemon.rollback_state.triage import LOST_AFTER, Triage, judge

LEVEL, NOISE = 2.0, 0.02
NAN = float("nan")


def losses(
    after: Sequence[float], *, before: int = 200, noise: float = NOISE, fall: float = 0.0, seed: int = 0
) -> Losses:
    """A run at its level (falling by `fall` a step), then so much above it, all with the scatter of its batches."""
    steps = np.arange(1, before + len(after) + 1)
    curve = LEVEL + fall * np.maximum(0, before - steps)
    curve[before:] = LEVEL + np.asarray(after, dtype=np.float64)
    values = curve + noise * np.random.default_rng(seed).standard_normal(len(steps))
    return Losses(steps.astype(np.int64), values, np.isnan(values))


def judged(after: Sequence[float], **settings: float) -> Triage:
    run = losses(after, **settings)
    return judge(run, 201, start=2.0 * LEVEL)


def test_a_loss_that_did_not_leave_its_level_is_unmoved() -> None:
    triage = judged([0.0] * 30)

    assert (triage.verdict, triage.remaining) == ("unmoved", 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_never_away(seed: int) -> None:
    assert judged([0.0] * 40, seed=seed, noise=0.5).verdict in ("unmoved", "recovering")


def test_what_lies_within_three_scales_of_single_steps_is_not_away_and_beyond_it_is() -> None:
    assert judged([1.5 * NOISE] * 40).remaining == 0.0
    assert judged([6.0 * NOISE] * 40).verdict == "lingering"


def test_a_spike_that_decays_recovers_and_says_when_it_will_be_back() -> None:
    spike = 3.0 * np.exp(-np.arange(20) / 8.0)

    triage = judged(spike)

    assert triage.verdict == "recovering"
    assert triage.rate == pytest.approx(1 / 8, rel=0.1)
    full_return = 8 * triage.excess / triage.progress
    assert triage.remaining == pytest.approx(full_return, rel=1.0)
    assert triage.least <= triage.most < 10
    assert triage.outlook is not None
    look = triage.outlook
    assert all(low <= mid <= high for low, mid, high in zip(look.low, look.likely, look.high, strict=True))
    assert "falling by" in triage.reasons[1]


def test_a_fall_that_flattens_above_the_level_loses_more_than_its_rate_says() -> None:
    ahead = np.arange(40)

    returns, stays = judged(2.0 * np.exp(-ahead / 10)), judged(0.6 + 1.4 * np.exp(-ahead / 10))

    assert returns.verdict == stays.verdict == "recovering"
    assert stays.remaining > 5 * returns.remaining
    assert stays.remaining > 0.6 * 0.3 * 240, "about 0.3 of the progress, for as long again as the run has lasted"


def test_a_spike_that_is_over_is_recovering_with_nothing_remaining() -> None:
    triage = judged([*3.0 * np.exp(-np.arange(30) / 4.0), *[0.0] * 10])

    assert (triage.verdict, triage.remaining) == ("recovering", 0.0)


def test_a_loss_that_stays_up_lingers_and_is_ever_less_likely_to_pass() -> None:
    soon, late = judged([1.0] * 10), judged([1.0] * 40)

    assert (late.verdict, late.age) == ("lingering", 39)
    assert "not falling for 20 steps" in late.reasons[1]
    assert soon.remaining < late.remaining < late.most
    assert late.lost == pytest.approx(20, rel=0.02), "it lost half of the run's progress, for 40 steps"


def test_a_loss_that_goes_on_rising_diverges() -> None:
    rises, stays = judged(0.05 * np.arange(1, 31)), judged([1.5] * 30)

    assert rises.verdict == "diverging"
    assert rises.remaining > stays.remaining


def test_a_rise_that_is_small_beside_the_height_is_no_divergence() -> None:
    assert judged(4.0 + 0.01 * np.arange(30)).verdict == "lingering"


def test_the_way_up_to_the_peak_does_not_count_for_ever() -> None:
    up_and_down = [*np.linspace(0.3, 3.0, 10), *3.0 * np.exp(-np.arange(20) / 10.0)]

    assert judged(up_and_down[:10]).verdict == "diverging"
    assert judged(up_and_down).verdict == "recovering"


@pytest.mark.parametrize(("num_bad", "verdict"), [(LOST_AFTER - 1, "early"), (LOST_AFTER, "diverging")])
def test_weights_are_lost_when_losses_in_a_row_are_not_finite(num_bad: int, verdict: str) -> None:
    triage = judged([NAN] * num_bad)

    assert triage.verdict == verdict
    assert math.isinf(triage.remaining)


def test_bad_losses_that_were_over_again_are_not_counted() -> None:
    assert judged([NAN] * 5 + [0.0] * 5).verdict == "unmoved"


def test_steps_that_a_scaler_skipped_changed_nothing() -> None:
    run = losses([NAN] * 5)

    assert judge(run, 201, num_skipped=5).verdict == "unmoved"
    assert judge(run, 201, num_skipped=4).verdict == "diverging", "one of them was not skipped"


def test_too_little_before_the_onset_is_not_known() -> None:
    assert judge(losses([3.0] * 10, before=7), 8).verdict == "unknown"
    assert judge(losses([3.0] * 10, before=8), 9).verdict == "lingering"


def test_a_few_steps_are_too_early_to_say_anything() -> None:
    assert judged([3.0] * 4).verdict == "early"
    assert judged([3.0] * 5).verdict != "early"


def test_a_slow_rise_began_long_before_a_rule_said_so() -> None:
    creeping = losses([*np.linspace(0.0, 0.6, 150), *[0.6] * 10])

    triage = judge(creeping, 350)

    assert 205 < triage.began < 250, "the loss was at its best until shortly after step 200"
    assert triage.level == pytest.approx(LEVEL, abs=0.08)


def test_a_loss_that_was_back_on_its_level_left_it_when_it_rose_again() -> None:
    """A rule's episode may stay open in between: the snapshots of that time are good."""
    triage = judged([*[1.0] * 5, *[0.0] * 100, *[1.0] * 20])

    assert 280 < triage.began <= 307
    assert triage.lost == pytest.approx(10, abs=1.5)


def test_a_sudden_spike_began_where_the_rule_said() -> None:
    assert judged([3.0] * 20).began == 201


def test_the_level_is_that_of_a_falling_loss_now_and_not_of_its_past() -> None:
    triage = judged([3.0] * 20, fall=0.01)

    assert triage.level == pytest.approx(LEVEL, abs=0.15)


def test_heavy_tails_make_the_noise_wider() -> None:
    random = np.random.default_rng(0)
    light, heavy = random.standard_normal(64), random.standard_t(2, 64)

    assert level_of(2.0 + 0.1 * light).noise == pytest.approx(0.1, rel=0.35)
    assert level_of(2.0 + 0.1 * heavy).noise > 0.13


def test_every_verdict_gives_its_numbers() -> None:
    (where, _) = judged([1.0] * 40).reasons

    assert re.match(r"loss 2\.9\d+ against 1\.99\d before step 201: 4\d\.\dx its noise \(0\.02", where)


# What it costs


def a_triage(**changes: object) -> Triage:
    fields: dict[str, object] = {"verdict": "lingering", "step": 140, "began": 100, "lost": 40.0, "remaining": 40.0}
    return Triage(**{**fields, **changes})


def test_going_back_is_worth_it_once_waiting_costs_so_much_more() -> None:
    just_not = weigh(a_triage(), target=85, boundary=149, skip=0, caution=1.25)
    just = weigh(a_triage(), target=86, boundary=149, skip=0, caution=1.25)

    assert (just_not.waiting, just_not.going_back, just_not.is_worth_it) == (80.0, 64.0, False)
    assert (just.going_back, just.is_worth_it) == (63.0, True)
    assert just.reason == "rollback is cheaper: waiting loses 80 steps > 1.25 x 63 steps of a rollback"


def test_skipped_batches_are_lost_too() -> None:
    assert not weigh(a_triage(), target=86, boundary=149, skip=1, caution=1.25).is_worth_it


def test_lost_weights_are_worth_any_price() -> None:
    cost = weigh(a_triage(verdict="diverging", remaining=math.inf), target=0, boundary=10**6, skip=0, caution=1.25)

    assert cost.is_worth_it
    assert "waiting loses everything" in cost.reason


def test_a_rollback_waits_while_deciding_later_is_expected_to_cost_less() -> None:
    early, late = judged([1.0] * 6), judged([1.0] * 40)

    soon = weigh(early, target=160, boundary=210, skip=0, caution=1.0)
    assert soon.is_cheaper
    assert soon.later < soon.going_back
    assert not soon.is_worth_it
    assert "steps later is expected to cost" in soon.reason

    settled = weigh(late, target=190, boundary=245, skip=0, caution=1.25)
    assert settled.later > settled.going_back
    assert settled.is_worth_it


def test_where_even_the_least_cost_of_waiting_is_higher_no_caution_is_needed() -> None:
    cost = weigh(a_triage(lost=5.0, remaining=56.0, least=51.0), target=90, boundary=145, skip=0, caution=1.25)

    assert not cost.is_cheaper
    assert cost.is_worth_it
    assert cost.reason == "rollback is cheaper: waiting loses 61 steps, at least 56 > 55 steps of a rollback"


def test_a_spike_that_may_be_over_soon_is_waited_for_though_a_rollback_costs_less() -> None:
    falls = judged(3.0 * np.exp(-np.arange(8) / 9.0))
    assert falls.futures is not None
    near = {"target": 197, "boundary": 212, "skip": 0, "caution": 1.0}

    cost = weigh(falls, **near, spike_steps=30.0)

    assert cost.short > 0.5
    assert not cost.is_worth_it
    assert weigh(falls, **near).short == 0.0, "nothing is known to be over within 0 steps"
    assert weigh(falls, **near, spike_steps=12.0).short < cost.short


def test_a_tenth_of_a_giant_loss_is_not_over() -> None:
    falls = judged(1e6 * np.exp(-np.arange(8) / 6.0))

    assert weigh(falls, target=197, boundary=212, skip=0, caution=1.0, spike_steps=30.0).short < 0.05


def test_the_reason_names_the_probability_that_it_is_a_short_spike() -> None:
    cost = Cost(waiting=90.0, going_back=20.0, caution=1.25, least=30.0, short=0.32)

    assert not cost.is_worth_it
    assert cost.reason == (
        "too early: with a probability of 32% this is a short spike (waiting is expected to lose 90 steps, a rollback "
        "20 steps)"
    )
    assert Cost(waiting=90.0, going_back=20.0, caution=1.25, short=0.04).is_worth_it


def test_the_time_to_restore_is_lost_too() -> None:
    cost = weigh(a_triage(), target=86, boundary=149, skip=0, caution=1.25, restore_steps=2.0)

    assert cost.going_back == 65.0
    assert not cost.is_worth_it


def test_a_loss_that_falls_loses_what_was_lost_and_no_more_than_it_has_to_learn_anew() -> None:
    falls = a_triage(verdict="recovering", remaining=500.0, as_of=90.0)

    assert weigh(falls, target=0, boundary=145, skip=0, caution=1.0).waiting == 40.0 + 90.0


def test_a_loss_that_stands_has_no_credit_for_what_it_might_learn_anew_where_a_better_state_is_kept() -> None:
    stands = a_triage(remaining=500.0, as_of=30.0)

    assert weigh(stands, target=70, boundary=145, skip=0, caution=1.0).waiting == 40.0 + 30.0
    assert weigh(stands, target=71, boundary=145, skip=0, caution=1.0).waiting == 40.0 + 500.0


def test_what_goes_on_rising_is_not_bounded_by_where_it_was() -> None:
    assert weigh(a_triage(verdict="diverging", as_of=5.0), target=90, boundary=145, skip=0, caution=1.0).waiting == 80.0
