"""not_learning: a loss that is flat since the beginning, told apart from noise, slow starts and warm-ups."""

import functools
import itertools
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from caboose_daemon.steps.view import JobView
from caboose_wire import Batch, Module
from support.curves import Float64, Watch, cosine, falling, flat, noisy, power_law, views
from support.scenario import scenario
from support.seeds import seeds
from support.summaries import lacks

watch = functools.partial(Watch, "not_learning", min_steps=80)
"""Less patient than it is by default, for shorter stories."""


def drop(steps: int, share: float, level: float = 2.3) -> Float64:
    """A loss that falls by this share of its level, along a straight line."""
    return level * (1.0 - share * np.arange(steps) / steps)


def test_is_silent_up_to_five_hundred_steps_and_speaks_soon_after() -> None:
    run = views(noisy(flat(1000), 0.005))
    watched = Watch("not_learning").over(run, steps=499)
    assert watched.is_silent

    first = watched.over(run).only().first
    assert (first.onset_step, first.severity) == (0, "warning")
    assert 499 <= first.step < 520, "with the bucket that completes the five hundred"
    assert lacks(first.summary, "flat at 2") == []


def test_a_logged_point_stands_for_many_steps() -> None:
    """A row without ranks' reports is one of a log; twenty of them are enough."""
    rows = (msgspec.structs.replace(v, step=msgspec.structs.replace(v.step, reports={})) for v in views(flat(200)))

    assert Watch("not_learning").over(rows).only().first.step == 19


def test_the_number_of_steps_can_be_configured() -> None:
    assert Watch("not_learning", min_steps=400).over(views(noisy(flat(399), 0.005))).is_silent
    assert not Watch("not_learning", min_steps=400).over(views(noisy(flat(500), 0.005))).is_silent


def test_is_silent_when_the_loss_fell_by_more_than_a_hundredth_and_speaks_below() -> None:
    assert watch().over(views(noisy(drop(100, 0.015), 0.001))).is_silent
    assert not watch().over(views(noisy(drop(100, 0.001), 0.001))).is_silent


def test_a_loss_that_falls_by_memorising_is_told_where_evaluations_show_it() -> None:
    """Half a hundredth, surely: too little to be learning, unless evaluations go down with it."""
    memorised = noisy(drop(500, 0.006), 0.001)
    watch = functools.partial(Watch, "not_learning", min_steps=400)

    def told(last: float, first: float = 2.3) -> bool:
        at = dict(zip((100, 150, 200, 250, 300), np.linspace(first, last, 5).tolist(), strict=True))
        return not watch().over(views(memorised, validations=at)).is_silent

    assert watch().over(views(memorised)).is_silent, "without an evaluation it may be a slow start"
    assert told(2.31)
    assert told(2.295)
    assert not told(2.27)


def memorising(steps: int, level: float, share: float = 0.02) -> Float64:
    """A loss that began at chance for ten classes and falls by this share of it, ever faster."""
    return level * (1.0 - share * (np.arange(steps) / steps) ** 2)


AN_EPOCH = {"num_classes": 10, "batch_size": 64, "dataset_length": 64 * 600}


@pytest.mark.parametrize("seed", seeds(3))
def test_a_loss_that_is_near_chance_after_an_epoch_is_not_learning_though_it_falls(seed: int) -> None:
    losses = noisy(memorising(900, np.log(10)), 0.005, seed=seed)

    assert Watch("not_learning").over(views(losses)).is_silent
    watched = Watch("not_learning").over(views(losses, config=AN_EPOCH))
    episode = watched.only()
    assert (episode.severity, episode.is_open) == ("warning", True)
    assert 600 <= episode.first.step < 650, "with the first bucket after the epoch"


def test_a_fall_that_memorising_brings_about_is_told_as_what_it_is() -> None:
    watched = Watch("not_learning").over(views(noisy(memorising(2000, np.log(10), 0.03), 0.002), config=AN_EPOCH))

    assert lacks(watched.only().last.summary, "2.235", "3.3 epochs", "10 classes", "2.303") == []


def test_without_the_length_of_an_epoch_it_takes_two_thousand_steps_near_chance() -> None:
    run = views(noisy(drop(2500, 0.025, np.log(10)), 0.002), config={"num_classes": 10})
    watched = Watch("not_learning").over(run, steps=1999)
    assert watched.is_silent

    assert not watched.over(run).is_silent


def test_classes_that_nobody_told_are_read_off_a_first_loss_at_the_chance_of_its_outputs() -> None:
    losses = noisy(memorising(1500, np.log(10), 0.03), 0.005)
    epoch = {name: value for name, value in AN_EPOCH.items() if name != "num_classes"}
    head = Module(name="head", kind="Linear", num_units=10)
    body = Module(name="body", kind="Linear", num_units=64)

    def told(*modules: Module, scale: float = 1.0) -> bool:
        run = views(scale * losses, config=epoch, modules=modules)
        return not Watch("not_learning", min_improvement=0.002).over(run).is_silent

    assert told(body, head)
    assert not told(body), "64 outputs would begin at 4.2"
    assert not told(body, head, scale=0.7), "it begins below chance: a model that was trained before"
    assert not told()


