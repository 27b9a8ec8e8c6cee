"""What goes wrong on one rank ends a tool on all of them, with that rank's words, and none waits for another."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.training import JOBS, finish, training

pytestmark = pytest.mark.slow


@functools.cache
def ranks() -> list[dict[str, Any]]:
    """What each rank saw; one launch does everything."""
    out = Path(tempfile.mkdtemp(prefix="caboose-stumbling-"))
    with training(out, env={}, script=JOBS / "stumbling.py") as job:
        return finish(job, out, timeout=120)


@pytest.mark.parametrize("scenario", ["third batch", "fsdp2, third batch"])
def test_a_batch_that_one_rank_cannot_take_fails_the_check_and_the_others_go_on(scenario: str) -> None:
    first, second = (rank[scenario] for rank in ranks())
    assert first["chance_level"] == ["fail", "on rank 1: KeyError: 'labels'"]
    assert second["chance_level"] == ["fail", "KeyError: 'labels'"]
    assert first["loss_falls"][0] == first["overfits"][0] == "pass"


@pytest.mark.parametrize("scenario", ["fsdp2, before the model", "fsdp2, behind the model"])
def test_a_sharded_model_does_not_wait_for_a_rank_that_raised(scenario: str) -> None:
    assert [rank[scenario]["output_shape"][1] for rank in ranks()] == [
        "no step can be made: on rank 1: KeyError: 'labels'",
        "no step can be made: KeyError: 'labels'",
    ]


@pytest.mark.parametrize("tool", ["overfit_one_batch", "find_lr", "sharpness"])
def test_data_that_end_on_one_rank_end_the_tool_on_all(tool: str) -> None:
    assert [rank[tool] for rank in ranks()] == [
        "FailedElsewhere: on rank 1: OSError: disk is gone",
        "OSError: disk is gone",
    ]
