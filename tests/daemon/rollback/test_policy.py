"""When a run is rolled back: timelines through the real core, with ranks that keep snapshots and obey."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from caboose_daemon.incidents.incident import Acknowledgement
from caboose_daemon.jobs.pipeline import ABANDONED_SECONDS
from caboose_daemon.rollback.requests import ManualRequest
from caboose_wire import Ack, Event, Held, Holdings, PlanRequest, Scaler
from caboose_wire.expectation import MARGIN_STEPS
from support.guarded import Guarded, guarded
from support.ranks import a_hello
from support.seeds import first_of

NAN = float("nan")


def stuck(run: Guarded, steps: int, loss: float = 6.0) -> Guarded:
    """The loss jumped, and stays up, with the scatter of its batches."""
    for value in loss * (1.0 + 0.01 * np.random.default_rng(1).standard_normal(steps)):
        run.losses(value)
    return run


def lost(run: Guarded, steps: int = 6) -> Guarded:
    """The weights are NaN."""
    return run.losses(*[NAN] * steps)


# What is done about it


def test_a_spike_that_heals_by_itself_is_left_alone() -> None:
    run = guarded().healthy(100)
    run.losses(*(2.0 + 3.1 * np.exp(-np.arange(30) / 6.0))).healthy(60)

    assert [incident.rule for incident in run.job.incidents] == ["loss_spike"]
    assert run.decisions == []
    assert run.commands == []


def test_one_outlier_is_left_alone() -> None:
    run = guarded().healthy(100).losses(9.0).healthy(60)

    assert run.decisions == []


def test_a_giant_loss_that_falls_by_a_few_percent_of_itself_is_rolled_back_at_once() -> None:
    """At a thousandth of its peak it is still a million times its level: until the start, every step is lost whole."""
    run = guarded(every=50)
    healthy = 0.7 * (1 + np.arange(500) / 10) ** -1.25
    run.losses(*healthy * (1 + 0.02 * np.random.default_rng(0).standard_normal(500)))

    run.losses(*1.4e6 * 0.96 ** np.arange(20))

    decision = run.decisions[0]
    assert decision.step <= 506
    assert decision.triage is not None
    assert decision.triage.verdict == "recovering"
    assert decision.triage.remaining > 350
    assert decision.cost is not None
    assert decision.cost.is_certain, "even the optimistic end is worse than going back"


def test_where_the_run_began_is_known_after_a_restart_of_the_daemon_and_is_not_where_it_was_resumed(
    tmp_path: Path,
) -> None:
    run = guarded(journal=tmp_path / "journal.db")
    run.losses(*np.linspace(7.0, 2.0, 50)).daemon_restarts().healthy(5)
    assert run.job.rollback.start.loss() == pytest.approx(6.8, abs=0.01)

    resumed = guarded(start_step=5000).healthy(20)
    assert resumed.job.rollback.start.loss() is None


def test_a_loss_that_stays_up_is_rolled_back_once_waiting_costs_more() -> None:
    run = stuck(guarded().healthy(100), 6)
    assert run.decisions == [], "it may pass by itself, as bad data do"
    assert run.job.rollback.triages[1].verdict == "lingering"
    assert "is a short spike" in run.job.rollback.notes[1]

    stuck(run, 28)

    (decision,) = run.committed
    assert (decision.target, decision.skip, decision.lr_scale, decision.rung) == (90, 0, 1.0, 1)
    assert decision.boundary is not None
    assert decision.steps_lost == decision.boundary - 90
    assert decision.num_answers == {"done": 2}
    assert decision.seconds == 0.05


@pytest.mark.parametrize("steps", [3, 8, 15, 22])
def test_bad_data_of_less_than_thirty_steps_are_left_alone(steps: int) -> None:
    run = stuck(guarded().healthy(109), steps).healthy(60)

    assert [incident.rule for incident in run.job.incidents] == ["loss_spike"]
    assert run.decisions == []


@pytest.mark.parametrize("fall", [0.97, 0.94])
def test_bad_data_that_the_run_learns_from_are_left_alone(fall: float) -> None:
    """Their loss falls slowly while they are fed, and is back at once when they end."""
    run = guarded().healthy(109)
    run.losses(*(2.0 + 2.5 * fall ** np.arange(14)) * (1.0 + 0.01 * np.random.default_rng(2).standard_normal(14)))
    run.healthy(60)

    assert [incident.rule for incident in run.job.incidents] == ["loss_spike"]
    assert run.decisions == []


def test_spikes_are_left_alone_as_long_as_the_configuration_says() -> None:
    hasty = {"patience_steps": 0, "caution": 1.0}
    runs = [guarded(rollback={"spike_steps": steps, **hasty}).healthy(109) for steps in (0, 30)]
    decided = [stuck(run, 60).decisions[0].step - 109 for run in runs]

    assert decided[0] < decided[1] <= 31


def test_a_loss_that_rises_and_rises_is_rolled_back_within_fifteen_steps() -> None:
    rises = guarded().healthy(100)
    rises.losses(*(2.5 + 0.2 * np.arange(60)))

    soon = rises.decisions[0]
    assert soon.step <= 115
    assert soon.triage is not None
    assert soon.triage.verdict == "diverging"


def test_lost_weights_are_rolled_back_at_once() -> None:
    run = lost(guarded().healthy(100), 12)

    decision = run.decisions[0]
    assert (decision.step, decision.target, decision.state) == (103, 90, "committed")
    assert math.isinf(decision.cost.waiting)


def test_two_bad_losses_are_left_alone() -> None:
    run = guarded().healthy(100).losses(NAN, NAN).healthy(60)

    assert run.job.incident_counts == {"non_finite": 1}
    assert run.decisions == []


def test_bad_losses_of_some_ranks_alone_are_in_their_data_and_left_alone() -> None:
    run = guarded().healthy(100).nan_loss(1, at=101, steps=20).healthy(20)

    assert run.job.incident_counts == {"non_finite": 1}
    assert run.decisions == []


def test_losses_of_steps_that_a_scaler_skipped_are_left_alone() -> None:
    skipped = {"num": 0}

    def scaler(rank: int, step: int) -> Scaler:
        skipped["num"] += rank == 0
        return Scaler(1024.0, skipped["num"])

    run = guarded().meanwhile(scaler=Scaler(1024.0, 0)).healthy(100)
    run.plays(8, loss=NAN, scaler=scaler)

    assert run.decisions == []
    assert run.job.rollback.triages[1].verdict == "unmoved"


def test_the_new_attempt_says_why_and_the_incident_closes_when_the_loss_goes_on() -> None:
    run = lost(guarded().healthy(100), 7)
    run.wait(0.2)
    assert (run.job.num_attempts, run.job.attempt.reason, run.job.attempt.start_step) == (2, "rollback", 107)
    (incident,) = run.job.incidents
    assert (incident.state, incident.reason, incident.is_cut) == ("resolved", "rolled back to step 90", True)

    run.healthy(30)

    (incident,) = run.job.incidents
    assert incident.reason.startswith("rolled back to step 90: loss continues from there, ")
    assert (incident.is_cut, incident.is_unresolved) == (False, False)
    (decision,) = run.decisions
    assert decision.continuity == incident.reason
    assert run.job.rollback.standing == "ready"


def test_a_decision_explains_itself() -> None:
    lines = lost(guarded().healthy(100), 7).healthy(30).decisions[0].explain()

    assert lines == [
        "roll back to step 90 at step 107: committed",
        "for incident train/1 at step 103 of attempt 1, mode auto",
        "diverging: the last 3 losses are not finite on any rank: the weights are lost and cannot recover",
        "rollback is cheaper: waiting loses everything > 1.25 x 17 steps of a rollback",
        "snapshot of step 90: the newest ready on all 2 ranks by step 91",
        "command 1: of 2 ranks, 2 done",
        "all ranks acted at step 107; 17 steps lost",
        lines[-1],
    ]
    assert lines[-1].startswith("rolled back to step 90: loss continues from there, ")


def test_an_incident_that_somebody_has_in_hand_is_theirs() -> None:
    run = lost(guarded().healthy(100), 2)
    run.core.pipeline.acknowledge(run.job, 1, Acknowledgement(run.now, "me", "looking at it"))

    lost(run, 10)

    assert run.decisions == []
    assert run.job.rollback.is_holding, "the snapshots from before it are kept for them"
    assert [held.step for held in run.snapshots] == [70, 80, 90, 100]


def test_snapshots_are_held_while_something_is_wrong_and_those_of_then_are_tainted() -> None:
    run = guarded(every=5).healthy(98)
    stuck(run, 4)

    assert run.job.rollback.is_holding
    health = {entry.step: entry.health for entry in run.job.rollback.ledger}
    assert health == {80: "unproven", 85: "unproven", 90: "tainted", 95: "tainted"}

    run.healthy(20)
    assert not run.job.rollback.is_holding


def test_snapshots_keep_their_health_while_not_all_ranks_have_told_again() -> None:
    run = guarded(every=5).healthy(98)
    stuck(run, 4)
    ledger = run.job.rollback.ledger
    before = {entry.step: entry.health for entry in ledger}
    run.job.rollback.restart(is_rollback=True, start_step=run.job.latest_step)

    for rank in range(2):
        run.says(rank, run.holdings(rank))
        run.core.pass_time(run.now)
        assert {entry.step: entry.health for entry in ledger} == before
    assert "tainted" in before.values()


def test_a_checkpoint_from_inside_the_trouble_that_is_told_of_after_the_rollback_is_tainted() -> None:
    """A save in the background may take longer than the rest of the trouble."""
    run = lost(guarded().healthy(100), 7).healthy(20)
    (decision,) = run.committed
    assert decision.boundary is not None
    for step in (103, decision.boundary):
        fields = {"path": f"/ckpt/{step}", "step": step, "ours": True}
        run.says(0, Event(attempt=run.attempt, step=run.step, time=run.now, kind="checkpoint", fields=fields))
    run.healthy(200)

    found = {entry.step: (entry.attempt, entry.health) for entry in run.job.rollback.ledger.checkpoints}
    assert found == {103: (1, "tainted"), decision.boundary: (2, "healthy")}, "the second was saved after going back"


# What keeps it from being done


def test_advise_writes_down_once_what_it_would_do_and_does_nothing() -> None:
    run = stuck(guarded(rollback={"mode": "advise"}).healthy(100), 80)

    (decision,) = run.decisions
    assert (decision.state, decision.target, decision.mode) == ("advised", 90, "advise")
    assert run.commands == []
    assert run.job.rollback.standing == "advise"


@pytest.mark.parametrize(("owner", "daemons", "mode"), [("advise", "auto", "advise"), ("auto", "off", "off")])
def test_the_lower_of_both_sides_is_in_force(owner: str, daemons: str, mode: str) -> None:
    run = lost(guarded(owner=owner, rollback={"mode": daemons}).healthy(100))

    assert run.job.rollback.mode == mode
    assert run.commands == []
    assert [decision.state for decision in run.decisions] == (["advised"] if mode == "advise" else [])


def test_a_run_without_snapshots_is_told_where_it_would_have_gone_back_to() -> None:
    run = guarded(owner="advise")
    run.tell_holdings = lambda: None
    lost(run.healthy(200))

    (decision,) = run.decisions
    assert (decision.state, decision.target) == ("advised", 190)
    assert "with auto in both the daemon and the run it would roll back" in decision.why[0]


def test_without_a_common_snapshot_it_is_refused_once_and_done_when_there_is_one() -> None:
    run = guarded()
    everywhere = run.holdings

    def ragged(rank: int) -> Holdings:
        held = everywhere(rank)
        if rank:
            return held
        return Holdings(group=held.group, budget_left=3)

    run.holdings = ragged
    lost(run.healthy(100))

    (decision,) = run.decisions
    assert decision.state == "refused"
    assert decision.outcome.startswith("no snapshot at or before step 91 is ready on all 2 ranks; held on rank 0: none")

    run.holdings = everywhere
    run.tell_holdings()
    lost(run, 12)

    assert [decision.state for decision in run.decisions][:2] == ["refused", "committed"]


def test_nothing_is_sent_while_a_command_is_on_its_way() -> None:
    run = guarded().healthy(100)
    run.disobeys("deaf")

    lost(run, 40)

    assert [decision.state for decision in run.decisions] == ["sent"]
    assert len(run.commands) == 1


def test_a_command_that_nobody_answers_expires_and_is_proposed_again_with_more_notice() -> None:
    run = guarded().healthy(100)
    run.disobeys("deaf")

    lost(run, 100)

    first, second = run.decisions[:2]
    assert (first.state, first.outcome) == ("expired", "no rank answered within 40 s")
    assert first.boundary is not None
    assert second.boundary is not None
    assert (first.boundary - first.step, second.boundary - second.step) == (4, 8)


def pauses(run: Guarded, seconds: float = 60.0) -> Guarded:
    """The loop does something else for a while; the ranks that wait for a command's step then find it expired."""
    waiting = run.armed
    for _ in range(int(seconds)):
        run.wait(1.0)
        run.hear()
    assert run.armed is waiting, "nothing else was sent meanwhile"
    if waiting is not None:
        run.armed = None
        run.says(1, Ack(command=waiting.number, outcome="refused", detail="it expired 30 s ago", step=run.step))
    return run


