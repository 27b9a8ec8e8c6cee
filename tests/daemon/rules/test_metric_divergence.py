"""metric_divergence: four ways in which loss and metric diverge, and evaluations that only seem to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from support.curves import Watch, falling, noisy, views
from support.scenario import NAN
from support.summaries import lacks

EVERY = 20


def watch(
    losses: Sequence[float],
    scores: Sequence[float] | None = None,
    *,
    name: str = "accuracy",
    thresholds: dict[str, object] | None = None,
    **about: object,
) -> Watch:
    """Evaluations every twenty steps, with a score beside the loss."""
    given = [{"loss": value} for value in losses]
    if scores is not None:
        given = [{"loss": value, name: score} for value, score in zip(losses, scores, strict=True)]
    at = {EVERY * (i + 1): values for i, values in enumerate(given)}
    train = noisy(falling(EVERY * (len(losses) + 1)), 0.02)
    return Watch("metric_divergence", **(thresholds or {})).over(views(train, validations=at, **about))


DOWN = [2.0, 1.5, 1.2, 1.0]
UP = [0.4, 0.5, 0.6, 0.65]


# The loss rises while the metric holds


def test_a_loss_that_rises_while_accuracy_holds_is_overconfidence() -> None:
    assert watch([*DOWN, 1.09, 1.09, 1.08], [*UP, 0.65, 0.65, 0.65]).is_silent
    assert watch([*DOWN, 1.22, 1.3], [*UP, 0.65, 0.65]).is_silent, "two evaluations are too few"

    episode = watch([*DOWN, 1.22, 1.3, 1.4], [*UP, 0.65, 0.65, 0.65]).only()
    assert (episode.severity, episode.first.step) == ("warning", 7 * EVERY)
    assert episode.first.values["calibration"] == 1
    assert lacks(episode.first.summary, "from 1 to 1.4", "0.65") == []


def test_a_loss_that_rises_while_accuracy_falls_is_another_rules() -> None:
    assert watch([*DOWN, 1.2, 1.4, 1.6], [*UP, 0.6, 0.55, 0.5]).is_silent


# Training labels that are noise


def of_labels(train: Sequence[float], losses: Sequence[float], *, score: float = 0.95, dropout: str = "0") -> Watch:
    at = {EVERY * (i + 1): {"loss": value + 0.001 * i, "accuracy": score} for i, value in enumerate(losses)}
    about: dict[str, Any] = {"config": {"num_classes": 8}, "facts": {"num_parameters": 9, "dropout": dropout}}
    return Watch("metric_divergence").over(views(noisy(train, 0.1), validations=at, **about))


def test_training_that_is_answered_far_worse_than_evaluations_has_wrong_labels() -> None:
    stands = np.full(200, 1.8)

    episode = of_labels(stands, [1.2] * 8).only()
    assert episode.severity == "warning"
    assert episode.first.values["noisy"] == 1
    assert of_labels(stands, [1.2] * 8, dropout="0.5").is_silent, "dropout makes training samples harder"
    assert of_labels(stands, [1.78] * 8).is_silent, "a model that is right and unsure is so in both"
    assert of_labels(stands, [1.6] * 8, score=0.4).is_silent


def test_a_training_loss_that_only_lags_behind_is_no_noise() -> None:
    assert of_labels(falling(200, 2.1, 0.3, 60), [1.5, 1.2, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]).is_silent


# The loss falls while the metric stands still


def test_a_loss_that_falls_while_accuracy_stands_still_is_told() -> None:
    falls = [1.0, 0.9, 0.69, 0.65, 0.6]

    assert watch(falls[:-1], [0.5] * 4).is_silent
    episode = watch(falls, [0.5] * 5).only()
    assert episode.first.values["stalled"] == 1
    assert lacks(episode.first.summary, "to 0.6", "at 0.5") == []


def test_a_metric_that_moves_a_little_each_time_does_not_stand_still() -> None:
    assert watch([1.0, 0.9, 0.8, 0.7, 0.6, 0.5], [0.50, 0.51, 0.52, 0.53, 0.54, 0.55]).is_silent


def test_a_metric_at_its_ceiling_has_nowhere_to_go() -> None:
    assert watch([0.5, 0.4, 0.3, 0.2, 0.1, 0.05], [0.99] * 6).is_silent


def test_a_loss_that_rises_where_all_answers_are_right_is_no_overconfidence() -> None:
    rising = [0.01, 0.004, 0.002, 0.003, 0.004, 0.005, 0.006]
    assert watch(rising, [0.99, *[1.0] * 6]).is_silent
    assert not watch(rising, [0.97, *[0.98] * 6]).is_silent


# The same two of training


def of_training(loss: Sequence[float], accuracy: Sequence[float], **about: Any) -> Watch:
    run = views(noisy(loss, 0.02), metrics={"accuracy": noisy(accuracy, 0.02, seed=1)}, **about)
    return Watch("metric_divergence").over(run)


def test_a_training_loss_that_falls_while_training_accuracy_stays_is_reported() -> None:
    episode = of_training(falling(900, 2.0, 0.8, 300), np.full(900, 0.5)).only()
    assert (episode.severity, episode.first.values["train_stalled"]) == ("warning", 1)
    assert lacks(episode.first.summary, "training accuracy 0.") == []
    assert of_training(falling(900, 2.0, 0.8, 300), 0.9 - 0.5 * np.exp(-np.arange(900) / 300)).is_silent
    assert of_training(falling(900, 0.1, 0.01, 300), np.full(900, 0.99)).is_silent


def test_a_training_accuracy_of_a_guess_with_a_good_loss_is_a_wrong_metric() -> None:
    classes = {"config": {"num_classes": 10}}
    episode = of_training(falling(900, 2.3, 0.3, 40), np.full(900, 0.1), **classes).episodes[0]
    assert "train_chance" in episode.last.values
    assert of_training(np.full(900, 2.3), np.full(900, 0.1), **classes).is_silent


# The loss is exactly the same


def test_a_loss_that_is_exactly_the_same_four_times_is_told() -> None:
    assert watch([1.5, 1.25, 1.25, 1.25]).is_silent

    episode = watch([1.5, 1.25, 1.25, 1.25, 1.25]).only()
    assert episode.first.values["equal"] == 1
    assert lacks(episode.first.summary, "exactly 1.25 in 4 evaluations") == []


def test_losses_of_two_decimals_on_a_plateau_are_no_cached_ones() -> None:
    rounded = [2.31, 2.05, 1.92, 1.88, 1.86, *[1.85] * 5, 1.84, *[1.85] * 9]
    train = noisy(falling(EVERY * 21, 4.0, 1.8, 30), 0.02)
    at = {EVERY * (i + 1): value for i, value in enumerate(rounded)}
    assert Watch("metric_divergence").over(views(train, validations=at)).is_silent
    finer = {step: value + 1e-5 for step, value in at.items()}
    assert not Watch("metric_divergence").over(views(train, validations=finer)).is_silent

    learns = noisy(falling(EVERY * 21, 4.0, 0.2, 150), 0.02)
    episode = Watch("metric_divergence").over(views(learns, validations=at)).episodes[0]
    assert episode.first.values["equal"] == 1, "the weights moved all the while"


def test_losses_that_are_nearly_the_same_are_evaluated() -> None:
    assert watch([1.25 + 1e-6 * i for i in range(20)]).is_silent


# The metric is at chance


def test_a_metric_at_chance_beside_a_good_loss_is_a_bug_of_the_metric() -> None:
    good, chance = [0.9, 0.7, 0.61, 0.6], [0.1, 0.11, 0.1, 0.09]

    episode = watch(good, chance, config={"num_classes": 10}).only()
    assert (episode.first.values["chance"], episode.first.values["loss"]) == (1, 0.61)
    assert watch(good, [0.13, 0.14, 0.15, 0.16], config={"num_classes": 10}).is_silent
    assert watch([1.3, 1.25, 1.22, 1.2], chance, config={"num_classes": 10}).is_silent
    assert watch(good, chance).is_silent, "what chance is nobody said"


# Thresholds


def test_its_thresholds_can_be_configured() -> None:
    rising = ([*DOWN, 1.22, 1.3, 1.4], [*UP, 0.65, 0.65, 0.65])

    assert watch(*rising, thresholds={"rise": 0.5}).is_silent
    assert watch(*rising, thresholds={"evaluations": 4}).is_silent
    assert watch([1.0, 0.9, 0.69, 0.65, 0.6], [0.5] * 5, thresholds={"fall": 0.5}).is_silent
    assert watch([1.0, 0.9, 0.69, 0.65, 0.6], [0.5, 0.502, 0.5, 0.502, 0.5], thresholds={"hold": 0.001}).is_silent
    chance = ([0.9, 0.7, 0.61, 0.6], [0.1, 0.11, 0.1, 0.09])
    assert watch(*chance, thresholds={"chance": 0.8}, config={"num_classes": 10}).is_silent


# Which metric


@pytest.mark.parametrize("name", ["accuracy", "val_acc", "eval-f1", "AUC"])
def test_a_metric_is_known_by_its_name(name: str) -> None:
    assert not watch([*DOWN, 1.22, 1.3, 1.4], [*UP, 0.65, 0.65, 0.65], name=name).is_silent


@pytest.mark.parametrize("name", ["perplexity", "error", "accumulated"])
def test_metrics_that_may_be_better_when_lower_are_left_alone(name: str) -> None:
    assert watch([*DOWN, 1.22, 1.3, 1.4], [*UP, 0.65, 0.65, 0.65], name=name).is_silent


# Recovery


def test_is_over_when_the_two_agree_again() -> None:
    episode = watch([*DOWN, 1.22, 1.3, 1.4, 0.9], [*UP, 0.65, 0.65, 0.65, 0.7]).only()

    assert episode.last.state == "resolved"


# Look-alikes


@pytest.mark.parametrize("seed", range(5))
def test_a_long_noisy_healthy_run_is_not_told(seed: int) -> None:
    """Accuracy rises as the loss falls, both with the scatter of a small validation set."""
    loss = noisy(falling(60, 2.3, 0.6, 15), 0.01, seed=seed)
    accuracy = 0.1 + 0.8 * (1 - (falling(60, 2.3, 0.6, 15) - 0.6) / 1.7)
    scatter = 0.01 * np.random.default_rng(seed + 9).standard_normal(60)

    assert watch(loss.tolist(), (accuracy + scatter).tolist(), config={"num_classes": 10}).is_silent


def test_a_declared_switch_of_the_data_begins_anew() -> None:
    losses, scores = [*DOWN, 1.3, 1.3, 1.3], [*UP, 0.65, 0.65, 0.65]

    assert watch(losses, scores, declared={4 * EVERY + 5: "data_switch"}).is_silent


def test_which_of_the_four_it_is_stands_among_the_values_after_a_restart_too() -> None:
    values = watch([*DOWN, 1.22, 1.3, 1.4], [*UP, 0.65, 0.65, 0.65]).only().last.values
    assert (values["calibration"], "equal" in values) == (1.0, False)

    at = {EVERY * (i + 1): {"loss": 1.5} for i in range(6)}
    run = views(noisy(falling(EVERY * 7), 0.02), validations=at)
    watched = Watch("metric_divergence").over(run, steps=5 * EVERY)
    assert watched.only().last.values == {"equal": 1.0}
    assert watched.restarted().over(run).only().last.values == {"equal": 1.0}


# Blindness and restarts


def test_abstains_without_a_loss() -> None:
    run = {"visible": frozenset({"gradients"})}

    assert watch([1.25] * 9, **run).is_silent


def test_abstains_without_validation() -> None:
    assert Watch("metric_divergence").over(views(noisy(falling(500), 0.02))).is_silent


def test_evaluations_that_are_not_numbers_say_nothing() -> None:
    assert watch([NAN] * 9, [0.5] * 9).is_silent


def test_a_score_without_a_loss_says_nothing() -> None:
    at = {step: {"accuracy": 0.1} for step in range(20, 200, 20)}

    run = views(falling(200), validations=at, config={"num_classes": 10})
    assert Watch("metric_divergence").over(run).is_silent


def test_goes_on_with_the_same_onset_after_a_restart() -> None:
    at = {EVERY * (i + 1): 1.25 for i in range(12)}
    run = views(noisy(falling(EVERY * 13), 0.02), validations=at)
    watched = Watch("metric_divergence").over(run, steps=6 * EVERY)
    onset = watched.only().first.onset_step

    episode = watched.restarted().over(run).only()

    assert (episode.last.onset_step, episode.is_open) == (onset, True)


def test_what_has_ended_is_seen_to_have_ended_after_a_restart() -> None:
    at = {EVERY * (i + 1): 1.25 if i < 6 else 1.2 - 0.01 * i for i in range(12)}
    run = views(noisy(falling(EVERY * 13), 0.02), validations=at)
    watched = Watch("metric_divergence").over(run, steps=6 * EVERY + 1).restarted().over(run)

    assert watched.only().last.state == "resolved"


def test_equal_losses_of_eight_binary_digits_are_no_cached_ones() -> None:
    """As a model in bfloat16 computes them: the next larger one is 4.0625."""
    of_bfloat16 = [4.625, 4.3125, 4.15625, *[4.03125] * 9]
    train = noisy(falling(EVERY * 13, 4.0, 1.8, 15), 0.02)
    at = {EVERY * (i + 1): value for i, value in enumerate(of_bfloat16)}
    assert Watch("metric_divergence").over(views(train, validations=at)).is_silent
    finer = at | {3 * EVERY: 4.15631}
    assert not Watch("metric_divergence").over(views(train, validations=finer)).is_silent


# Apart from the start


def test_a_validation_loss_far_above_the_training_loss_in_the_first_epochs_is_no_overfitting() -> None:
    def job(validation: float, size: float = 3500.0) -> Watch:
        """Evaluations that are not equal to the last digit; the training loss falls from 4 to 2."""
        config = {"batch_size": 32, "dataset_length": size, "num_classes": 100}
        return watch([validation + 0.01 * i for i in range(8)], config=config)

    episode = job(9.0).only()
    assert (episode.severity, episode.first.values["apart"]) == ("warning", 1)
    assert job(2.0).is_silent, "near the training loss"
    assert job(9.0, size=64.0).is_silent, "it may be memorised by then"
