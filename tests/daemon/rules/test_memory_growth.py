"""memory_growth: a straight rise, told apart from what rises once, at the start, or in jumps."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="memory_growth")
MB = 1_000_000
EVERY = 10


def run(used: Callable[[int], float], num_samples: int = 20, kind: str = "host_bytes", **settings: Any) -> Scenario:
    """Samples every ten steps; `used` is asked for the megabytes at each of them."""
    story = scenario(ranks=1, **settings)
    for i in range(num_samples):
        story.plays(1, is_sampled=True, **{kind: int(used(i) * MB)})
        story.plays(EVERY - 1)
    return story


def test_a_straight_rise_is_a_warning_with_rate_and_end() -> None:
    story = run(lambda i: 400 + 5 * i, facts={"host_memory_bytes": 4_000 * MB, "ranks_per_host": 2})
    episode = story.only("memory_growth")
    assert episode.severity == "warning"
    assert (
        lacks(episode.last.summary, "host memory", "500 kB at every step", "495 MB", "full in about 3,000 steps") == []
    )


def test_a_leak_that_begins_late_is_found_from_where_it_begins() -> None:
    episode = run(lambda i: 400 + 6 * max(0, i - 40), 80).only("memory_growth")
    assert 300 <= episode.first.onset_step <= 800


def test_of_the_device_too() -> None:
    assert "device memory" in run(lambda i: 400 + 5 * i, kind="device_bytes").only("memory_growth").last.summary


@pytest.mark.parametrize(
    "used",
    [
        lambda i: 400,
        lambda i: 400 + 100 * (i > 0),
        lambda i: 400 + 100 * (i >= 10),
        lambda i: 400 + 50 * (1 - 0.5**i),
        lambda i: 400 + 1.0 * i,
        lambda i: 400 + 40 * (i % 2),
    ],
    ids=["flat", "start-up", "once", "fills", "little", "to and fro"],
)
def test_is_silent_where_it_is_not_steady_or_small(used: Callable[[int], float]) -> None:
    assert run(used, 40).is_silent


def test_ends_when_the_memory_stays() -> None:
    assert not run(lambda i: 400 + 5 * min(i, 20), 80).only("memory_growth").is_open