def test_a_command_that_expires_while_the_run_stands_still_is_proposed_again_when_it_goes_on() -> None:
    run = guarded().healthy(100)

    for _ in range(5):
        for _ in range(5):
            if run.armed is None:
                lost(run, 1)
        pauses(run)
    assert [decision.state for decision in run.decisions] == ["aborted"] * 5, "more often than it is retried"
    assert {decision.num_tried for decision in run.decisions} == {0}, "no rank was late"
    assert not run.job.rollback.exhausted

    lost(run, 7)
    assert [decision.state for decision in run.decisions] == ["aborted"] * 5 + ["committed"]


def test_nothing_is_proposed_while_the_run_stands_still_and_ranks_may_wait_for_the_last_one() -> None:
    run = guarded().healthy(100)
    run.disobeys("deaf")
    lost(run, 4)

    pauses(run, 200.0)

    (decision,) = run.decisions
    assert (decision.state, decision.outcome) == ("expired", "the run was paused at step 104 until the command expired")
    assert decision.boundary == 107
    lost(run, 3)
    assert run.job.rollback.notes[1] == "the command expired before step 107; it is proposed again after that step"
    lost(run, 1)
    assert [(d.state, d.num_tried) for d in run.decisions] == [("expired", 0), ("sent", 0)]


