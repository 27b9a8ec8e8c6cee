"""How a job ended, by what its ranks sent last."""

import pytest

from support.scenario import Scenario, scenario


def a_job() -> Scenario:
    return scenario(ranks=4).healthy(30)


def test_a_job_is_cancelled_if_a_signal_terminated_every_rank() -> None:
    story = a_job().leaves(0, 1, 2, signal="SIGTERM")
    assert story.job.state == "running"

    assert story.leaves(3, signal="SIGTERM").job.state == "cancelled"


@pytest.mark.parametrize("error", ["", "ValueError: bad shard"])
def test_a_job_has_crashed_if_a_rank_ended_before_the_others_were_terminated(error: str) -> None:
    story = a_job().leaves(1, error=error).wait(1.0).leaves(0, 2, 3, signal="SIGTERM")

    assert story.job.state == "crashed"


def test_a_job_has_crashed_if_a_connection_closed_before_the_others_were_terminated() -> None:
    story = a_job().falls_silent(1).leaves(0, 2, 3, signal="SIGTERM")
    assert story.job.state == "running", "it may only be late"
    assert story.job.attempt is not None

    story.job.attempt.members[1].is_gone = True

    assert story.job.state == "crashed"


def test_a_job_whose_ranks_are_all_gone_without_a_bye_is_lost() -> None:
    assert a_job().falls_silent(0, 1, 2, 3).wait(4000.0).job.state == "lost"


def test_a_job_whose_ranks_all_left_has_ended() -> None:
    assert a_job().leaves(0, 1, 2, 3).wait(5.0).job.state == "ended"
