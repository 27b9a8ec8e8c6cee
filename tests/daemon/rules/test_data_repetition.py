"""data_repetition: stairs at the borders of epochs, told apart from what else ends with an epoch."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from caboose_wire import Batch, Event
from support.scenario import Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="data_repetition")
STEPS = 80


def epochs(
    story: Scenario,
    loss: Callable[[int, float], float],
    num: int = 4,
    *,
    lr: Callable[[int], float] = lambda epoch: 1e-3,
    steps: int = STEPS,
    noise: float = 0.01,
) -> Scenario:
    """`loss` is asked for each epoch and the share of it that is over."""
    for epoch in range(num):
        for i in range(steps):
            value = loss(epoch, i / steps) * (1.0 + noise * float(story.random.standard_normal()))
            story.plays(1, loss=value, batch=Batch(index=i, epoch=epoch), lr=(lr(epoch),))
    return story


def stairs(height: float) -> Callable[[int, float], float]:
    return lambda epoch, _: 3.0 * (1.0 - height) ** epoch


def test_is_silent_up_to_the_threshold_and_an_info_above_it() -> None:
    assert epochs(scenario(ranks=1), stairs(0.025), noise=0.002).is_silent

    episode = epochs(scenario(ranks=1), stairs(0.04), noise=0.002).only("data_repetition")
    assert episode.severity == "info"
    assert lacks(episode.first.summary, "4 %", "epoch 2 to 3") == []


def test_one_border_is_no_staircase() -> None:
    assert epochs(scenario(ranks=1), stairs(0.2), 2).is_silent


def test_is_a_warning_once_validation_has_got_worse() -> None:
    story = scenario(ranks=1)
    for epoch, value in enumerate((2.0, 2.1, 2.2, 2.3)):
        story.says(0, Event(attempt=0, step=story.step, time=story.now, kind="validation", fields={"loss": value}))
        for i in range(STEPS):
            story.plays(1, loss=3.0 * 0.8**epoch, batch=Batch(index=i, epoch=epoch))

    assert story.only("data_repetition").severity == "warning"


@pytest.mark.parametrize(
    "loss",
    [
        lambda epoch, share: 3.0 / (1.0 + epoch + share),
        lambda epoch, share: 1.0 + 2.0 * math.exp(-2.0 * (epoch + share)),
        lambda epoch, share: 2.0,
        lambda epoch, share: 2.0 + 0.5 * share,
        lambda epoch, share: 2.0 - 0.05 * epoch + 0.5 * share,
    ],
    ids=[
        "falls as it should",
        "falls fast",
        "flat",
        "data in a fixed order",
        "data in a fixed order, and learned from",
    ],
)
def test_is_silent_on_curves_without_a_step(loss: Callable[[int, float], float]) -> None:
    assert epochs(scenario(ranks=1), loss, 6).is_silent


def test_is_silent_where_the_learning_rate_changes_at_the_border() -> None:
    assert epochs(scenario(ranks=1), stairs(0.2), lr=lambda epoch: 1e-3 * 0.5**epoch).is_silent


def test_is_silent_on_a_step_that_noise_hides() -> None:
    assert epochs(scenario(ranks=1), stairs(0.04), noise=0.5).is_silent


def test_ends_with_the_stairs() -> None:
    story = epochs(scenario(ranks=1), lambda epoch, _: 3.0 * 0.8 ** min(epoch, 4), 8)

    assert story.only("data_repetition").last.state == "resolved"


def test_a_long_noisy_healthy_run_is_silent() -> None:
    story = epochs(scenario(ranks=1), lambda epoch, share: 1.0 + 2.0 * (1.0 + epoch + share) ** -0.5, 30, noise=0.1)

    assert story.is_silent


def test_abstains_without_a_watched_loader_and_in_short_epochs() -> None:
    story: Any = scenario(ranks=1)
    for epoch in range(4):
        story.losses(*[3.0 * 0.8**epoch] * STEPS)
    assert story.is_silent
    assert epochs(scenario(ranks=1), stairs(0.2), 8, steps=20).is_silent