def test_a_refused_command_is_proposed_again_a_few_times_and_then_people_are_called() -> None:
    run = guarded().healthy(100)
    run.disobeys("step 108 is over here")

    lost(run, 30)

    assert [decision.state for decision in run.decisions] == ["aborted"] * 4 + ["exhausted"]
    assert run.decisions[0].outcome == "no rank acted: rank 1 refused: step 108 is over here"
    assert [command.number for command in run.commands] == [1, 2, 3, 4]
    assert run.job.rollback.standing == "exhausted"


def test_a_cool_down_is_waited_for() -> None:
    run = lost(guarded(cool_steps=50).healthy(100), 40)

    assert len(run.commands) == 1
    assert "until step 157" in run.job.rollback.notes[1]

    lost(run, 30)

    assert [command.boundary for command in run.commands] == [107, 157]


def test_a_new_launch_does_not_cool_down_for_the_one_before_it() -> None:
    run = lost(guarded(rollback={"cooldown_steps": 500}).healthy(100), 8).healthy(5)
    run.hello |= {"attempt": 2, "start_step": 0}
    for rank in range(2):
        run.hello["incarnation"] = f"another-process-{rank}"
        run.says(rank, run.hello_of(rank))
    held = run.holdings
    run.holdings = lambda rank: msgspec.structs.replace(held(rank), group="another-group-of-ranks")
    run.last_number = 0
    run.hello.pop("incarnation")
    run.healthy(60)
    num = len(run.commands)

    lost(run, 6)

    assert len(run.commands) == num + 1


