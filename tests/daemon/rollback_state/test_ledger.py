"""Every snapshot and checkpoint has its health, which later evidence changes backwards; a plan follows from it."""

from typing import Any

from caboose_daemon.rollback.plan import MAX_PLANNED, make_plan
from caboose_daemon.rollback_state.ledger import MAX_CHECKPOINTS, BadSpan, Ledger
from caboose_wire import Event, Held


def saved(ledger: Ledger, *steps: int, attempt: int = 1, **fields: Any) -> None:
    for step in steps:
        about = {"path": f"/ckpt/step-{step}", "step": step, **fields}
        ledger.declare(Event(attempt=attempt, step=step, time=float(step), kind="checkpoint", fields=about))


def validated(ledger: Ledger, **losses: float) -> None:
    for step, loss in losses.items():
        ledger.declare(
            Event(attempt=1, step=int(step[1:]), time=0.0, kind="validation", fields={"loss": loss, "accuracy": 0.5})
        )


def judge(ledger: Ledger, step: int, *spans: BadSpan) -> dict[str, str]:
    ledger.judge(spans, step, margin=10, quiet=100)
    return {entry.name.removeprefix("/ckpt/step-"): entry.health for entry in ledger}


def test_what_was_saved_is_unproven_until_the_run_was_quiet_for_a_while_after_it() -> None:
    ledger = Ledger()
    saved(ledger, 100)

    assert judge(ledger, 199) == {"100": "unproven"}
    assert judge(ledger, 200) == {"100": "healthy"}


def test_nothing_is_proven_while_something_is_wrong() -> None:
    ledger = Ledger()
    saved(ledger, 100)

    assert judge(ledger, 400, BadSpan(1, 1, 300, None)) == {"100": "unproven"}
    assert judge(ledger, 400, BadSpan(1, 1, 300, 350)) == {"100": "healthy"}


def test_steps_in_trouble_prove_nothing() -> None:
    ledger = Ledger()
    saved(ledger, 109)

    assert judge(ledger, 220, BadSpan(1, 1, 120, 219)) == {"109": "unproven"}
    assert judge(ledger, 318, BadSpan(1, 1, 120, 219)) == {"109": "unproven"}
    assert judge(ledger, 319, BadSpan(1, 1, 120, 219)) == {"109": "healthy"}


def test_a_course_that_was_left_is_never_proven() -> None:
    ledger = Ledger()
    saved(ledger, 90, 109)
    ledger.continue_from(100)

    assert judge(ledger, 400, BadSpan(1, 1, 120, 150)) == {"109": "unproven", "90": "healthy"}


def test_an_onset_that_turns_out_to_lie_before_taints_what_was_thought_healthy() -> None:
    ledger = Ledger()
    saved(ledger, 100, 200)
    assert judge(ledger, 300) == {"200": "healthy", "100": "healthy"}

    health = judge(ledger, 310, BadSpan(7, 1, 150, None))

    assert health == {"200": "tainted", "100": "healthy"}
    assert ledger.checkpoints[0].reason == "saved after step 150, where incident 7 began"


def test_what_lies_within_the_margin_before_an_onset_is_tainted_and_what_lies_before_that_is_not() -> None:
    ledger = Ledger()
    saved(ledger, 140, 141)

    assert judge(ledger, 160, BadSpan(1, 1, 150, None)) == {"141": "tainted", "140": "unproven"}
    assert ledger.checkpoints[0].reason == "saved just before step 150, where incident 1 began"


def test_what_is_saved_after_it_healed_is_clean_and_what_is_tainted_stays_so() -> None:
    ledger = Ledger()
    saved(ledger, 155, 170)

    assert judge(ledger, 300, BadSpan(1, 1, 150, 160)) == {"170": "healthy", "155": "tainted"}
    assert judge(ledger, 900) == {"170": "healthy", "155": "tainted"}


def test_trouble_in_a_later_attempt_taints_nothing_of_an_earlier_one() -> None:
    ledger = Ledger()
    saved(ledger, 500, attempt=1)

    assert judge(ledger, 600, BadSpan(1, 2, 400, 450)) == {"500": "healthy"}


def test_snapshots_leave_when_no_rank_holds_them_and_the_journal_is_told() -> None:
    ledger = Ledger()
    ledger.hold([Held(50, 50, 1.0), Held(100, 100, 2.0)], 1)
    assert [entry.name for entry in ledger.take_changes()] == ["50", "100"]

    ledger.hold([Held(100, 100, 2.0)], 1)

    assert [(entry.name, entry.is_held) for entry in ledger.take_changes()] == [("50", False)]
    assert [entry.step for entry in ledger.snapshots] == [100]
    assert ledger.take_changes() == []


def test_a_snapshot_that_is_told_of_again_keeps_its_health() -> None:
    ledger = Ledger()
    ledger.hold([Held(50, 50, 1.0)], 1)
    judge(ledger, 200)

    ledger.hold([Held(50, 50, 1.3)], 2)

    assert [(entry.health, entry.attempt) for entry in ledger] == [("healthy", 1)]


def test_a_tainted_snapshot_is_known_by_its_step() -> None:
    ledger = Ledger()
    ledger.hold([Held(50, 50, 1.0), Held(100, 100, 2.0)], 1)
    judge(ledger, 120, BadSpan(3, 1, 90, None))

    assert ledger.taint_of(50) == ""
    assert ledger.taint_of(100) == "saved after step 90, where incident 3 began"


