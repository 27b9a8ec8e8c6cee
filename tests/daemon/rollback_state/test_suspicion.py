"""A loss that leaves its level pauses the snapshots before a rule is sure; noise does not, a new level not for long."""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from caboose_daemon.rollback_state.loss_level import SMOOTH
from caboose_daemon.rollback_state.suspicion import AT_MOST, EVERY, Suspicion
from caboose_daemon.steps.columns import StepSummary

LEVEL, NOISE = 2.0, 0.02


def reported(step: int, loss: float) -> StepSummary:
    return StepSummary(
        attempt=1,
        step=step,
        time=float(step),
        loss=loss,
        loss_min=loss,
        loss_max=loss,
        grad_norm=None,
        lr=None,
        step_seconds=1.0,
        data_seconds=None,
        agent_seconds=None,
        num_ranks=1,
    )


def paused(
    heights: Sequence[float], *, seed: int = 0, noise: float = NOISE, until: Mapping[int, int] | None = None
) -> list[int]:
    """The steps of a run with these heights above its level at which snapshots are paused."""
    values = LEVEL + np.asarray(heights) + noise * np.random.default_rng(seed).standard_normal(len(heights))
    suspicion, recent, found = Suspicion(), deque[StepSummary](maxlen=2048), []
    for step, loss in enumerate(values.tolist(), start=1):
        recent.append(reported(step, loss))
        if suspicion.observe(recent, 1, until or {}):
            found.append(step)
    return found


def test_a_slow_rise_is_suspected_long_before_it_is_high() -> None:
    heights = [*[0.0] * 300, *(LEVEL * 0.002 * np.arange(100))]

    found = paused(heights)

    assert 300 < found[0] < 330
    assert heights[found[0]] < 0.1 * LEVEL
    assert found == list(range(found[0], 401))


@pytest.mark.parametrize("seed", range(8))
def test_noise_and_single_steps_that_stand_out_are_not(seed: int) -> None:
    odd = np.zeros(1500)
    odd[400:1500:130] = 5.0

    assert len(paused(odd, seed=seed, noise=0.3)) < 0.03 * len(odd)


def test_a_new_level_pauses_them_only_for_a_while() -> None:
    found = paused([*[0.0] * 300, *[0.5] * 400])

    assert found[0] <= 300 + 2 * SMOOTH + EVERY
    assert found[-1] <= 300 + AT_MOST + SMOOTH


def test_once_it_was_back_it_can_be_suspected_again() -> None:
    up = [0.5] * 60

    found = paused([*[0.0] * 300, *up, *[0.0] * 100, *up])

    assert 300 < found[0] < 360
    assert found[-1] > 460
    assert not set(range(380, 460)) & set(found)
