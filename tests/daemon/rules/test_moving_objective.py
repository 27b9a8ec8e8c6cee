"""A loss that is not meant to fall: the rules that assume it abstain, the others judge."""

import pytest

from caboose_daemon.rules import RULES
from support.scenario import scenario


@pytest.mark.parametrize("objective", ["adversarial", "reinforcement"])
def test_a_loss_that_jumps_and_climbs_is_nothing_where_none_is_meant_to_fall(objective: str) -> None:
    def story(aim: str) -> list[str]:
        told = scenario(ranks=2, noise=0.02, facts={"objective": aim}).healthy(60)
        told.loss_spike(at=61, height=9.0, steps=3).losses(*(3.0 + 0.2 * step for step in range(200)))
        return sorted({episode.rule for episode in told.episodes})

    assert {"loss_spike", "divergence"} <= set(story("supervised"))
    assert story(objective) == []


def test_a_number_that_is_not_finite_is_found_all_the_same_and_who_abstains_is_shown() -> None:
    story = scenario(ranks=2, facts={"objective": "reinforcement"}).nan_loss(0, at=41, steps=5)

    assert story.only("non_finite").is_open
    assert story.job.attempt is not None
    abstaining = story.job.attempt.engine.abstaining(story.job.visible)
    assert {rule.name for rule in RULES if rule.assumes_falling_loss} <= abstaining.keys()
    assert "falling_loss" in abstaining["divergence"]


def test_a_gradient_that_jumps_with_its_target_is_a_note_and_one_that_stays_high_is_not() -> None:
    def story(steps: int, height: float) -> str:
        told = scenario(ranks=1, noise=0.02, facts={"objective": "reinforcement"}).healthy(60)
        told.loss_spike(at=61, height=1.5, steps=steps, grad_height=height)
        return str(told.only("gradient_explosion").severity)

    assert story(8, 95.0) == "info", "a copied target network"
    assert story(60, 20.0) == "warning"
    assert story(30, 300.0) == "warning", "a norm alone never pages there: so jumps a healthy run at its first target"


def test_a_policy_whose_loss_is_exactly_zero_expected_what_it_got() -> None:
    def rules(aim: str) -> set[str]:
        told = scenario(ranks=1, facts={"objective": aim}).healthy(60).zero_loss(at=61, steps=5)
        return {episode.rule for episode in told.episodes}

    assert "non_finite" in rules("supervised")
    assert "non_finite" not in rules("reinforcement")