def test_the_best_by_validation_is_marked_and_a_tainted_one_is_not_it() -> None:
    ledger = Ledger()
    saved(ledger, 100, 200, 300)
    validated(ledger, s100=2.0, s200=1.5, s300=1.2)
    assert [entry.step for entry in ledger if entry.is_best] == [300]

    judge(ledger, 310, BadSpan(1, 1, 290, None))

    assert [(entry.step, entry.validation) for entry in ledger if entry.is_best] == [(200, 1.5)]


def test_a_checkpoint_has_the_validation_nearest_to_it_also_when_that_comes_later() -> None:
    ledger = Ledger()
    validated(ledger, s10=9.0)
    saved(ledger, 100)
    validated(ledger, s105=2.0, s110=1.0)

    assert [entry.validation for entry in ledger] == [2.0]

    again = Ledger()
    again.restore(ledger)
    validated(again, s900=0.1)
    assert [entry.validation for entry in again] == [2.0], "a journal keeps how near it was"


def test_events_that_name_no_path_or_no_number_are_no_entries() -> None:
    ledger = Ledger()
    for fields in ({}, {"path": 3}, {"path": ""}):
        ledger.declare(Event(attempt=1, step=5, time=0.0, kind="checkpoint", fields=fields))
    ledger.declare(Event(attempt=1, step=5, time=0.0, kind="validation", fields={"loss": float("nan")}))
    ledger.declare(Event(attempt=1, step=5, time=0.0, kind="data_switch", fields={"path": "x"}))

    assert list(ledger) == []


def test_a_checkpoint_saved_again_under_its_name_is_judged_anew() -> None:
    ledger = Ledger()
    saved(ledger, 100, path="/ckpt/last")
    judge(ledger, 110, BadSpan(1, 1, 95, 120))

    saved(ledger, 400, path="/ckpt/last")

    assert [(entry.step, entry.health) for entry in ledger] == [(400, "unproven")]


def test_the_oldest_go_when_there_are_too_many() -> None:
    ledger = Ledger()
    saved(ledger, *range(1, MAX_CHECKPOINTS + 11))

    assert len(ledger.checkpoints) == MAX_CHECKPOINTS
    assert ledger.checkpoints[-1].step == 11


# The plan


def test_a_plan_names_the_newest_untainted_first_and_tainted_ones_last_with_their_reason() -> None:
    ledger = Ledger()
    saved(ledger, 100, 200, 300, 400)
    judge(ledger, 250)
    judge(ledger, 410, BadSpan(2, 1, 390, None))

    plan = make_plan("train", ledger, [BadSpan(2, 1, 390, 410)])

    assert [(c.step, c.health) for c in plan.checkpoints] == [
        (300, "unproven"),
        (200, "unproven"),
        (100, "healthy"),
        (400, "tainted"),
    ]
    assert plan.checkpoints[-1].reason == "saved after step 390, where incident 2 began"
    assert plan.skip == ((385, 410),)
    assert plan.lr_scale == 1.0
    assert plan.reason == "the checkpoint of step 300 is unproven"


def test_after_going_back_did_not_help_the_proven_ones_come_first() -> None:
    ledger = Ledger()
    saved(ledger, 100, 300)
    judge(ledger, 250)

    plan = make_plan("train", ledger, [], exhausted="the budget is spent")

    assert [c.step for c in plan.checkpoints] == [100, 300]
    assert plan.reason == "the checkpoint of step 100 is healthy; the budget is spent"


def test_bad_batches_are_told_for_every_checkpoint_and_ranges_that_meet_are_one() -> None:
    ledger = Ledger()
    saved(ledger, 50, 300)

    plan = make_plan("train", ledger, [BadSpan(1, 1, 100, 150), BadSpan(2, 1, 302, 320), BadSpan(3, 1, 324, 330)])

    assert plan.skip == ((95, 150), (297, 330)), "whoever finds that of step 300 gone resumes from that of step 50"


def test_each_checkpoint_has_the_scale_of_what_came_after_it() -> None:
    ledger = Ledger()
    saved(ledger, 100, 300)

    plan = make_plan("train", ledger, [], lr_scale_of=lambda e: 0.5 if e is not None and e.step == 300 else 0.25)

    assert [(c.step, c.lr_scale) for c in plan.checkpoints] == [(300, 0.5), (100, 0.25)]
    assert plan.lr_scale == 0.5


def test_what_was_dropped_in_process_is_not_seen_again_and_moves_what_came_after() -> None:
    ledger = Ledger()
    saved(ledger, 50)
    bad = [BadSpan(1, 1, 100, 120), BadSpan(2, 2, 300, 310)]

    plan = make_plan("train", ledger, bad, drops=[(120, 40)])

    assert plan.skip == ((95, 160), (335, 350)), "step 300 had the batch that is the 340th from the beginning"
    saved(ledger, 200)
    assert make_plan("train", ledger, bad[1:], drops=[(120, 40)]).skip[-1] == (295, 310), "that one came after"


def test_of_too_many_bad_stretches_the_last_are_told() -> None:
    plan = make_plan("train", Ledger(), [BadSpan(n, 1, 100 * n, 100 * n + 9) for n in range(1, 151)])

    assert (len(plan.skip), plan.skip[-1]) == (MAX_PLANNED, (14_995, 15_009))


def test_a_job_without_checkpoints_has_an_empty_plan_that_says_so() -> None:
    plan = make_plan("train", Ledger(), [])

    assert (plan.checkpoints, plan.reason) == ((), "this daemon knows no checkpoint of train")


def test_another_world_size_is_mentioned() -> None:
    ledger = Ledger()
    saved(ledger, 100, world=8)

    assert make_plan("train", ledger, [], world=4).reason.endswith("saved by 8 ranks, requested by 4")
