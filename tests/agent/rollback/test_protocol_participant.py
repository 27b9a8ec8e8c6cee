"""What one rank agrees to: each objection just before and just after it holds."""

from typing import Any

import pytest

from caboose.rollback.budget import Limits
from caboose.rollback.participant import Participant
from caboose_wire import Command, sign
from support.commands import GROUP, a_command

NOW = 1_000_000.0
SECRET = b"s" * 32


def a_participant(**changes: Any) -> Participant:
    fields: dict[str, Any] = {
        "group": GROUP,
        "world": 3,
        "secret": None,
        "start_step": 5,
        "limits": Limits(),
    }
    return Participant(**{**fields, **changes})


def ask(**changes: Any) -> Command:
    return a_command(**{"world": 3, "boundary": 10, "target": 4, "expires": NOW + 60, **changes})


def carry_out(participant: Participant, command: Command, now: float = NOW) -> None:
    """As when all ranks were ready."""
    assert participant.objection(command, now) == ""
    participant.arm(command, now)
    participant.see(command.number)
    assert participant.reach(command.boundary) is command
    participant.commit(now)


MISTAKES = {
    "another group": (ask(group="another-group"), "another group of processes"),
    "another world": (ask(world=2), "it is for 2 ranks; there are 3"),
}


@pytest.mark.parametrize(("command", "reason"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_command_for_others_is_a_mistake(command: Command, reason: str) -> None:
    assert reason in a_participant().mistake(command)
    assert a_participant().mistake(ask()) == ""


def test_with_a_secret_only_its_signature_is_accepted() -> None:
    participant = a_participant(secret=SECRET)

    assert participant.mistake(sign(ask(), SECRET)) == ""
    assert "not signed" in participant.mistake(ask())
    assert "not signed" in participant.mistake(sign(ask(), b"o" * 32))
    assert a_participant().mistake(sign(ask(), b"o" * 32)) == ""


OBJECTIONS = {
    "late": (ask(boundary=5), "late: the boundary 5 is past, this rank is at step 5"),
    "expired": (ask(expires=NOW), "it expired 0 s ago"),
    "no expiry": (ask(expires=0.0), "expired"),
    "too far": (ask(boundary=20_006), "too far ahead"),
    "bad target": (ask(target=10), "is not before the boundary"),
    "skips all": (ask(skip=100_001), "it would skip 100001 steps; 100000 are allowed"),
    "lr zero": (ask(lr_scale=0.0), "cannot be scaled by 0.0"),
    "lr nan": (ask(lr_scale=float("nan")), "cannot be scaled by nan"),
}


@pytest.mark.parametrize(("command", "reason"), OBJECTIONS.values(), ids=OBJECTIONS.keys())
def test_an_objection_names_its_reason(command: Command, reason: str) -> None:
    assert reason in a_participant().objection(command, NOW)


def test_what_is_just_within_bounds_is_accepted() -> None:
    for command in (ask(boundary=6, target=5), ask(expires=NOW + 0.001), ask(boundary=20_005), ask(skip=100_000)):
        assert a_participant().objection(command, NOW) == ""


def test_a_number_is_looked_at_once() -> None:
    participant = a_participant()
    participant.see(7)

    assert "not above 7" in participant.objection(ask(number=7), NOW)
    assert "not above 7" in participant.objection(ask(number=6), NOW)
    assert participant.objection(ask(number=8), NOW) == ""


def test_a_rank_is_busy_with_one_command_at_a_time() -> None:
    participant = a_participant()
    participant.arm(ask(), NOW)

    assert "busy with command 1" in participant.objection(ask(number=2), NOW)
    participant.abort()
    assert participant.objection(ask(number=2), NOW) == ""


def test_the_loop_stops_at_the_boundary_of_an_armed_command_and_at_no_other() -> None:
    participant = a_participant()
    assert participant.reach(6) is None
    participant.arm(ask(boundary=8), NOW)

    assert participant.reach(7) is None
    assert participant.reach(8) is not None
    participant.abort()
    assert participant.reach(9) is None


def test_a_loop_that_leaps_over_the_boundary_is_stopped_too() -> None:
    participant = a_participant()
    participant.arm(ask(boundary=8), NOW)

    assert participant.reach(11) is not None


def test_nothing_is_armed_for_the_boundary_the_loop_stands_at() -> None:
    participant = a_participant()
    participant.arm(ask(boundary=8), NOW)
    participant.reach(8)
    participant.abort()

    assert "late" in participant.objection(ask(number=2, boundary=8), NOW)


def test_a_rank_that_leaves_takes_part_in_nothing() -> None:
    participant = a_participant()
    participant.is_leaving = True

    assert participant.objection(ask(), NOW) == "this rank is leaving"


def test_the_budget_is_three_rollbacks_in_a_day() -> None:
    participant = a_participant(limits=Limits(cool_steps=0, cool_factor=0.0))
    for number in (1, 2, 3):
        carry_out(participant, ask(number=number, boundary=10 * number, target=number), NOW + number)
    fourth = ask(number=4, boundary=40, expires=NOW + 1e6)

    assert participant.budget.num_left(NOW + 3) == 0
    assert "the budget is spent: 3 rollbacks in 24 h" in participant.objection(fourth, NOW + 86_400)
    assert participant.objection(fourth, NOW + 86_401) == ""
    assert participant.budget.num_rollbacks == 3


def test_after_a_rollback_the_run_cools_down_for_two_hundred_steps() -> None:
    participant = a_participant()
    carry_out(participant, ask(boundary=10, target=4))

    assert participant.budget.cool_until == 210
    assert "cooling down until step 210" in participant.objection(ask(number=2, boundary=209), NOW)
    assert participant.objection(ask(number=2, boundary=210), NOW) == ""


def test_after_a_long_way_back_the_run_cools_down_for_twice_its_length() -> None:
    participant = a_participant(start_step=990)
    carry_out(participant, ask(boundary=1000, target=850))

    assert participant.budget.cool_until == 1300


def test_a_third_rollback_to_the_same_snapshot_is_refused() -> None:
    participant = a_participant(limits=Limits(max_rollbacks=9, cool_steps=0, cool_factor=0.0))
    for number in (1, 2):
        carry_out(participant, ask(number=number, boundary=10 * number, target=4))

    assert "already went back to step 4 2 times" in participant.objection(ask(number=3, boundary=30), NOW)
    assert participant.objection(ask(number=3, boundary=30, target=5), NOW) == ""


def test_what_came_to_nothing_costs_no_budget() -> None:
    participant = a_participant()
    participant.arm(ask(), NOW)
    participant.abort()

    assert participant.budget.num_left(NOW) == 3
    assert participant.budget.cool_until == 0


def test_other_kinds_have_a_rate_and_no_budget() -> None:
    participant = a_participant(limits=Limits(max_attempts=3))
    for number in (1, 2, 3):
        carry_out(participant, ask(number=number, kind="snapshot", boundary=10 * number), NOW + number)

    snapshot = ask(number=4, kind="snapshot", boundary=40, expires=NOW + 1e6)
    assert participant.objection(snapshot, NOW + 60.5) == "too many commands: 3 in 60 s"
    assert participant.objection(snapshot, NOW + 61) == ""
    assert participant.objection(ask(number=4, boundary=40), NOW + 4) == ""
    assert participant.budget.num_left(NOW + 4) == 3


def scaled(participant: Participant, number: int, scale: float, **changes: Any) -> str:
    """The objection to scaling the rate, a minute and some steps after the last; it is carried out if there is none."""
    boundary, now = changes.get("boundary", 400 * number), NOW + 60 * number
    fields = {"number": number, "kind": "scale_lr", "lr_scale": scale, "target": boundary - 6, "expires": now + 60}
    command = ask(**{**fields, "boundary": boundary, **changes})
    participant.reach(boundary - 1)
    objection = participant.objection(command, now)
    if not objection:
        carry_out(participant, command, now)
    return objection


@pytest.mark.parametrize(("scale", "bound", "beyond"), [(0.1, 1e-3, 0.99), (2.0, 8.0, 1.26)])
def test_all_commands_together_keep_the_learning_rate_within_bounds(scale: float, bound: float, beyond: float) -> None:
    """A daemon gone mad may halve the rate every minute, each time by no more than anybody might wish."""
    participant = a_participant()
    assert [scaled(participant, number, scale) for number in (1, 2, 3)] == ["", "", ""]
    assert participant.budget.lr_scale == pytest.approx(bound)
    assert "times what the run was given" in scaled(participant, 4, beyond)
    assert "0.001 to 10 is allowed" in scaled(participant, 5, scale)
    assert scaled(participant, 6, 1 / bound) == "", "back to where it was"
    assert participant.budget.lr_scale == pytest.approx(1.0)


def test_what_rollbacks_do_to_the_rate_counts_too() -> None:
    participant = a_participant()
    for number in (1, 2):
        assert scaled(participant, number, 0.1, kind="rollback") == ""
    assert "0.0001 times" in scaled(participant, 3, 0.01, kind="rollback")
    assert "0.0001 times" in scaled(participant, 4, 0.01)
    assert scaled(participant, 5, 1.0, kind="rollback") == "", "one that leaves the rate alone"


def test_after_the_rate_was_scaled_it_cools_down_before_it_is_scaled_again() -> None:
    participant = a_participant(limits=Limits(cool_steps=200))
    assert scaled(participant, 1, 0.5, boundary=10) == ""
    assert "cools down until step 210, the boundary is 209" in scaled(participant, 2, 0.5, boundary=209)
    assert scaled(participant, 3, 0.5, boundary=210) == ""
    participant = a_participant(limits=Limits(cool_steps=200))
    assert scaled(participant, 1, 0.5, boundary=10) == ""
    assert scaled(participant, 2, 0.5, boundary=100, kind="rollback") == "", "which has limits of its own"
    assert "cools down until step 300" in scaled(participant, 3, 0.5, boundary=299)
    assert scaled(participant, 4, 1.0, boundary=299, kind="snapshot") == ""


def test_attempts_at_a_rollback_have_a_rate_even_if_all_come_to_nothing() -> None:
    participant = a_participant(limits=Limits(max_attempts=2))
    for number in (1, 2):
        participant.arm(ask(number=number), NOW)
        participant.abort()

    assert "too many commands" in participant.objection(ask(number=3), NOW)
