"""Regimes: what a run goes through is recognised, when it begins, and when it is over."""

import pytest

from caboose_daemon.steps.regimes import COMPILE_STEPS, SETTLING_STEPS, STARTUP_STEPS, Regime, RegimeTracker
from caboose_wire import Event


def event(kind: str) -> Event:
    return Event(attempt=0, step=0, time=0.0, kind=kind)


class Run:
    """An attempt, step by step."""

    def __init__(self, *, is_resumed: bool = False) -> None:
        self._tracker = RegimeTracker(is_resumed=is_resumed)

    def step(
        self, *kinds: str, lr: float | None = None, samples: int | None = None, seconds: float | None = None
    ) -> Regime:
        events = [event(kind) for kind in kinds]
        return self._tracker.observe(lr=lr, num_samples=samples, step_seconds=seconds, events=events)

    def steps(self, num: int) -> Regime:
        for _ in range(num - 1):
            self.step()
        return self.step()


def settled() -> Run:
    run = Run()
    run.steps(STARTUP_STEPS)
    return run


# Beginning


def test_the_first_steps_are_a_startup_that_ends() -> None:
    run = Run()

    assert run.steps(STARTUP_STEPS) == Regime(frozenset({"startup"}))
    assert run.step() == Regime()


def test_a_later_attempt_begins_with_a_resume_instead() -> None:
    run = Run(is_resumed=True)

    assert run.steps(SETTLING_STEPS) == Regime(frozenset({"resume"}))
    assert run.step() == Regime()


def test_what_an_attempt_begins_in_did_not_begin_with_a_step() -> None:
    assert Run().step().began == frozenset()
    assert Run(is_resumed=True).step().began == frozenset()


def test_between_two_steps_the_run_is_where_its_last_step_was_and_before_the_first_where_it_begins() -> None:
    tracker = RegimeTracker(is_resumed=True)
    assert tracker.now.active == {"resume"}

    for _ in range(SETTLING_STEPS + 1):
        regime = tracker.observe(lr=None, num_samples=None, step_seconds=None)

    assert tracker.now == regime == Regime()


# Declared


@pytest.mark.parametrize(
    ("kind", "regime"),
    [
        ("data_switch", "data_switch"),
        ("batch_ramp", "batch_ramp"),
        ("resume", "resume"),
        ("lr_restart", "restart"),
        ("restart", "restart"),
    ],
)
def test_a_declared_change_begins_its_regime_which_lasts_a_while(kind: str, regime: str) -> None:
    run = settled()

    assert run.step(kind) == Regime(frozenset({regime}), frozenset({regime}))
    assert run.steps(SETTLING_STEPS) == Regime(frozenset({regime}))
    assert run.step() == Regime()


def test_a_change_declared_again_lasts_from_then_on() -> None:
    run = settled()
    run.step("data_switch")
    run.steps(SETTLING_STEPS - 1)

    assert run.step("data_switch").began == {"data_switch"}
    assert run.steps(SETTLING_STEPS).active == {"data_switch"}


def test_several_changes_at_once_are_all_there() -> None:
    assert settled().step("data_switch", "lr_restart").began == {"data_switch", "restart"}


def test_what_says_nothing_of_regimes_begins_none() -> None:
    assert settled().step("checkpoint_saved", "warmup_end") == Regime()


# Warm-up


def test_a_rate_that_only_rises_is_a_warm_up_until_it_falls() -> None:
    run = settled()
    assert "warmup" not in run.step(lr=1e-6).active, "one rate says nothing"
    assert all("warmup" in run.step(lr=1e-6 * i).active for i in range(2, 50))

    assert "warmup" not in run.step(lr=4e-5).active
    assert "warmup" not in run.step(lr=5e-5).active, "a later rise is no warm-up"


def test_a_rate_that_stays_where_it_rose_to_is_warmed_up_after_a_while() -> None:
    run = settled()
    run.step(lr=1e-4)
    run.step(lr=1e-3)

    assert all("warmup" in run.step(lr=1e-3).active for _ in range(STARTUP_STEPS - 1))
    assert "warmup" not in run.step(lr=1e-3).active


def test_a_rate_that_rises_in_stairs_is_still_warmed_up() -> None:
    run = settled()
    run.step(lr=1e-4)

    assert all("warmup" in run.step(lr=1e-4 * (1 + i // 10)).active for i in range(10, 100))


def test_a_constant_rate_never_was_a_warm_up() -> None:
    run = settled()

    assert not any("warmup" in run.step(lr=1e-3).active for _ in range(100))


def test_a_declared_end_of_the_warm_up_ends_it() -> None:
    run = settled()
    run.step(lr=1e-6)
    assert "warmup" in run.step(lr=2e-6).active

    assert "warmup" not in run.step("warmup_end", lr=3e-6).active
    assert "warmup" not in run.step(lr=4e-6).active


def test_steps_that_do_not_show_their_rate_are_in_no_warm_up() -> None:
    run = settled()
    run.step(lr=1e-6)
    run.step(lr=2e-6)

    assert run.step() == Regime()
    assert "warmup" in run.step(lr=3e-6).active


# Batches


def test_another_number_of_samples_that_stays_is_a_batch_ramp() -> None:
    run = settled()
    run.step(samples=64)

    assert run.step(samples=128) == run.step(samples=128) == Regime()
    assert run.step(samples=128).began == {"batch_ramp"}
    assert run.step(samples=128).began == frozenset()


@pytest.mark.parametrize("samples", [54, 76])
def test_a_change_within_a_fifth_is_none(samples: int) -> None:
    run = settled()
    run.step(samples=64)

    assert not any(run.step(samples=samples).began for _ in range(20))


def test_the_short_last_batch_of_an_epoch_is_no_ramp() -> None:
    run = settled()

    assert not any(run.step(samples=7 if i % 10 == 9 else 64).began for i in range(100))


# Evaluation and compilation


def test_a_step_after_a_validation_is_an_evaluation_and_the_next_one_is_not() -> None:
    run = settled()

    assert run.step("validation") == Regime(frozenset({"evaluation"}))
    assert run.step() == Regime()


def test_the_first_step_and_long_ones_soon_after_it_compile() -> None:
    run = Run()

    assert "compile" in run.step(seconds=30.0).active
    assert "compile" not in run.step(seconds=1.0).active
    assert "compile" in run.step(seconds=5.1).active
    assert "compile" not in run.step(seconds=4.9).active


def test_a_long_step_later_on_is_no_compilation() -> None:
    run = Run()
    for _ in range(COMPILE_STEPS):
        run.step(seconds=1.0)

    assert "compile" not in run.step(seconds=100.0).active
