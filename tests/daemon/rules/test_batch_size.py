"""batch_size: the batch against the gradient noise scale, estimated from real random gradients."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caboose_daemon.rules.batch_size import BatchSize, BatchSizeConfig
from caboose_daemon.rules.parts.finding import Finding
from caboose_daemon.steps.aligned import combine
from caboose_daemon.steps.regimes import Regime
from caboose_daemon.steps.view import JobView
from caboose_wire import Layer, StepReport
from support.summaries import lacks

SIZE = 400
LAYERS = (Layer(name="weight", numel=SIZE),)
EVERY = 10


def views(
    ratio: float,
    *,
    ranks: int = 8,
    samples: int = 40,
    falls: bool = False,
    missing: int | None = None,
    scatter_of_loss: float = 0.01,
    seed: int = 0,
    **changes: Any,
) -> Iterator[JobView]:
    """A job whose gradient noise scale is `ratio` times its batch: each rank's gradient is signal and noise."""
    generator = np.random.default_rng(seed)
    signal = generator.standard_normal(SIZE)
    signal /= np.linalg.norm(signal)
    scatter = np.sqrt(ratio * ranks / SIZE)
    for i in range(samples * EVERY):
        is_sampled = i % EVERY == 0
        own = signal + scatter * generator.standard_normal((ranks, SIZE))
        reduced = np.array([np.linalg.norm(own.mean(axis=0))], dtype=np.float32)
        loss = (5.0 * 0.995**i if falls else 2.0) + scatter_of_loss * generator.standard_normal()
        reports = {
            rank: StepReport(
                attempt=0,
                seq=i,
                step=i,
                model_step=i,
                time=float(i),
                loss=loss,
                num_samples=changes.get("num_samples"),
                is_sampled=is_sampled,
                local_grad_norm=float(np.linalg.norm(own[rank])) if is_sampled and rank != missing else None,
                arrays={"grad_norm": reduced},
            )
            for rank in range(ranks)
        }
        yield JobView(
            job="train",
            attempt=1,
            world=ranks,
            now=float(i),
            attempt_began=0.0,
            look_at_ranks=dict,
            layers=LAYERS,
            groups=(),
            visible=frozenset({"loss", "gradients", "local_gradients"}),
            step=combine(reports, attempt=1, step=i, world=ranks, layers=LAYERS),
            facts=changes.get("facts", {}),
            regime=changes.get("regime", Regime()),
        )


def judged(rule: BatchSize, views: Iterator[JobView]) -> list[Finding]:
    return [finding for view in views if (finding := rule.observe(view)) is not None]


def a_rule(**config: Any) -> BatchSize:
    return BatchSize(BatchSizeConfig(**config))


# The threshold


@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_is_silent_at_the_order_of_the_noise_scale(ratio: float, ranks: int) -> None:
    assert judged(a_rule(), views(ratio, ranks=ranks)) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("ranks", [8, 32])
def test_a_batch_far_below_it_is_told_and_a_warning_once_the_loss_no_longer_falls(ranks: int) -> None:
    falling = judged(a_rule(), views(40.0, ranks=ranks, samples=100, falls=True))
    assert falling
    assert {str(finding.severity) for finding in falling} == {"info"}

    flat = judged(a_rule(), views(40.0, ranks=ranks, samples=100))
    assert flat[-1].severity == "warning"
    assert flat[-1].values["ratio"] > 10


def test_a_batch_far_above_it_is_an_information() -> None:
    found = judged(a_rule(), views(0.02))

    assert {str(finding.severity) for finding in found} == {"info"}
    assert found[-1].values["ratio"] == pytest.approx(0.02, rel=0.3)
    assert lacks(found[-1].summary, "50x the gradient noise scale") == []


def test_the_summary_counts_in_samples_where_they_are_known() -> None:
    found = judged(a_rule(), views(0.02, num_samples=64))
    assert "batch of 512 is" in found[-1].summary

    found = judged(a_rule(), views(0.02, facts={"batch_size": 32}))
    assert "batch of 256 is" in found[-1].summary


def test_thresholds_can_be_configured() -> None:
    assert judged(a_rule(wasteful_ratio=2.0), views(0.2))
    assert judged(a_rule(noisy_ratio=2.0), views(5.0, ranks=32))


def test_nothing_is_judged_early() -> None:
    assert judged(a_rule(), views(0.02, samples=9)) == []
    assert judged(a_rule(), views(0.02, samples=11))


# Recovery


def test_is_over_when_the_noise_has_grown_to_the_batch() -> None:
    rule = a_rule()
    found = judged(rule, views(0.02))
    assert found[-1].state == "open"

    after = judged(rule, views(1.0, samples=60))
    assert after[-1].state == "resolved"
    assert after[-1].onset_step == found[0].onset_step


# Blindness


def test_abstains_while_a_ranks_own_gradient_is_missing() -> None:
    assert judged(a_rule(), views(0.01, missing=3)) == []


def test_one_rank_alone_shows_no_noise() -> None:
    assert judged(a_rule(), views(0.01, ranks=1)) == []


def test_says_nothing_where_the_estimate_is_uncertain() -> None:
    """Two ranks and noise a hundred times the signal: the averaged gradient hardly differs from the noise."""
    found = judged(a_rule(), views(10.5, ranks=2, samples=30))

    assert found == []


@pytest.mark.parametrize("seed", range(4))
def test_a_long_healthy_run_is_silent(seed: int) -> None:
    assert judged(a_rule(), views(2.0, samples=200, ranks=4, seed=seed)) == []


# What noise hides


def test_a_fall_that_noise_would_hide_is_not_said_to_be_missing() -> None:
    calm = judged(BatchSize(BatchSizeConfig()), views(100.0, samples=20))
    wild = judged(BatchSize(BatchSizeConfig()), views(100.0, samples=20, scatter_of_loss=2.0))

    assert "warning" in {str(finding.severity) for finding in calm}
    assert {str(finding.severity) for finding in wild} == {"info"}


@pytest.mark.parametrize("seed", range(5))
def test_the_ratio_stays_a_number_to_believe_where_the_signal_drowns(seed: int) -> None:
    found = judged(BatchSize(BatchSizeConfig()), views(1e6, ranks=2, samples=60, seed=seed))

    assert found
    assert all(finding.values["ratio"] < 1e4 for finding in found), "no more than its uncertainty allows"