# The ladder


def test_the_same_trouble_again_is_rolled_back_further_past_more_data_and_slower() -> None:
    run = lost(guarded(keep=8).healthy(100), 8).healthy(40)
    lost(run, 12)

    first, second = run.committed
    assert (first.rung, first.target, first.skip, first.lr_scale) == (1, 90, 0, 1.0)
    assert (second.rung, second.target, second.skip, second.lr_scale) == (2, 80, 6, 0.5)
    assert "did not last" in second.why[1]


def test_where_no_loader_is_watched_no_data_is_dropped_and_that_is_said() -> None:
    run = lost(guarded(can_skip=False).healthy(100), 8).healthy(40)
    lost(run, 12)

    assert run.committed[1].skip == 0
    assert "6 steps of data should be skipped and are not: the loader is not watched" in run.committed[1].why[-1]
    assert "no more batches can be skipped" in run.committed[0].why[-1]


def test_trouble_that_keeps_coming_back_spends_the_budget_and_then_people_are_called() -> None:
    run = guarded(keep=10).healthy(100)
    for _ in range(3):
        lost(run, 12)
        run.healthy(3)
    lost(run, 6)

    assert len(run.committed) == 3
    last = run.decisions[-1]
    assert (last.state, last.outcome) == ("exhausted", "the budget of 3 rollbacks per day is spent")
    assert run.job.rollback.standing == "exhausted"
    num = len(run.commands)

    lost(run, 50)

    assert len(run.commands) == num, "and nothing more is tried"


