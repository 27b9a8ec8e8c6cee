"""When the ranks are asked for a hunt: before the rollback of a number that broke, once, and never unasked for."""

from caboose_daemon.rollback.hunting import ANSWER_SECONDS
from caboose_daemon.rollback.requests import ManualRequest
from caboose_daemon.rollback_state.decision import Decision
from caboose_wire import Ack
from support.guarded import Guarded, guarded

NAN = float("nan")


def lost(run: Guarded, steps: int = 30) -> Guarded:
    """The weights are NaN, until somebody goes back."""
    for _ in range(steps):
        if any(decision.kind == "rollback" for decision in run.committed):
            break
        run.losses(NAN)
    return run


def kinds(decisions: list[Decision]) -> list[tuple[str, str]]:
    return [(decision.kind, decision.state) for decision in decisions]


def ask(run: Guarded, **request: object) -> Decision:
    return run.core.requests.ask(run.job, ManualRequest(kind="hunt", by="oncall", **request), run.now)  # type: ignore[arg-type]


def test_the_hunt_comes_first_on_the_newest_snapshot_from_before_and_then_the_rollback() -> None:
    run = lost(guarded(can_hunt=True).healthy(104))

    assert kinds(run.decisions) == [("hunt", "committed"), ("rollback", "committed")]
    hunt, rollback = run.decisions
    assert (hunt.onset, hunt.target, hunt.trigger) == (105, 100, "train/1")
    assert rollback.target == 90, "going back keeps its distance"
    assert hunt.boundary is not None
    assert rollback.boundary is not None
    assert hunt.boundary < rollback.boundary
    assert [(c.kind, c.onset, c.target) for c in run.commands] == [("hunt", 105, 100), ("rollback", 0, 90)]
    assert hunt.summary == "hunt for the first bad number of step 105 on the snapshot of step 100, at step " + str(
        hunt.boundary
    )


def test_where_the_run_does_not_hunt_it_is_not_asked_to() -> None:
    run = lost(guarded().healthy(104))
    assert kinds(run.decisions) == [("rollback", "committed")]


def test_where_one_side_only_advises_nothing_is_sent() -> None:
    run = lost(guarded(can_hunt=True, rollback={"mode": "advise"}).healthy(104), 12)
    assert run.commands == []
    assert {kind for kind, _ in kinds(run.decisions)} == {"rollback"}


def test_a_hunt_that_came_to_nothing_is_not_asked_for_again_and_does_not_hold_up_the_rollback() -> None:
    run = guarded(can_hunt=True).healthy(104)
    run.obeys = lambda command: "no batch is kept" if command.kind == "hunt" else ""
    lost(run)
    assert kinds(run.decisions) == [("hunt", "aborted"), ("rollback", "committed")]


def test_a_spike_is_no_case_for_a_hunt() -> None:
    run = guarded(can_hunt=True).healthy(100).losses(*[6.0, 6.1, 5.9, 6.05] * 10)
    assert {decision.kind for decision in run.decisions} == {"rollback"}


def test_without_a_snapshot_from_before_it_is_made_on_the_weights_as_they_are() -> None:
    run = lost(guarded(can_hunt=True, every=1000).healthy(60), 12)
    (hunt, *_) = run.decisions
    assert (hunt.kind, hunt.target) == ("hunt", 0)
    assert hunt.why == ("no snapshot from before step 61 is ready on all ranks: using the current weights",)


def test_people_may_ask_for_one_at_any_time_and_name_the_snapshot() -> None:
    run = guarded(can_hunt=True).healthy(60)
    assert ask(run, to=77).outcome.startswith("no snapshot of step 77 is ready on all ranks; held: ")
    dry = ask(run, is_dry=True)
    assert (dry.state, dry.target, dry.onset) == ("advised", 60, None)
    sent = ask(run, to=50)
    assert (sent.state, sent.target) == ("sent", 50)
    run.healthy(20)
    assert kinds(run.committed) == [("hunt", "committed")]


def test_asking_a_run_that_keeps_no_batch_is_refused_with_the_way_out() -> None:
    refused = ask(guarded().healthy(60))
    assert refused.state == "refused"
    assert "attach(..., hunt=True)" in refused.outcome


def test_the_rollback_waits_for_what_every_rank_found_but_not_for_ever() -> None:
    run = guarded(can_hunt=True).healthy(104)
    silent = Ack(command=1, outcome="accepted", step=0)
    run.answer = lambda rank, ack: silent if rank == 1 and ack.command == 1 else ack
    lost(run)
    hunt, rollback = run.decisions
    assert hunt.num_answers == {"done": 1, "accepted": 1}
    assert hunt.closed_time is not None
    assert hunt.closed_time + ANSWER_SECONDS <= rollback.time < hunt.closed_time + 2 * ANSWER_SECONDS
