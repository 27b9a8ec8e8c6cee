"""The progress of a run whose beginning is not known: the share that is lost is the mean over what it may be."""

import math

import numpy as np
import pytest

from caboose_daemon.rollback_state.loss_level import Losses, LossLevel, progress
from caboose_daemon.rollback_state.progress import Progress
from caboose_daemon.rollback_state.run_start import RunStart

LEVEL = LossLevel(0.1, 0.001, 100)


def resumed(peak: float, start: float | None = None) -> Progress:
    """Of a run that was resumed long after its beginning."""
    values = np.full(100, LEVEL.level)
    losses = Losses(np.arange(5001, 5101, dtype=np.int64), values, np.isnan(values))
    return progress(losses, 5101, LEVEL, start, peak)


def test_of_a_known_progress_a_height_loses_its_part_and_never_more_than_all() -> None:
    assert Progress.known(2.0).share(np.array([-1.0, 0.0, 0.5, 2.0, 9.0])) == pytest.approx([0.0, 0.0, 0.25, 1.0, 1.0])


def test_of_an_unknown_one_it_loses_the_mean_over_the_range() -> None:
    heights = np.array([0.0, 0.05, 0.1, 0.7, 3.0, 15.0, 40.0])
    each = np.geomspace(0.1, 15.0, 100_001)

    expected = np.minimum(1.0, heights[:, None] / each[None, :]).mean(axis=1)

    assert Progress(0.1, 15.0).share(heights) == pytest.approx(expected, abs=1e-4)


def test_a_run_whose_start_was_not_seen_may_have_improved_by_more_than_the_size_of_its_loss() -> None:
    found = resumed(5.0)

    assert (found.least, found.most) == (0.1, 15.0)
    assert found.share(0.1) < 0.25, "a loss twice as high as its level is no disaster"
    assert found.share(5.0) < 1.0
    assert resumed(0.01) == Progress.known(0.1)


def test_a_start_or_a_chance_level_that_is_known_decides() -> None:
    assert resumed(5.0, start=2.6) == Progress.known(2.5)
    assert resumed(5.0, start=0.1) == Progress.known(0.1), "it has not improved: its own size counts"
    assert RunStart().loss() is None
    assert RunStart().loss(num_classes=10) == pytest.approx(math.log(10)), "chance is known without a first loss"
