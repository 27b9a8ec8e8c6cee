"""Numbers among a run's settings: what cannot be what its name says is as good as none, for rules and causes."""

import pytest

from caboose_daemon.steps.settings import number
from caboose_wire.fields import Scalar
from support.scenario import scenario


@pytest.mark.parametrize("junk", [1, 0, -3, 1.5, True, "ten", float("nan"), float("inf"), None])
def test_a_number_of_classes_that_leaves_no_choice_is_none(junk: Scalar) -> None:
    assert number("num_classes", {"num_classes": junk}) is None
    assert number("num_classes", {"num_classes": junk}, {"num_classes": 10}) == 10.0, "the agent may know better"


def test_other_settings_may_be_small_and_those_that_count_are_one_at_least() -> None:
    assert number("num_classes", {"num_classes": 2}) == 2.0
    assert number("weight_decay", {"weight_decay": 0.0}) == 0.0
    assert number("total_steps", {"total_steps": -1}) is None
    assert number("batch_size", {}, {"batch_size": 1}) == 1.0


@pytest.mark.parametrize("junk", [1, 0, -3, "ten"])
def test_no_rule_fails_on_junk_in_the_users_configuration(junk: Scalar) -> None:
    told = {"num_classes": junk, "total_steps": junk, "batch_size": junk, "dataset_length": junk}

    story = scenario(ranks=1, config=told, noise=0.01).healthy(620)

    assert {name: stats.failures for name, stats in story.core.state.rule_stats.items() if stats.failures} == {}
    assert "not_learning" in {member.rule for incident in story.job.incidents for member in incident.episodes}
