"""generalisation_gap: training far better than validation, in loss or accuracy, and no longer closing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from support.curves import Watch, falling, noisy, views
from support.scenario import NAN
from support.summaries import lacks

EVERY = 20


def watch(
    losses: Sequence[float], *, train: float = 0.05, accuracy: Sequence[float] | None = None, **about: Any
) -> Watch:
    """Evaluations every twenty steps of a training loss that falls from 4 at once."""
    steps = EVERY * (len(losses) + 1)
    at = {EVERY * (i + 1): {"loss": loss} for i, loss in enumerate(losses)}
    for i, score in enumerate(accuracy or ()):
        at[EVERY * (i + 1)]["accuracy"] = score
    return Watch("generalisation_gap").over(views(noisy(falling(steps, 4.0, train, 5), 0.02), validations=at, **about))


def standing(level: float, num: int = 8) -> list[float]:
    return [level + 0.001 * (i % 3) for i in range(num)]


def test_a_validation_loss_far_above_the_training_loss_is_reported_once_it_stands() -> None:
    episode = watch(standing(1.2)).only()
    assert (episode.severity, episode.is_open) == ("warning", True)
    assert episode.first.step == 6 * EVERY, "the average of the training loss lags behind at first"
    assert lacks(episode.first.summary, "1.20", "x the training loss", "no better for 4 evaluations") == []


def test_a_gap_while_validation_still_improves_is_none() -> None:
    assert watch([1.2 * 0.97**i for i in range(12)]).is_silent


@pytest.mark.parametrize(("train", "loss"), [(0.5, 0.95), (1.0, 1.9), (0.002, 0.3)])
def test_less_than_twice_the_loss_or_little_of_what_was_to_learn_is_none(train: float, loss: float) -> None:
    assert watch(standing(loss), train=train).is_silent


def test_where_classes_are_known_chance_is_what_was_to_learn() -> None:
    tuned = watch(standing(0.9), train=0.05, config={"num_classes": 2})
    assert tuned.only().severity == "warning"
    assert watch(standing(0.9), train=0.05, config={"num_classes": 100}).is_silent


def test_a_gap_in_loss_alone_is_a_note_unless_it_is_very_large() -> None:
    assert watch(standing(1.2), train=0.3).only().severity == "info"
    assert watch(standing(1.2), train=0.3, facts={"num_parameters": 9}).only().severity == "info"
    assert watch(standing(1.2), train=0.1).only().severity == "warning"


def test_the_loss_of_pairs_has_another_level_in_larger_batches() -> None:
    assert watch(standing(1.2), facts={"loss_of_pairs": True}).is_silent
    accuracy = {"train": 0.05, "accuracy": [0.6] * 8, "metrics": {"accuracy": np.full(200, 0.99)}}
    assert watch(standing(1.2), facts={"loss_of_pairs": True}, **accuracy).only().severity == "warning"


def test_twenty_points_of_accuracy_are_a_gap() -> None:
    trained = {"accuracy": np.full(200, 0.99)}
    assert watch(standing(0.3), train=0.2, accuracy=[0.82] * 8, metrics=trained).is_silent
    episode = watch(standing(0.3), train=0.2, accuracy=[0.70] * 8, metrics=trained).only()
    assert lacks(episode.first.summary, "accuracy 70 % against 99 % in training") == []
    assert watch(standing(0.3), train=0.2, accuracy=[0.60 + 0.02 * i for i in range(8)], metrics=trained).is_silent


def test_an_accuracy_of_training_beside_the_validation_counts_too() -> None:
    at = {EVERY * (i + 1): {"loss": 0.3, "val_acc": 70.0, "train_acc": 99.0} for i in range(8)}
    losses = noisy(falling(200, 4.0, 0.2, 5), 0.02)
    assert Watch("generalisation_gap").over(views(losses, validations=at)).only().severity == "warning"


def test_it_ends_when_the_gap_is_closed_and_lasts_through_a_restart() -> None:
    losses = [*standing(1.2), *[0.08] * 3]
    at = {EVERY * (i + 1): loss for i, loss in enumerate(losses)}
    run = views(noisy(falling(EVERY * 12, 4.0, 0.05, 5), 0.02), validations=at)
    watched = Watch("generalisation_gap").over(run, steps=7 * EVERY)
    assert watched.only().is_open
    watched.restarted().over(run, steps=EVERY)
    assert watched.only().is_open
    assert watched.over(run).only().last.state == "resolved"


def test_a_long_healthy_run_is_silent() -> None:
    scatter = np.random.default_rng(4).normal(1.0, 0.03, 200)
    losses = [float(1.1 * scatter[i] * (1.0 + 3.0 * 0.95**i)) for i in range(200)]
    assert watch(losses, train=1.0).is_silent


def test_abstains_without_validations() -> None:
    assert watch([]).is_silent
    assert watch([NAN] * 8).is_silent
