"""Commands are numbered once, signed, followed to their outcome, and outlive the daemon without being sent again."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from caboose_daemon.config import Config
from caboose_daemon.jobs.state import State
from caboose_daemon.out.api import json_shapes
from caboose_daemon.rollback.commander import NO_JOURNAL, Commander
from caboose_daemon.rollback.requests import ManualRequest
from caboose_daemon.rollback_state.decision import MAX_ANSWERS
from caboose_daemon.store import history
from caboose_daemon.store.journal import Journal
from caboose_wire import Ack, Event, Holdings, PlanRequest, decode, encode, is_signed
from caboose_wire.fields import MAX_COUNT
from support.guarded import Guarded, guarded
from support.old_journals import make_old
from support.recorder import Recorder
from support.scenario import JournaledCore

NAN = float("nan")


def asked(run: Guarded, **request: Any) -> Guarded:
    run.core.requests.ask(run.job, ManualRequest(**{"by": "me", **request}), run.now)
    return run


def deaf(ranks: int = 2, **settings: Any) -> Guarded:
    """A run whose ranks get no command by themselves: the test speaks for them."""
    run = guarded(ranks, **settings)
    run.healthy(40)
    run.disobeys("deaf")
    return asked(run)


def say(run: Guarded, rank: int, outcome: str, detail: str = "", number: int = 1) -> None:
    run.says(rank, Ack(command=number, outcome=outcome, detail=detail, step=45, seconds=0.1 * rank))
    run.core.pass_time(run.now)


def test_a_command_is_numbered_above_all_that_the_ranks_have_seen() -> None:
    run = guarded().healthy(40)
    run.last_number = 17
    run.tell_holdings()

    asked(run)

    assert run.decisions[0].command == 18


def test_a_command_can_be_decoded_by_ranks_that_have_seen_the_highest_number_of_all() -> None:
    run = guarded().healthy(40)
    run.last_number = MAX_COUNT
    run.tell_holdings()

    asked(run)

    (order,) = run.core.commander.take()
    assert decode(encode(order.command)) == order.command


def test_an_answer_whose_time_is_no_number_is_refused() -> None:
    run = deaf()
    run.says(0, Ack(command=1, outcome="done", step=45, seconds=float("inf")))
    run.core.pass_time(run.now)

    shown = json.loads(json.dumps(json_shapes.decision(run.decisions[0]), allow_nan=False))
    assert shown["answers"] == []
    assert run.core.state.num_refused["malformed"] == 1


def test_a_command_is_signed_where_there_is_a_secret() -> None:
    run = guarded().healthy(40)
    commander = Commander(run.core.sink, b"a secret of some length")
    run.core.requests._commander = commander

    asked(run)

    (order,) = commander.take()
    assert is_signed(order.command, b"a secret of some length")
    assert not is_signed(order.command, b"another secret of length")
    assert commander.take() == [], "it is sent once"


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (["accepted"], "sent"),
        (["accepted", "aborted"], "aborted"),
        (["refused"], "aborted"),
        (["accepted", "done"], "committed"),
        (["done", "failed"], "failed"),
        (["aborted", "done"], "committed"),
        (["failed", "done"], "failed"),
        (["done", "aborted"], "committed"),
    ],
)
def test_the_strongest_word_of_any_rank_is_the_outcome(said: list[str], state: str) -> None:
    run = deaf()

    for rank, outcome in enumerate(said):
        say(run, rank % 2, outcome)

    assert run.decisions[0].state == state


def test_the_reason_of_a_veto_and_the_slowest_rank_are_kept() -> None:
    run = deaf(4)
    say(run, 3, "accepted")
    say(run, 2, "refused", "no snapshot of step 30")

    decision = run.decisions[0]

    assert decision.outcome == "no rank acted: rank 2 refused: no snapshot of step 30"
    assert (decision.num_answers, decision.seconds) == ({"accepted": 1, "refused": 1}, pytest.approx(0.3))
    assert [answer.rank for answer in decision.answers] == [2, 3], "the most telling first"


def test_of_many_ranks_all_are_counted_and_some_are_kept() -> None:
    run = deaf(MAX_ANSWERS + 10, every=40)
    for rank in range(MAX_ANSWERS + 10):
        say(run, rank, "done")

    decision = run.decisions[0]

    assert (decision.num_answers, len(decision.answers)) == ({"done": MAX_ANSWERS + 10}, MAX_ANSWERS)


def test_ranks_that_could_not_be_reached_are_named() -> None:
    run = deaf()
    (order,) = run.core.commander.take()

    run.core.commander.unreached(order, [1])

    assert run.decisions[0].unreached == (1,)
    assert "not delivered to 1 ranks (1)" in "\n".join(run.decisions[0].explain())


def test_answers_to_a_command_that_nobody_gave_are_ignored() -> None:
    run = guarded().healthy(40)

    say(run, 0, "done", number=99)

    assert run.decisions == []


def test_another_launch_cannot_change_what_became_of_a_command() -> None:
    run = deaf()
    say(run, 0, "done")
    group = run.decisions[0].group

    run.leaves(0, 1).wait(2)
    for rank in (0, 1):
        run.says(rank, replace(run.hello_of(rank), launch="another", incarnation=f"another-{rank}"))
    assert run.job.num_attempts == 2
    run.says(0, Holdings(group=group, last_number=1))
    say(run, 0, "failed", "forged")

    assert run.decisions[0].state == "committed"


def test_a_run_that_goes_on_from_the_boundary_has_done_it_though_no_answer_came() -> None:
    run = deaf()
    boundary = run.decisions[0].boundary
    assert boundary is not None
    run.healthy(boundary - run.step)
    run.hello |= {"attempt": 1, "start_step": boundary}
    for rank in range(2):
        run.says(rank, run.hello_of(rank))
    run.wait(1.0)

    assert (run.decisions[0].state, run.job.num_attempts) == ("committed", 2)
    assert run.decisions[0].outcome.startswith(f"all ranks continued from it at step {boundary}")


# What people may ask for


def test_a_run_whose_owner_did_not_say_auto_is_not_touched() -> None:
    run = asked(guarded(owner="advise").healthy(40))

    assert run.decisions[0].outcome == "the run allows only 'advise': use attach(..., rollback='auto')"


def test_the_daemons_own_mode_does_not_matter() -> None:
    run = asked(guarded(rollback={"mode": "off"}).healthy(40)).healthy(10)

    assert [decision.state for decision in run.decisions] == ["committed"]


def test_a_second_request_waits_for_the_first() -> None:
    run = asked(deaf())

    assert [decision.state for decision in run.decisions] == ["sent", "refused"]
    assert run.decisions[1].outcome.startswith(
        "command 1 (decision 1: roll back to step 40 at step 44) has no outcome yet"
    )


@pytest.mark.parametrize(
    ("settings", "request_", "outcome"),
    [
        ({"budget": 0}, {}, "the ranks' rollback budget is spent"),
        (
            {"can_skip": False},
            {"skip": 5},
            "skip = 5: the loader is not watched (monitor.watch), so no batch can be",
        ),
        ({}, {"to": 33}, "no snapshot of step 33 is ready on all ranks; held: 10, 20, 30, 40"),
    ],
)
def test_what_the_ranks_would_refuse_is_refused_here(
    settings: dict[str, Any], request_: dict[str, Any], outcome: str
) -> None:
    run = asked(guarded(**settings).healthy(40), **request_)

    assert run.decisions[0].outcome.startswith(outcome)
    assert run.core.commander.take() == []


def test_a_cool_down_is_told() -> None:
    run = asked(guarded(cool_steps=100).healthy(40)).healthy(20)
    asked(run)

    assert "cool-down after the last rollback until step 144; the ranks would refuse" in run.decisions[-1].outcome


def test_a_tainted_snapshot_may_be_asked_for_by_its_step_and_is_not_taken_unasked() -> None:
    run = guarded(every=5).healthy(98)
    run.losses(*[9.0] * 4)
    taints = [entry.step for entry in run.job.rollback.ledger if entry.health == "tainted"]
    assert taints == [95, 90]

    unasked = run.core.requests.ask(run.job, ManualRequest(is_dry=True), run.now)
    shown = run.core.requests.ask(run.job, ManualRequest(to=95, is_dry=True), run.now)

    assert unasked.target == 85
    assert shown.why == (
        "snapshot of step 95, as requested; tainted: saved just before step 99, where incident 1 began",
    )
    assert run.decisions == []


# The daemon's death


def test_decisions_ledger_and_exhaustion_outlive_the_daemon(tmp_path: Path) -> None:
    run = guarded(budget=0, journal=tmp_path / "journal.sqlite").healthy(150)
    run.says(0, Event(attempt=0, step=20, time=run.now, kind="checkpoint", fields={"path": "/c/20", "step": 20}))
    run.losses(*[NAN] * 6)
    before = (run.decisions, list(run.job.rollback.ledger), run.job.rollback.exhausted)
    assert before[2]

    run.daemon_restarts()

    record = run.job.rollback
    assert [(d.number, d.state, d.outcome) for d in record.decisions] == [
        (d.number, d.state, d.outcome) for d in before[0]
    ]
    assert (list(record.ledger), record.exhausted) == before[1:]
    _close(run)


def test_a_run_that_was_stopped_is_still_exhausted_when_the_daemon_comes_back(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"budget": 0, "rollback": {"on_exhausted": "stop"}}
    run = guarded(journal=tmp_path / "journal.sqlite", **settings).healthy(5)
    run.says(0, Event(attempt=0, step=5, time=run.now, kind="checkpoint", fields={"path": "/c/5", "step": 5}))
    run.healthy(145).losses(*[NAN] * 12)
    asked(run, to=7)
    assert [(d.kind, d.state) for d in run.decisions] == [("stop", "committed"), ("rollback", "refused")]

    run.daemon_restarts()

    assert "rollback budget is spent" in run.job.rollback.exhausted
    plan = run.core.policy.plan(
        PlanRequest(
            job="train",
        )
    )
    assert (plan.checkpoints[0].path, plan.lr_scale) == ("/c/5", 0.5)
    _close(run)


def test_a_run_that_ended_in_its_trouble_is_still_exhausted_when_the_daemon_comes_back(tmp_path: Path) -> None:
    run = exhausted(tmp_path)
    run.leaves(0, 1).wait(2.0)

    run.daemon_restarts()

    assert run.job.state == "ended"
    assert "rollback budget is spent" in run.job.rollback.exhausted
    _close(run)


def test_what_has_healed_is_not_exhausted_when_the_daemon_comes_back(tmp_path: Path) -> None:
    run = exhausted(tmp_path).healthy(60)
    assert not run.job.rollback.exhausted

    run.daemon_restarts()

    assert (run.job.state, run.job.rollback.exhausted) == ("known", ""), "also before a rank is heard"
    _close(run)


def test_a_run_that_healed_and_ended_is_not_exhausted_when_the_daemon_comes_back(tmp_path: Path) -> None:
    run = exhausted(tmp_path).healthy(60).leaves(0, 1).wait(2.0)

    run.daemon_restarts()

    assert (run.job.state, run.job.rollback.exhausted) == ("ended", "")
    _close(run)


def test_a_run_that_was_launched_anew_is_not_exhausted_when_the_daemon_comes_back(tmp_path: Path) -> None:
    run = exhausted(tmp_path)
    run.hello |= {"attempt": 1, "launch": "another", "start_step": 100}
    run.meanwhile(attempt=1).joins(0, 1).healthy(20)
    assert run.job.num_attempts == 2
    assert not run.job.rollback.exhausted

    run.daemon_restarts()

    assert (run.job.state, run.job.rollback.exhausted) == ("known", "")
    _close(run)


def test_a_run_whose_owner_wants_no_rollback_any_more_is_not_exhausted(tmp_path: Path) -> None:
    run = exhausted(tmp_path)
    run.hello |= {"attempt": 1, "launch": "another", "rollback": "off"}
    run.meanwhile(attempt=1).joins(0, 1).healthy(20)

    assert (run.job.rollback.mode, run.job.rollback.exhausted) == ("off", "")
    _close(run)


def exhausted(tmp_path: Path) -> Guarded:
    """A run in trouble that has no rollback left."""
    run = guarded(budget=0, journal=tmp_path / "journal.sqlite").healthy(150)
    run.losses(*[NAN] * 6)
    assert run.job.rollback.exhausted
    return run


def test_a_command_that_was_on_its_way_is_followed_and_not_sent_again(tmp_path: Path) -> None:
    run = deaf(journal=tmp_path / "journal.sqlite")
    run.wait(0.2)
    run.daemon_restarts()
    assert run.core.orders == []
    assert (run.job.rollback.in_flight, run.job.rollback.standing) != (None, "ready")

    run.healthy(3)
    say(run, 0, "done")
    run.wait(1.0)

    assert [decision.state for decision in run.decisions] == ["committed"]
    assert run.core.orders == []
    _close(run)


def test_what_was_done_while_the_daemon_was_away_for_long_is_found_to_be_done(tmp_path: Path) -> None:
    run = deaf(journal=tmp_path / "journal.sqlite")
    run.wait(0.2)
    run.daemon_restarts(120.0)
    run.core.pass_time(run.now)
    assert [decision.state for decision in run.decisions] == ["expired"]

    run.hello |= {"attempt": 1, "start_step": run.decisions[0].boundary}
    for rank in range(2):
        run.says(rank, run.hello_of(rank))
    run.wait(1.0)

    assert (run.decisions[0].state, run.job.num_attempts) == ("committed", 2)
    _close(run)


def test_trouble_that_was_decided_on_is_not_decided_on_again(tmp_path: Path) -> None:
    run = guarded(rollback={"mode": "advise"}, journal=tmp_path / "journal.sqlite").healthy(100)
    run.losses(*[NAN] * 6)
    run.daemon_restarts()

    run.tell_holdings()
    run.losses(*[NAN] * 20)

    assert [decision.state for decision in run.decisions] == ["advised"]
    _close(run)


def test_a_decision_that_the_journal_did_not_take_is_withdrawn_before_it_is_sent(tmp_path: Path) -> None:
    run = guarded(journal=tmp_path / "journal.sqlite").healthy(100)
    run.core.execute("PRAGMA query_only = ON")

    asked(run)
    run.wait(0.1)

    assert run.core.orders == []
    assert (run.decisions[-1].state, run.decisions[-1].command) == ("refused", 0)
    assert run.decisions[-1].outcome == NO_JOURNAL

    run.core.execute("PRAGMA query_only = OFF")
    run.healthy(2)
    asked(run)
    run.wait(0.1)

    assert len(run.core.orders) == 1


def test_nothing_is_done_without_a_trail(tmp_path: Path) -> None:
    run = guarded(journal=tmp_path / "journal.sqlite").healthy(100)
    run.core.state.journal_error = "database or disk is full"
    run.core.execute("PRAGMA query_only = ON")

    run.losses(*[NAN] * 6)

    assert [decision.state for decision in run.decisions] == ["refused"]
    assert run.decisions[0].outcome == NO_JOURNAL
    assert run.core.orders == []

    asked(run)

    assert (run.decisions[-1].by, run.decisions[-1].outcome) == ("me", run.decisions[0].outcome)
    assert run.core.commander.take() == []
    _close(run)


def test_a_journal_from_before_rollbacks_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    run = guarded(journal=path).healthy(20)
    _close(run)
    make_old(path, 2)

    state = State(rule_configs=Config().rules, started=0.0)
    journal = Journal(path, state, max_steps=1000, retention_days=90.0)
    again = JournaledCore(path)
    history.restore(path, again.state, again.pipeline, 2000.0)

    job = again.state.jobs["train"]
    assert (job.num_steps, job.attempt.reason, job.attempt.start_step) == (20, "", 0)
    assert list(job.rollback.decisions) == []
    again.close()
    journal.close(2000.0)


def _close(run: Guarded) -> None:
    assert isinstance(run.core, JournaledCore)
    assert isinstance(run.core.sink, Recorder)
    run.core.close()