def test_a_run_that_has_left_chance_after_an_epoch_is_learning() -> None:
    """Also one that takes its time."""
    slow = np.concatenate([memorising(400, np.log(10)), falling(800, 2.26, 1.5, 400)])

    assert Watch("not_learning").over(views(noisy(slow, 0.005), config=AN_EPOCH)).is_silent


def test_a_run_that_learned_and_was_thrown_back_to_chance_did_learn() -> None:
    """Its labels do not fit any more from some step on: that is divergence's."""
    losses = np.concatenate([falling(500, 2.3, 0.1, 60), flat(700, float(np.log(10)))])

    assert Watch("not_learning").over(views(noisy(losses, 0.02), config=AN_EPOCH)).is_silent


def test_a_run_near_chance_that_begins_to_learn_after_all_is_over() -> None:
    late = np.concatenate([memorising(1000, np.log(10)), falling(1500, 2.26, 1.2, 400)])
    episode = Watch("not_learning").over(views(noisy(late, 0.005), config=AN_EPOCH)).only()

    assert episode.last.state == "resolved"


@pytest.mark.parametrize("classes", [None, 10])
def test_a_model_that_learned_all_it_can_at_once_has_learned(classes: int | None) -> None:
    """A fall of a sixth within the first steps, and flat ever since: not since the beginning."""
    config = {} if classes is None else {"num_classes": classes}
    losses = noisy(falling(2000, 2.44, 2.03, 20), 0.01)

    assert Watch("not_learning").over(views(losses, config=config)).is_silent


def test_first_losses_above_chance_that_fall_to_it_are_not_learning_where_chance_is_known() -> None:
    losses = noisy(falling(1000, 2.6, float(np.log(10)), 10), 0.005)

    assert not Watch("not_learning").over(views(losses, config={"num_classes": 10})).is_silent


def test_a_fall_of_less_than_three_hundredths_in_the_first_steps_is_none() -> None:
    assert not Watch("not_learning").over(views(noisy(falling(1000, 2.35, 2.30, 10), 0.005))).is_silent
    assert Watch("not_learning").over(views(noisy(falling(1000, 2.40, 2.30, 10), 0.005))).is_silent


@pytest.mark.parametrize("classes", [0, 1])
def test_a_number_of_classes_that_makes_no_sense_is_left_out(classes: int) -> None:
    assert not Watch("not_learning").over(views(noisy(flat(1000), 0.005), config={"num_classes": classes})).is_silent


def test_is_silent_when_nobody_could_tell_and_speaks_when_one_can() -> None:
    """A fifth of scatter: a hundredth cannot be seen in a hundred steps, but in ten thousand."""
    run = views(noisy(flat(10_000), 0.2))
    watched = watch().over(run, steps=300)
    assert watched.is_silent

    assert not watched.over(run).is_silent


def test_evaluations_tell_what_a_noisy_loss_cannot() -> None:
    """A fifth of scatter, as a squared error of small batches has."""

    def told(validation: Float64 | None) -> bool:
        at = None if validation is None else {i: float(validation[i]) for i in range(50, 1200, 50)}
        return not Watch("not_learning").over(views(noisy(flat(1200, 1.4), 0.2, seed=3), validations=at)).is_silent

    assert not told(None)
    assert told(noisy(flat(1200, 1.45), 0.004))
    assert not told(noisy(falling(1200, 1.45, 1.2, 800), 0.004))
    assert not told(noisy(np.linspace(1.4, 1.6, 1200), 0.004)), "it overfits: it learned something"


def test_a_loss_at_chance_is_named_where_the_number_of_classes_is_known() -> None:
    at_chance = noisy(flat(200, np.log(10)), 0.005)

    said = watch().over(views(at_chance, config={"num_classes": 10})).only().last.summary
    assert lacks(said, "2.303", "chance for 10 classes") == []
    said = watch().over(views(at_chance, config={"num_classes": 1000})).only().last.summary
    assert "chance" not in said


def test_is_over_when_the_loss_falls() -> None:
    losses = noisy(np.concatenate([flat(300), falling(1000, 2.0, 0.5)]), 0.01)
    episode = watch().over(views(losses)).only()

    assert episode.last.state == "resolved"
    assert 300 < episode.last.step < 500


@pytest.mark.parametrize("seed", seeds(5))
def test_does_not_come_and_go_while_the_loss_stands(seed: int) -> None:
    """With noise that puts the line on either side of what counts as learning, from bucket to bucket."""
    watched = watch().over(views(noisy(flat(2000), 0.05, seed=seed)))

    assert watched.only().is_open


def test_a_standstill_after_it_has_learned_is_another_rules() -> None:
    losses = noisy(np.concatenate([falling(300, 4.0, 2.0, 50), flat(3000)]), 0.01)

    assert watch().over(views(losses)).is_silent


