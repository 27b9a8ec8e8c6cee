"""A daemon that cannot keep up blames no rank for messages that wait in its own mailbox."""

from caboose_daemon.rules import RULES
from support.ranks import a_hello, a_report
from support.recorder import Core

BEFORE, LATER = 102.0, 150.0


def a_job_of_two() -> Core:
    """Both ranks have reported step 1, and rank 0 step 2."""
    core = Core(rules=RULES)
    for rank in (0, 1):
        core.say(b"%d" % rank, a_hello(rank=rank), 100.0)
        core.say(b"%d" % rank, a_report(1), 100.5)
    core.pass_time(100.6)
    core.say(b"0", a_report(2), 101.5)
    return core


def test_a_step_is_not_incomplete_while_messages_wait() -> None:
    core = a_job_of_two()

    core.pipeline.advance(LATER, read_until=BEFORE)
    assert [summary.step for summary in core.sink.steps] == [1]

    core.say(b"1", a_report(2), LATER)
    core.pipeline.advance(LATER, read_until=LATER)
    attempt = core.state.jobs["train"].attempt
    assert attempt is not None
    assert [summary.step for summary in core.sink.steps] == [1, 2]
    assert attempt.aligner.num_incomplete == 0


def test_no_rank_is_silent_while_messages_wait() -> None:
    core = a_job_of_two()
    core.pipeline.advance(LATER, read_until=BEFORE)
    assert not core.sink.incidents


def test_a_rank_is_late_and_silent_once_all_is_read() -> None:
    core = a_job_of_two()
    for now in range(103, 150):
        core.pipeline.advance(float(now), read_until=float(now))
    attempt = core.state.jobs["train"].attempt
    assert attempt is not None
    assert attempt.aligner.num_incomplete == 1
    assert {incident.lead.rule for incident in core.sink.incidents} >= {"rank_silent"}
