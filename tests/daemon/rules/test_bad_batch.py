"""bad_batch: a symptom that meets evidence about its batch."""

import functools

import pytest

from caboose_wire import Batch, Scaler
from support.scenario import INF, NAN, Scenario
from support.scenario import scenario as of_all_rules
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="bad_batch")


def batches(story: Scenario, *ranks: int, **odd: float | int) -> Scenario:
    """From now on these ranks' batches are odd; indices count up with the steps."""
    fine = {"num_bad": 0, "lowest": -3.0, "highest": 3.0}
    return story.meanwhile(
        batch=lambda rank: Batch(**{"index": 2 * story.step + 1, "epoch": 1, **fine, **(odd if rank in ranks else {})})
    )


def a_run(**settings: float) -> Scenario:
    story = batches(scenario(noise=0.02, **settings))
    for _ in range(4):
        story.sampled().healthy(9)
    return story


def test_names_rank_and_batches_of_a_loss_that_is_not_finite() -> None:
    story = batches(a_run(), 2, num_bad=7).nan_loss(2, at=41)

    (episode,) = story.of("bad_batch")
    assert (episode.severity, episode.first.ranks, episode.first.phase) == ("warning", (2,), "input")
    assert lacks(episode.first.summary, "batches 82 to 83", "rank 2", "epoch 1", "7 NaN", "loss nan at step 41") == []
    assert episode.first.values == {"first_batch": 82.0, "last_batch": 83.0, "epoch": 1.0, "bad_elements": 7.0}


@pytest.mark.parametrize(("highest", "fires"), [(14.0, False), (16.0, True)])
def test_a_spike_with_a_batch_far_out_of_range_is_the_batchs(highest: float, fires: bool) -> None:
    story = batches(a_run(), 1, highest=highest).loss_spike(at=41, height=5.0)

    assert bool(story.of("bad_batch")) is fires
    for episode in story.of("bad_batch"):
        assert (episode.first.values["width"], episode.first.values["usual_width"]) == (19.0, 6.0)


def test_a_spike_on_one_rank_alone_is_its_batchs() -> None:
    story = a_run().meanwhile(loss=lambda rank: 40.0 if rank == 3 else 2.0).healthy(1)

    (episode,) = story.of("bad_batch")
    assert episode.first.ranks == (3,)
    assert "width" not in episode.first.values


def test_ends_when_three_steps_were_good() -> None:
    story = batches(a_run(), 2, num_bad=7).nan_loss(2, at=41)
    batches(story).healthy(3)

    assert [episode.last.state for episode in story.of("bad_batch")] == ["resolved"]


# Neither half is enough


def test_a_spike_of_all_ranks_with_plain_batches_is_not_the_batchs() -> None:
    assert not a_run().loss_spike(at=41, height=5.0, steps=10).of("bad_batch")


def test_odd_batches_that_harm_nothing_are_the_models_business() -> None:
    assert batches(a_run(), 0, 1, num_bad=5, highest=1e9).healthy(50).is_silent


def test_an_overflow_that_the_scaler_skips_is_no_symptom() -> None:
    story = batches(a_run().meanwhile(scaler=Scaler(65536.0, 0)), 1, num_bad=1).healthy(1)

    assert not story.meanwhile(scaler=Scaler(32768.0, 1)).nan_gradient(0, at=42, value=INF).of("bad_batch")


def test_a_range_is_judged_only_after_three_samples() -> None:
    story = batches(scenario(noise=0.02)).sampled(2).healthy(38)

    assert not batches(story, 1, highest=1e9).loss_spike(at=41, height=5.0).of("bad_batch")


# Blindness


def test_abstains_when_no_loader_is_watched() -> None:
    story = scenario(noise=0.02).healthy(40).nan_loss(2, at=41).healthy(10)

    assert not story.meanwhile(loss=lambda rank: 40.0 if rank == 3 else 2.0).healthy(1).of("bad_batch")


def test_a_declared_switch_of_the_data_begins_anew() -> None:
    story = batches(a_run().declares("data_switch"), 1, highest=1e9)

    assert not story.loss_spike(at=41, height=5.0).of("bad_batch")


def test_what_is_not_a_number_teaches_no_range() -> None:
    story = batches(scenario(noise=0.02), 0, lowest=NAN, highest=NAN).sampled(5).healthy(35)

    assert batches(story, 1, highest=16.0).loss_spike(at=41, height=5.0).of("bad_batch")


def test_a_long_noisy_healthy_run_is_silent() -> None:
    story = batches(scenario(ranks=2, noise=0.1))
    for _ in range(20):
        story.sampled().healthy(99)

    assert not story.of("bad_batch")