# Look-alikes


def test_a_long_warm_up_from_a_rate_of_zero_is_waited_for() -> None:
    losses = noisy(np.concatenate([flat(600), falling(600, 2.0, 0.5)]), 0.005)

    assert watch().over(views(losses, lr=cosine(1200, 1e-3, 650))).is_silent
    assert not watch().over(views(losses, lr=flat(1200, 1e-3))).is_silent


def test_a_flat_loss_after_the_warm_up_is_told() -> None:
    watched = watch().over(views(noisy(flat(600), 0.005), lr=cosine(600, 1e-3, 200)))

    assert watched.only().first.step >= 200


def test_a_slow_start_that_surely_falls_is_learning() -> None:
    assert watch().over(views(noisy(drop(1000, 0.06), 0.002))).is_silent


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_long_noisy_healthy_run_is_not_told(seed: int, noise: float) -> None:
    assert watch().over(views(noisy(power_law(3000), noise, seed=seed))).is_silent


@pytest.mark.parametrize("kind", ["data_switch", "resume"])
def test_a_declared_change_begins_anew_where_chance_tells_of_the_beginning(kind: str) -> None:
    losses = noisy(flat(300, np.log(10)), 0.005)
    watched = watch().over(views(losses, declared={200: kind}, config={"num_classes": 10}))

    first, second = watched.episodes
    assert (first.last.state, first.last.step) == ("resolved", 200)
    assert (second.first.onset_step, second.first.step) == (200, 279)

    assert len(watch().over(views(losses, declared={200: kind})).episodes) == 1, "it may have learned before"


# Blindness and restarts


@pytest.mark.parametrize("level", [0.3, 2.3])
def test_a_run_that_is_flat_since_the_daemon_was_restarted_may_have_converged(level: float) -> None:
    run = views(noisy(np.concatenate([falling(1000, 4.0, level, 80), flat(1500, level)]), 0.01))
    watched = watch().over(run, steps=1000)
    assert watched.is_silent

    assert watched.restarted().over(run).is_silent
    assert not watch().over(views(noisy(flat(1500, level), 0.01))).is_silent, "and from its beginning it is reported"


def test_a_resumed_run_that_is_flat_may_have_converged_and_one_launched_anew_has_not() -> None:
    resumed = scenario(about="not_learning", level=0.3, noise=0.02, start_step=50_000)
    resumed.step = 50_000
    assert resumed.healthy(1000).is_silent

    assert scenario(about="not_learning", level=0.3, noise=0.02).healthy(1000).of("not_learning")


def test_a_resumed_run_at_chance_has_learned_nothing() -> None:
    """Where chance is known it need not have been there in the beginning."""
    run = views(noisy(flat(2000, np.log(10)), 0.01), config={"num_classes": 10})

    assert watch().over(itertools.islice(run, 500, None)).only().first.onset_step == 500


def test_abstains_without_a_loss() -> None:
    assert watch().over(views(flat(500), visible=frozenset({"gradients"}))).is_silent


def test_losses_that_are_not_numbers_are_left_out() -> None:
    losses = noisy(falling(500, 4.0, 1.0), 0.01)
    losses[100:120] = np.nan

    assert watch().over(views(losses)).is_silent


def test_goes_on_with_the_same_onset_after_a_restart_and_ends_when_the_loss_falls() -> None:
    run = views(noisy(np.concatenate([flat(200), falling(800, 2.0, 0.5)]), 0.005))
    watched = watch().over(run, steps=150).restarted().over(run)

    episode = watched.only()
    assert episode.first.onset_step == episode.last.onset_step == 0
    assert episode.last.state == "resolved"


def with_targets(losses: Float64, blind: float, every: int = 20) -> Iterator[JobView]:
    """Steps of which some are sampled, and show the loss of an answer without a look at the inputs."""
    for view in views(losses, updates=dict.fromkeys(range(0, len(losses), every), 0.001)):
        assert view.step is not None
        if view.step.is_sampled:
            (report,) = view.step.reports.values()
            seen = msgspec.structs.replace(report, batch=Batch(index=None, target_entropy=blind))
            view = msgspec.structs.replace(view, step=msgspec.structs.replace(view.step, reports={0: seen}))
        yield view


def test_a_loss_at_the_entropy_of_its_targets_has_not_learned_though_it_fell_at_first() -> None:
    """A language model that knows how often each token comes, and nothing else."""
    at_unigrams = noisy(3.5 + 0.4 * np.exp(-np.arange(400) / 20), 0.01)

    first = Watch("not_learning").over(with_targets(at_unigrams, 3.5)).only().first
    assert 199 <= first.step < 260
    assert Watch("not_learning").over(with_targets(at_unigrams, 4.2)).is_silent, "it explains a sixth of them"
    falls = noisy(falling(400, 3.9, 2.0, 150), 0.01)
    assert Watch("not_learning").over(with_targets(falls, 3.5)).is_silent
