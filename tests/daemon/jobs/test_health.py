"""A job's health in one word: of a run that is over, what was wrong with it at its end."""

import math

from caboose_wire import Bye
from support.ranks import a_hello, a_report
from support.recorder import Core


def a_run(losses: list[float]) -> Core:
    """A rank that reports these losses and leaves."""
    core = Core()
    core.say(b"0", a_hello(world=1), 0.0)
    for step, loss in enumerate(losses, 1):
        core.say(b"0", a_report(step, loss=loss), float(step))
        core.pass_time(float(step))
    return core


def end(core: Core, num_steps: int) -> str:
    core.say(b"0", Bye(step=num_steps), num_steps + 1.0)
    core.pass_time(num_steps + 2.0)
    core.pass_time(num_steps + 200.0)
    job = core.state.jobs["train"]
    assert job.incidents.open == []
    return job.health


def test_a_run_that_ended_with_nan_was_not_well() -> None:
    core = a_run([2.0] * 20 + [math.nan] * 5)
    assert core.state.jobs["train"].health == "critical"
    assert end(core, 25) == "critical"


def test_a_run_that_ended_well_is_ok() -> None:
    assert end(a_run([2.0 - 0.01 * i for i in range(30)]), 30) == "ok"


def test_what_an_earlier_attempt_ended_with_is_not_this_ones() -> None:
    core = a_run([2.0] * 20 + [math.nan] * 5)
    end(core, 25)
    core.say(b"1", a_hello(world=1, incarnation="another-process", launch="again"), 300.0)
    for step in range(1, 21):
        core.say(b"1", a_report(step, loss=2.0 - 0.01 * step), 300.0 + step)
        core.pass_time(300.0 + step)
    assert core.state.jobs["train"].num_attempts == 2
    assert core.state.jobs["train"].health == "ok"
    core.say(b"1", Bye(step=20), 330.0)
    core.pass_time(600.0)
    assert core.state.jobs["train"].health == "ok"
