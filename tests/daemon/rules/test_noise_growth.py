"""noise_growth: the gradient noise scale over time, from the norms that ranks report."""

import functools
import math
from typing import Any

from caboose_wire import Event
from support.ranks import EVERYTHING
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="noise_growth")
RANKS = 4


def a_job(**settings: Any) -> Scenario:
    return scenario(ranks=RANKS, visible=EVERYTHING, **settings).healthy(40)


def noisy(story: Scenario, ratio: float, samples: int = 25, scatter: float = 0.02) -> Scenario:
    """Sampled steps of a job whose noise scale is `ratio` batches."""
    for _ in range(samples):
        some = float(story.random.normal(1.0, scatter))
        whole = math.sqrt(1.0 + ratio)  # signal 1, noise of the whole batch `ratio`
        own = math.sqrt(1.0 + RANKS * ratio * some)
        norms = [whole / 2.0] * 4
        story.plays(1, is_sampled=True, local_grad_norm=own, arrays={"grad_norm": _floats(norms)}, num_samples=8)
    return story


def _floats(values: list[float]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.float32)


def test_is_silent_up_to_the_thresholds_and_an_info_above_them() -> None:
    assert noisy(noisy(a_job(), 1.0), 3.5, 80).is_silent
    assert noisy(noisy(a_job(), 0.1), 1.8, 80).is_silent

    episode = noisy(noisy(a_job(), 1.0), 6.0, 80).only("noise_growth")
    assert episode.severity == "info"
    assert lacks(episode.last.summary, "the batch of 32 samples", "a larger batch would pay") == []


def test_is_silent_on_a_large_scale_that_does_not_grow() -> None:
    assert noisy(a_job(), 20.0, 150).is_silent


def test_is_silent_near_the_end() -> None:
    assert noisy(noisy(a_job(config={"total_steps": 80}), 1.0), 20.0, 80).is_silent


def test_starts_over_after_a_declared_ramp() -> None:
    story = noisy(noisy(a_job(), 1.0), 6.0, 80)
    assert story.only("noise_growth").is_open

    story.says(0, Event(attempt=0, step=story.step, time=story.now, kind="batch_ramp"))
    assert not noisy(story, 3.0, 60).only("noise_growth").is_open


def test_a_long_noisy_healthy_run_is_silent() -> None:
    assert noisy(a_job(), 1.0, 400, scatter=0.3).is_silent


def test_abstains_on_one_rank_and_without_local_norms() -> None:
    assert a_job().plays(100, is_sampled=True).is_silent
    assert noisy(scenario(ranks=1, visible=EVERYTHING).healthy(40), 1.0, 100).is_silent
