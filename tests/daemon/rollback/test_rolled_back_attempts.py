"""Ranks that rolled back say so one after the other; they go on together in a new attempt, and nothing is mixed."""

import msgspec
import pytest

from caboose_daemon.ingest.admission import ROLLBACK_SECONDS
from caboose_wire import Bye, Hello, HelloRequest, Holdings, Plan, PlanRequest, Refused, Terms
from support.ranks import a_hello, a_report
from support.recorder import Core


def launched(core: Core, world: int = 2, now: float = 0.0) -> list[Hello]:
    hellos = [a_hello(rank=rank, world=world, rollback="auto") for rank in range(world)]
    for hello in hellos:
        core.say(f"p{hello.rank}".encode(), hello, now)
    return hellos


def trained(core: Core, steps: range, *, ranks: range = range(2), attempt: int = 0, now: float = 1.0) -> None:
    for step in steps:
        for rank in ranks:
            core.say(f"p{rank}".encode(), a_report(step, attempt=attempt), now)


def went_back(core: Core, hello: Hello, at: int, now: float) -> None:
    """A rank says that it rolled back after a step."""
    again = msgspec.structs.replace(hello, attempt=hello.attempt + 1, start_step=at)
    core.say(f"p{hello.rank}".encode(), again, now)


def test_the_new_attempt_begins_when_all_ranks_have_said_so_and_loses_none_of_their_steps() -> None:
    core = Core()
    hellos = launched(core)
    trained(core, range(1, 11))
    went_back(core, hellos[0], 10, 2.0)
    trained(core, range(11, 14), ranks=range(1), attempt=1, now=2.1)
    core.pass_time(2.2)
    assert core.sink.attempts == [1], "rank 1 has not said so"

    went_back(core, hellos[1], 10, 2.3)
    trained(core, range(11, 14), ranks=range(1, 2), attempt=1, now=2.4)
    core.pass_time(2.5)

    job = core.state.jobs["train"]
    assert core.sink.attempts == [1, 2]
    assert job.attempt is not None
    assert (job.attempt.reason, job.attempt.start_step, job.num_live(job.last_seen)) == ("rollback", 10, 2)
    steps = [(s.attempt, s.step, s.num_ranks) for s in core.sink.steps]
    assert steps == [(1, step, 2) for step in range(1, 11)] + [(2, step, 2) for step in range(11, 14)]
    assert core.state.num_refused == {}


def test_a_rank_that_does_not_say_so_is_waited_for_three_seconds() -> None:
    core = Core()
    hellos = launched(core)
    trained(core, range(1, 11))
    went_back(core, hellos[0], 10, 2.0)

    core.pass_time(2.0 + ROLLBACK_SECONDS - 0.1)
    assert core.sink.attempts == [1]
    core.pass_time(2.0 + ROLLBACK_SECONDS)
    assert core.sink.attempts == [1, 2]


def test_what_such_a_rank_still_says_is_counted_as_late_and_it_is_asked_where_it_is() -> None:
    core = Core()
    hellos = launched(core)
    trained(core, range(1, 11))
    went_back(core, hellos[0], 10, 2.0)
    core.pass_time(6.0)

    replies = core.say(b"p1", a_report(11), 6.1)
    again = core.say(b"p1", a_report(12), 6.2)

    job = core.state.jobs["train"]
    assert job.attempt is not None
    assert [type(message) for _, message in replies] == [HelloRequest]
    assert again == []
    assert job.attempt.aligner.num_late == 2
    assert core.state.num_refused == {}, "it is no impostor"

    went_back(core, hellos[1], 10, 6.3)
    assert (job.num_attempts, job.num_live(job.last_seen)) == (2, 2)


def test_ranks_that_have_left_are_not_waited_for() -> None:
    core = Core()
    hellos = launched(core, world=3)
    core.pipeline.leave(core.state.jobs["train"], core.state.jobs["train"].attempt.members[2], Bye(step=1))
    for hello in hellos[:2]:
        went_back(core, hello, 10, 2.0)

    core.pass_time(2.1)

    assert core.sink.attempts == [1, 2]


def test_the_same_hello_again_is_a_reconnect_and_no_rollback() -> None:
    core = Core()
    hellos = launched(core)
    core.say(b"p0", hellos[0], 1.0)
    core.pass_time(10.0)

    assert core.sink.attempts == [1]


def test_a_process_that_was_restarted_is_not_taken_for_one_that_rolled_back() -> None:
    core = Core()
    launched(core)
    for peer in (b"p0", b"p1"):
        core.receiver.unreachable(peer)
    core.say(b"q0", a_hello(rank=0, incarnation="another-process", attempt=1), 1.0)

    assert core.sink.attempts == [1, 2]
    assert core.state.jobs["train"].attempt.reason == ""


def test_the_terms_are_told_after_each_hello_of_a_run_that_wants_them_and_when_they_change() -> None:
    core = Core()
    assert core.say(b"off", a_hello(job="other"), 0.0) == []

    replies = core.say(b"p0", a_hello(rollback="advise", world=1), 0.0)
    assert replies == [(b"p0", Terms(rollback="advise"))]
    assert core.pass_time(2.0) == []
    told = []
    for step in range(1, 6):
        core.say(b"p0", a_report(step, loss=float("nan")), 3.0)
        told += core.pass_time(3.0 + step)
    assert told == [(b"p0", Terms(rollback="advise", is_holding=True))], "once"


def test_holdings_that_come_before_the_daemon_knows_the_peer_are_not_lost() -> None:
    core = Core()
    held = Holdings(group="group-of-these-ranks")
    core.say(b"p0", held, 0.0)

    core.say(b"p0", a_hello(rollback="auto"), 0.1)

    assert core.state.jobs["train"].rollback.holdings == {0: held}


def test_a_plan_is_given_to_who_has_not_said_who_it_is() -> None:
    core = Core()

    ((peer, plan),) = core.say(
        b"somebody",
        PlanRequest(
            job="unheard-of",
        ),
        0.0,
    )

    assert peer == b"somebody"
    assert plan == Plan(job="unheard-of", reason="this daemon does not know the job")


def test_a_rank_that_claims_what_is_for_the_daemon_to_say_is_refused() -> None:
    core = Core()
    launched(core)

    ((_, refused),) = core.say(b"p0", Terms(rollback="auto"), 1.0)

    assert isinstance(refused, Refused)
    assert refused.reason == "type"


@pytest.mark.parametrize("decay", [1.0, 0.97])
def test_a_schedule_that_went_back_with_the_weights_was_not_reset(decay: float) -> None:
    """Steps go on counting after a rollback, while scheduler and rate are those of the snapshot."""
    core = Core()
    (hello,) = launched(core, world=1)

    def train(steps: range, taken_back: int, attempt: int) -> None:
        for step in steps:
            count = step - taken_back
            report = a_report(step, attempt=attempt, lr=(0.1 * decay**count,), num_scheduler_steps=count)
            core.say(b"p0", report, 1.0 + step / 100)

    train(range(1, 61), 0, attempt=0)
    went_back(core, hello, 60, 1.8)
    train(range(61, 71), 40, attempt=1)
    core.pass_time(9.0)

    job = core.state.jobs["train"]
    assert (job.num_attempts, job.latest_step) == (2, 70)
    assert [episode.rule for episode in job.episodes] == []
