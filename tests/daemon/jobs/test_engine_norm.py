"""An engine that shows no gradients but computes the norm of them all (DeepSpeed ZeRO): the norm is the job's."""

from typing import Any

import msgspec
import pytest

from caboose_wire import Clipping
from support.ranks import LAYERS
from support.scenario import Scenario, scenario

HIDDEN = tuple(msgspec.structs.replace(layer, placement="unknown") for layer in LAYERS)


def partitioned(*visible: str) -> Scenario:
    return scenario(ranks=2, layers=HIDDEN, visible=("loss", "lr", "clipping", *visible))


def of_norm(norm: float) -> dict[str, Any]:
    return {"arrays": {}, "clipping": Clipping(max_norm=1.0, total_norm=norm)}


def test_the_norm_is_the_jobs_and_is_judged() -> None:
    story = partitioned("gradient_norm").plays(100, **of_norm(2.0)).plays(12, **of_norm(90.0))

    assert story.job.recent[-1].grad_norm == 90.0
    assert story.only("gradient_explosion").severity == "critical"


@pytest.mark.parametrize("visible", [(), ("gradients",)])
def test_another_clippers_norm_may_be_of_this_ranks_shards_alone(visible: tuple[str, ...]) -> None:
    story = partitioned(*visible).plays(100, **of_norm(2.0)).plays(12, **of_norm(90.0))

    assert story.job.recent[-1].grad_norm is None
    assert story.is_silent


def test_rules_about_single_layers_abstain_and_the_one_about_the_norm_does_not() -> None:
    story = partitioned("gradient_norm").plays(3, **of_norm(2.0))

    assert story.job.attempt is not None
    abstaining = story.job.attempt.engine.abstaining(story.job.visible)
    assert "gradient_explosion" not in abstaining
    assert abstaining["gradient_vanishing"] == ["gradients"]
