"""The same again would fail again: each rung goes further back, past more data, and slower."""

from typing import Any

from caboose_daemon.rollback_state.decision import Decision
from caboose_daemon.rollback_state.ladder import MAX_SKIP, Rung, climb, spent
from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_daemon.rollback_state.triage import Triage

CONFIG = RollbackConfig(horizon_steps=500, lr_scale=0.5)


def a_rollback(boundary: int, target: int, began: int, **changes: Any) -> Decision:
    fields: dict[str, Any] = {
        "job": "train",
        "number": 1,
        "time": 0.0,
        "attempt": 1,
        "step": boundary - 4,
        "mode": "auto",
        "state": "committed",
        "target": target,
        "boundary": boundary,
        "triage": Triage(verdict="lingering", step=boundary - 4, began=began),
    }
    return Decision(**{**fields, **changes})


def test_the_first_rollback_changes_nothing_but_the_data() -> None:
    assert climb([], 1000, CONFIG) == Rung()
    assert (Rung().skip, Rung().lr_scale, Rung().older_than) == (0, 1.0, None)


def test_the_second_goes_further_back_past_as_much_data_as_the_trouble_lasted_and_slower() -> None:
    rung = climb([a_rollback(1050, 950, 1000)], 1100, CONFIG)

    assert (rung.number, rung.older_than, rung.skip, rung.lr_scale) == (2, 950, 50, 0.5)


def test_snapshots_proven_since_the_rollback_are_used_though_it_counts_as_the_same_trouble() -> None:
    past = [a_rollback(1050, 950, 1000)]

    soon, late = climb(past, 1150, CONFIG), climb(past, 1151, CONFIG)
    assert (soon.older_than, soon.used) == (950, {950})
    assert (late.number, late.older_than, late.used) == (2, None, frozenset())
    assert (late.skip, late.lr_scale) == (50, 0.5)


def test_trouble_long_after_a_rollback_is_another_trouble() -> None:
    past = [a_rollback(1050, 950, 1000)]

    assert climb(past, 1550, CONFIG).number == 2
    assert climb(past, 1551, CONFIG).number == 1


def test_rungs_are_counted_as_long_as_one_followed_from_the_other() -> None:
    first, second = a_rollback(1050, 950, 1000), a_rollback(1200, 900, 1150, number=2)

    rung = climb([first, second], 1300, CONFIG)
    assert (rung.number, rung.older_than, rung.used) == (3, 900, {900, 950})
    assert climb([a_rollback(150, 50, 100), second], 1300, CONFIG).number == 2, "the first was long before"


def test_what_came_to_nothing_is_no_rung() -> None:
    assert climb([a_rollback(1050, 950, 1000, state="aborted")], 1100, CONFIG).number == 1


def test_a_very_long_trouble_does_not_drop_data_without_end() -> None:
    assert climb([a_rollback(9000, 950, 1000)], 9100, CONFIG).skip == MAX_SKIP


def test_the_budget_counts_what_was_carried_out_in_the_last_day() -> None:
    decisions = [
        a_rollback(10, 5, 8, time=0.0),
        a_rollback(20, 5, 18, time=50_000.0),
        a_rollback(30, 5, 28, time=60_000.0, state="aborted"),
        a_rollback(30, 5, 28, time=60_000.0, kind="scale_lr"),
    ]

    assert spent(decisions, 86_399.0) == 2
    assert spent(decisions, 86_401.0) == 1