def test_it_is_no_longer_exhausted_when_the_trouble_is_over() -> None:
    run = lost(guarded(budget=0).healthy(100))
    assert run.job.rollback.exhausted

    run.healthy(20)

    assert run.job.rollback.standing == "ready"


def test_a_loss_that_does_not_go_on_after_a_rollback_is_trouble_though_no_rule_knows() -> None:
    run = lost(guarded(keep=10).healthy(100), 7)

    stuck(run, 100)

    first, second = run.decisions[:2]
    assert first.continuity.startswith("rolled back to step 90: loss does not continue from there, ")
    assert (second.rung, second.trigger, second.target) == (2, "train/1", 80)
    health = [entry.health for entry in run.job.rollback.ledger if entry.step > 107]
    assert set(health) <= {"tainted"}


def with_checkpoint(run: Guarded, step: int) -> Guarded:
    run.says(0, Event(attempt=0, step=step, time=run.now, kind="checkpoint", fields={"path": "/c/5", "step": step}))
    return run


def test_where_the_owner_wants_it_the_run_is_stopped_for_a_restart_from_a_healthy_checkpoint() -> None:
    run = with_checkpoint(guarded(budget=0, rollback={"on_exhausted": "stop"}), 5).healthy(150)
    lost(run, 12)

    (decision,) = run.decisions
    assert (decision.kind, decision.state, run.commands[0].kind) == ("stop", "committed", "stop")
    assert decision.why == (
        "the ranks' rollback budget is spent; stop, and resume from the checkpoint of step 5 (/c/5)",
    )
    plan = run.core.policy.plan(
        PlanRequest(
            job="train",
        )
    )
    assert [checkpoint.path for checkpoint in plan.checkpoints] == ["/c/5"]
    assert plan.skip == ((146, 162),)
    assert plan.lr_scale == 0.5


def skipped(run: Guarded) -> tuple[tuple[int, int], ...]:
    """What the resume plan skips."""
    return run.core.policy.plan(PlanRequest(job="train")).skip


def test_a_plan_skips_the_steps_after_a_rollback_that_did_not_help_though_no_incident_is_open() -> None:
    run = lost(guarded(keep=10, budget=1).healthy(100), 8)
    stuck(run, 100)

    assert run.job.incidents.open == [], "the rules' new baselines take the bad loss for normal"
    assert run.job.rollback.standing == "exhausted"
    assert skipped(run) == ((96, run.step),)


