"""rank_outlier: who stays apart from its peers, and who only seems to, among three ranks or four thousand."""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from caboose_daemon.rules.parts.finding import Finding
from caboose_daemon.rules.rank_outlier import RankOutlier, RankOutlierConfig
from caboose_daemon.steps.aligned import combine
from caboose_daemon.steps.view import JobView
from caboose_wire import StepReport
from support.scenario import Noise, heavy_tailed, normal
from support.scenario import scenario as of_all_rules
from support.seeds import first_of, seeds
from support.summaries import lacks

scenario = functools.partial(of_all_rules, about="rank_outlier")

EVERY = 10


def views(losses: NDArray[np.float64], norms: NDArray[np.float64] | None = None, **changes: Any) -> Iterator[JobView]:
    """A job whose ranks report these losses (steps x ranks), and own gradients on every tenth step."""
    world = losses.shape[1]
    for i, row in enumerate(losses):
        is_sampled = norms is not None and i % EVERY == 0
        reports = {
            rank: StepReport(
                attempt=0,
                seq=i,
                step=i,
                model_step=i,
                time=float(i),
                loss=float(row[rank]),
                is_sampled=is_sampled,
                local_grad_norm=float(norms[i, rank]) if norms is not None and is_sampled else None,
            )
            for rank in range(world)
        }
        fields: dict[str, Any] = {
            "job": "train",
            "attempt": 1,
            "world": world,
            "now": float(i),
            "attempt_began": 0.0,
            "look_at_ranks": dict,
            "layers": (),
            "groups": (),
            "visible": frozenset({"loss", "local_gradients"}),
            "step": combine(reports, attempt=1, step=i, world=world, layers=()),
        }
        yield JobView(**{**fields, **changes})


def judged(rule: RankOutlier, views: Iterator[JobView]) -> list[Finding]:
    return [finding for view in views if (finding := rule.observe(view)) is not None]


def a_run(steps: int, ranks: int, *, seed: int = 0, noise: float = 0.1, scatter: Noise = normal) -> NDArray[np.float64]:
    """Losses around 2.0, independent over ranks and steps."""
    generator = np.random.default_rng(seed)
    return 2.0 * (1.0 + noise * scatter(generator, steps * ranks).reshape(steps, ranks))


def a_rule(**config: Any) -> RankOutlier:
    return RankOutlier(RankOutlierConfig(**config))


# The threshold


@pytest.mark.parametrize("ranks", [3, 8, 64])
def test_is_silent_at_less_than_two_scales_and_speaks_above_them(ranks: int) -> None:
    losses = a_run(400, ranks)
    losses[:, 1] += 1.2 * 0.2
    assert judged(a_rule(), views(losses)) == []

    losses[:, 1] += 2.8 * 0.2
    found = judged(a_rule(), views(losses))
    assert {finding.ranks for finding in found} == {(1,)}
    assert {str(finding.severity) for finding in found} == {"warning"}
    assert len({finding.onset_step for finding in found}) == 1


def test_a_small_share_of_the_loss_is_nothing_however_many_scales_it_is() -> None:
    losses = a_run(300, 8, noise=0.001)
    losses[:, 2] *= 1.08
    assert judged(a_rule(), views(losses)) == []

    losses[:, 2] *= 1.15
    assert judged(a_rule(), views(losses))[0].ranks == (2,)


def test_it_takes_some_tens_of_steps_and_a_few_bad_batches_are_nothing() -> None:
    losses = a_run(300, 8)
    losses[100:108, 5] *= 10.0
    assert judged(a_rule(), views(losses)) == []

    losses[100:, 5] *= 10.0
    assert 120 <= judged(a_rule(), views(losses))[0].step <= 130


def test_a_rank_below_its_peers_is_an_outlier_as_well() -> None:
    losses = a_run(300, 8)
    losses[:, 6] *= 0.2

    (first, *_) = judged(a_rule(), views(losses))
    assert first.ranks == (6,)
    assert first.values["loss_distance"] < 0


def test_the_summary_has_the_numbers() -> None:
    losses = a_run(300, 8, noise=0.05)
    losses[:, 4] += 1.0

    last = judged(a_rule(), views(losses))[-1]
    assert lacks(last.summary, "rank 4: loss 0.", "above its peers' 2", "since step") == []


def test_thresholds_can_be_configured() -> None:
    losses = a_run(300, 8)
    losses[:, 1] += 1.2 * 0.2

    assert judged(a_rule(), views(losses)) == []
    assert judged(a_rule(scales=1.0), views(losses))


# The gradient before the all-reduce


def test_an_own_gradient_that_stays_larger_is_found_on_sampled_steps() -> None:
    losses = a_run(400, 8)
    norms = np.exp(0.1 * np.random.default_rng(1).standard_normal((400, 8)))
    assert judged(a_rule(), views(losses, norms)) == []

    norms[:, 3] *= 2.5
    found = judged(a_rule(), views(losses, norms))
    assert {finding.ranks for finding in found} == {(3,)}
    assert found[0].phase == "backward"
    assert lacks(found[0].summary, "rank 3", "own gradient") == []
    assert found[0].step >= 5 * EVERY


def test_a_gradient_a_third_larger_is_nothing() -> None:
    norms = np.exp(0.01 * np.random.default_rng(1).standard_normal((400, 8)))
    norms[:, 3] *= 1.35

    assert judged(a_rule(), views(a_run(400, 8), norms)) == []


