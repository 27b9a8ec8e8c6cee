"""How often peers may introduce themselves: floods are refused, honest jobs begin."""

from caboose_daemon.ingest.rates import HELLO_BURST, JOB_BURST, JOB_SECONDS, Allowance, Introductions
from caboose_wire import Refused, encode
from support.ranks import a_hello, a_report
from support.recorder import Core


def test_an_allowance_is_spent_and_comes_back() -> None:
    allowance = Allowance(2, 1.0, 0.0)

    assert [allowance.take(0.0) for _ in range(3)] == [True, True, False]
    assert not allowance.take(0.5)
    assert allowance.take(1.5)
    assert [allowance.take(100.0) for _ in range(3)] == [True, True, False], "never more than its burst"


def test_a_connection_that_introduces_itself_without_end_is_refused_and_another_is_not() -> None:
    core = Core()
    for number in range(HELLO_BURST + 30):
        core.say(b"flood", a_hello(job=f"job-{number}", world=1, incarnation=f"incarnation-{number}"), 0.0)

    assert core.state.num_refused == {"rate": 30}
    assert len(core.state.jobs) == HELLO_BURST
    core.say(b"honest", a_hello(job="honest", world=1, incarnation="incarnation-h"), 0.0)
    assert "honest" in core.state.jobs


def test_a_flood_over_many_connections_is_limited_and_an_honest_job_begins_a_little_later() -> None:
    core = Core()
    for number in range(JOB_BURST + 50):
        core.say(b"%d" % number, a_hello(job=f"job-{number}", world=1, incarnation=f"incarnation-{number}"), 0.0)
    assert core.state.num_refused == {"rate": 50}

    hello = a_hello(job="honest", world=1, incarnation="incarnation-h")
    ((_, refused),) = core.say(b"honest", hello, 0.0)
    assert isinstance(refused, Refused)
    assert refused.reason == "rate"
    ((_, asked),) = core.say(b"honest", a_report(1), 0.0)
    assert type(asked).__name__ == "HelloRequest"
    core.say(b"honest", hello, 2 * JOB_SECONDS)
    core.pass_time(2 * JOB_SECONDS)

    assert [step.step for step in core.state.jobs["honest"].recent] == [1], "its report was kept meanwhile"


def test_ranks_of_a_large_job_are_no_flood() -> None:
    core = Core()
    for rank in range(2000):
        core.say(b"%d" % rank, a_hello(rank=rank, world=2000), 0.0)

    assert not core.state.num_refused


def test_a_refused_hello_is_not_decoded() -> None:
    core = Core()
    frames = encode(a_hello(rank=0, world=1))
    for _ in range(HELLO_BURST):
        core.receiver.handle(b"flood", frames, 0.0)

    core.receiver.handle(b"flood", [frames[0], b"not msgpack"], 0.0)

    assert core.state.num_refused == {"rate": 1}


def test_what_is_known_of_peers_is_bounded() -> None:
    introductions = Introductions(100)

    assert all(introductions.allow_hello(b"%d" % number, 0.001 * number) for number in range(5000))
    assert introductions.num_known <= 100