def test_a_plan_skips_what_a_run_was_stopped_for_also_once_the_next_attempt_has_begun() -> None:
    run = with_checkpoint(guarded(keep=10, budget=1, rollback={"on_exhausted": "stop"}), 5).healthy(150)
    stuck(lost(run, 8), 150)
    stop = next(decision for decision in run.committed if decision.kind == "stop")

    run.core.pipeline.begin_attempt(run.job, a_hello(launch="next", world=2, start_step=5), run.now)

    assert skipped(run) == ((146, stop.boundary),)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("error", ["", "RuntimeError: out of memory"])
def test_a_plan_skips_the_steps_of_trouble_that_a_run_ended_in(error: str) -> None:
    run = stuck(guarded(rollback={"mode": "advise"}).healthy(100), 30)
    before = skipped(run)
    assert before == ((96, 130),)

    run.leaves(0, 1, error=error).wait(ABANDONED_SECONDS + 60.0, every=2.0)

    assert run.job.incidents.open == []
    assert skipped(run) == before


def test_a_plan_skips_nothing_of_trouble_that_the_run_got_over() -> None:
    run = stuck(guarded(rollback={"mode": "advise"}).healthy(100), 10).healthy(60).leaves(0, 1)

    run.wait(2.0)

    assert run.job.incident_counts == {"loss_spike": 1}
    assert skipped(run) == ()


def test_a_resume_is_slowed_down_only_if_its_checkpoint_is_older_than_the_rollback_that_was() -> None:
    run = with_checkpoint(guarded(keep=8), 5).healthy(100)
    lost(lost(run, 8).healthy(40), 12).healthy(30)
    assert [decision.lr_scale for decision in run.committed] == [1.0, 0.5, 0.5]
    assert (
        run.core.policy.plan(
            PlanRequest(
                job="train",
            )
        ).lr_scale
        == 0.25
    )

    again = {"path": "/c/again", "step": run.step}
    run.says(0, Event(attempt=0, step=run.step, time=run.now, kind="checkpoint", fields=again))

    plan = run.core.policy.plan(
        PlanRequest(
            job="train",
        )
    )
    assert (plan.checkpoints[0].path, plan.lr_scale) == ("/c/again", 1.0)


def test_a_run_is_told_which_checkpoint_is_proven_healthy() -> None:
    run = guarded().healthy(60)
    ours = {"path": "/c/step-50", "step": 50, "ours": True}
    run.says(0, Event(attempt=0, step=50, time=run.now, kind="checkpoint", fields=ours))
    assert run.core.policy.terms(run.job).healthy is None

    run.healthy(120)

    assert run.core.policy.terms(run.job).healthy == 50


def scale_of_plan(run: Guarded) -> float:
    return run.core.policy.plan(
        PlanRequest(
            job="train",
        )
    ).lr_scale


def asked_for(run: Guarded, **about: Any) -> None:
    decision = run.core.requests.ask(run.job, ManualRequest(by="me", **about), run.now)
    assert decision.state == "sent", decision.outcome
    run.healthy(30)
    assert run.committed[-1].number == decision.number


def test_a_resume_has_the_learning_rate_of_everything_that_was_done_since_its_checkpoint() -> None:
    run = with_checkpoint(guarded(keep=8), 5).healthy(100)
    asked_for(run, lr_scale=0.25)
    assert scale_of_plan(run) == 0.25, "by hand, which the configuration knows nothing of"

    asked_for(run, kind="scale_lr", lr_scale=0.5)
    assert scale_of_plan(run) == 0.125

    asked_for(run)
    assert scale_of_plan(run) == 0.125, "a later one that leaves it as it is does not undo the others"


def test_without_a_healthy_checkpoint_nothing_is_stopped() -> None:
    run = guarded(budget=0, rollback={"on_exhausted": "stop"}).healthy(150)
    lost(run, 12)

    assert [decision.state for decision in run.decisions] == ["exhausted"]
    assert run.commands == []


# Long healthy runs