# Recovery


def test_is_over_when_the_rank_is_back_among_its_peers() -> None:
    losses = a_run(500, 8)
    losses[100:200, 5] *= 3.0

    found = judged(a_rule(), views(losses))
    assert found[-1].state == "resolved"
    assert found[-1].step < 260
    assert {finding.onset_step for finding in found} == {found[0].onset_step}


# Look-alikes


@pytest.mark.parametrize(("ranks", "steps"), first_of([(4096, 120), (3, 20_000), (8, 20_000), (256, 2000)]))
@pytest.mark.parametrize("scatter", [normal, heavy_tailed])
def test_independent_noise_makes_no_outlier(ranks: int, steps: int, scatter: Noise) -> None:
    """The highest of 4,096 normal ranks is 3.5 standard deviations out at every step."""
    losses = a_run(steps, ranks, seed=ranks, noise=0.2, scatter=scatter)
    rule = a_rule()

    assert judged(rule, quick_views(losses)) == []


def quick_views(losses: NDArray[np.float64]) -> Iterator[JobView]:
    """As `views`, without reports: for many steps of many ranks."""
    (template,) = views(losses[:1])
    assert template.step is not None
    for i, row in enumerate(losses):
        step = msgspec.structs.replace(template.step, step=i, loss=row, mean_loss=float(row.mean()))
        yield msgspec.structs.replace(template, step=step)


def test_skewed_noise_makes_no_outlier() -> None:
    losses = 2.0 * np.exp(0.6 * np.random.default_rng(5).standard_normal((3000, 16)))

    assert judged(a_rule(), quick_views(losses)) == []


def test_ranks_that_all_have_a_domain_of_their_own_are_not_outliers() -> None:
    losses = a_run(2000, 16, noise=0.05) * np.linspace(0.5, 1.5, 16)

    assert judged(a_rule(), quick_views(losses)) == []


@pytest.mark.parametrize("seed", seeds(3))
def test_ranks_that_differ_widely_anyway_have_no_outlier(seed: int) -> None:
    """Their levels follow Laplace's distribution: the outermost is four of its scales out, as one of 64 should be."""
    share = (np.arange(64) + 0.5) / 32 - 1
    domains = -0.4 * np.sign(share) * np.log1p(-np.abs(share))

    assert judged(a_rule(), quick_views(a_run(500, 64, seed=seed) + domains)) == []


def test_heterogeneous_data_that_was_declared_is_left_alone() -> None:
    losses = a_run(300, 8)
    losses[:, 5] *= 3.0

    assert judged(a_rule(), views(losses))
    assert judged(a_rule(), views(losses, config={"heterogeneous_data": True})) == []


def test_a_declared_data_switch_begins_anew() -> None:
    def told(rank: int, step: int) -> float:
        return 6.0 if rank == 2 and step <= 60 else 2.0

    story = scenario(4, noise=0.05).plays(60, loss=told).declares("data_switch").plays(100)

    assert story.only("rank_outlier").last.state == "resolved"


# Two ranks


def test_the_higher_loss_of_two_ranks_that_stay_far_apart_is_the_odd_one() -> None:
    losses = a_run(300, 2)
    losses[:, 1] *= 1.25
    assert judged(a_rule(), views(losses)) == []

    losses[:, 1] *= 2.0
    first, *_ = found = judged(a_rule(), views(losses))
    assert {finding.ranks for finding in found} == {(1,)}
    assert first.step == 63, "the first of twice the memory is 0"
    assert lacks([first.summary], "rank 1", "above its peers' 1.99") == []


def test_two_ranks_are_alike_again_when_their_losses_are() -> None:
    losses = a_run(600, 2)
    losses[:300, 0] *= 2.5

    assert judged(a_rule(), views(losses))[-1].state == "resolved"


@pytest.mark.parametrize("scatter", [normal, heavy_tailed])
@pytest.mark.parametrize("seed", seeds(5))
def test_noise_that_falls_with_the_loss_keeps_two_ranks_together(seed: int, scatter: Noise) -> None:
    """Near zero the losses of two batches are many times each other, and hard stretches of data last."""
    generator = np.random.default_rng(seed)
    noise = scatter(generator, 2 * 5000).reshape(5000, 2)
    for i in range(1, len(noise)):
        noise[i] = 0.6 * noise[i - 1] + 0.8 * noise[i]
    losses = 2.0 * np.exp(-np.arange(5000) / 400)[:, None] * np.exp(0.5 * noise)

    assert judged(a_rule(), quick_views(losses)) == []


# Blindness


def test_a_loss_that_is_not_a_number_is_left_to_its_own_rule() -> None:
    losses = a_run(300, 8)
    losses[:, 5] = np.nan
    assert judged(a_rule(), views(losses)) == []

    losses[:, 6] *= 3.0
    assert judged(a_rule(), views(losses))[0].ranks == (6,)


def test_an_episode_taken_up_after_a_restart_ends_only_once_enough_was_seen() -> None:
    losses = a_run(400, 8)
    losses[:, 5] *= 3.0
    (first, *_) = judged(a_rule(), views(losses))
    losses[:, 5] /= 3.0

    rule = a_rule()
    rule.resume(first)
    found = judged(rule, views(losses))
    assert [finding.state for finding in found][-1] == "resolved"
    assert {finding.onset_step for finding in found} == {first.onset_step}
    assert len(found) >= RankOutlierConfig().memory_steps