@pytest.mark.parametrize("noise", first_of([0.3, 0.01, 0.1]))
def test_a_long_noisy_healthy_run_is_never_touched(noise: float) -> None:
    run = guarded(ranks=1, noise=noise, falling=2.0, seed=3).healthy(1500)

    assert run.decisions == []


def resumed(run: Guarded) -> Guarded:
    """Other processes go on where the run was."""
    again: dict[str, Any] = {"attempt": 1, "start_step": run.step}
    run.hello |= again
    for rank in range(2):
        run.hello["incarnation"] = f"another-process-{rank}"
        run.says(rank, run.hello_of(rank))
    return run


def test_a_resume_that_goes_on_is_found_to_do_so() -> None:
    run = resumed(guarded().healthy(60)).healthy(30)

    check = run.job.rollback.check
    assert check is not None
    assert (run.job.num_attempts, check.state, check.decision) == (2, "ok", 0)
    assert check.text.startswith("resumed at step 60: loss continues from there, 1.999 against 2 ")


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_a_resume_that_is_a_little_off_at_first_is_shown_and_taints_nothing(mode: str) -> None:
    run = resumed(guarded(rollback={"mode": mode}).healthy(60))
    run.losses(*[2.03, 2.04, 2.02] * 10)
    run.says(0, Event(attempt=0, step=90, time=run.now, kind="checkpoint", fields={"path": "/c/90", "step": 90}))
    run.healthy(150)

    check = run.job.rollback.check
    assert check is not None
    assert check.text.startswith("resumed at step 60: loss does not continue from there")
    assert {entry.health for entry in run.job.rollback.ledger} == {"healthy", "unproven"}
    assert [entry.health for entry in run.job.rollback.ledger.checkpoints] == ["healthy"]


def test_holdings_of_far_snapshots_are_used_when_the_near_ones_are_too_young() -> None:
    run = guarded(keep=3).healthy(100)
    run.snapshots.insert(0, Held(40, 40, 0.0, is_far=True))
    run.keep = 4
    run.tell_holdings()

    decision = lost(run, 8).decisions[0]

    assert decision.target == 90
    run = guarded(keep=4, rollback={"margin_steps": 40}).healthy(100)
    run.snapshots.insert(0, Held(40, 40, 0.0, is_far=True))
    run.tell_holdings()
    assert lost(run, 8).decisions[0].target == 40


def test_a_snapshot_taken_two_steps_before_a_jump_is_used() -> None:
    """Where the loss jumps, its beginning is known to the step."""
    run = lost(guarded(rollback={"margin_steps": MARGIN_STEPS}).healthy(102), 8)

    assert run.decisions[0].target == 100


def test_of_a_slow_rise_the_snapshot_is_used_from_before_it_could_be_seen() -> None:
    run = guarded(every=5, keep=24, rollback={"margin_steps": MARGIN_STEPS}).healthy(200)
    batches = 0.02 * np.random.default_rng(1).standard_normal(150)
    run.losses(*(2.0 + 0.01 * 1.06 ** np.arange(150) + batches))

    decision = run.decisions[0]
    assert decision.triage is not None
    assert decision.target is not None
    assert decision.triage.rose_for > 20
    assert decision.target <= 200, "not one from when the damage was in the noise"
    assert decision.target >= 170, "and none from long before"


def test_a_rise_that_comes_back_after_a_rollback_is_dated_before_its_target() -> None:
    """Its level is the one from before the snapshot, so an older snapshot is used at once, and nothing is unknown."""
    run = guarded(every=10, keep=8, rollback={"margin_steps": MARGIN_STEPS}).healthy(200)
    run.losses(*[2.02] * 15)
    lost(run, 8)
    first = run.committed[0]
    assert first.target == 210, "the fault began at step 201, hidden in the noise"

    run.losses(*(2.02 + 0.1 * 1.3 ** np.arange(24)))

    second = run.committed[1]
    assert second.triage is not None
    assert second.triage.level == pytest.approx(2.0, abs=0.03)
    assert second.rung == 2
    assert (second.target or 0) < 210
