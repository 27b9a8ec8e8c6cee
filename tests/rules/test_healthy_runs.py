"""A long noisy healthy run raises nothing: 5,000 steps, several seeds, light and heavy tails."""

import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.engine import Engine
from caboose_daemon.rules.finding import Finding
from support.scenario import Noise, heavy_tailed, normal, scenario, views

STEPS = 5000


def judged(seed: int, noise: float, scatter: Noise) -> list[Finding]:
    """What the rules say of a falling loss with this scatter, and a gradient norm with three times as much."""
    generator = np.random.default_rng(seed)
    curve = 1.5 + 8.0 * np.exp(-np.arange(STEPS) / 400)
    losses = curve * (1 + noise * scatter(generator, STEPS))
    norms = np.exp(3 * noise * scatter(generator, STEPS))
    engine = Engine(Config().rules, {})
    return [finding for view in views(losses, norms) for finding in engine.run(view, "step")]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("noise", "scatter"),
    [
        pytest.param(0.02, normal, id="little noise"),
        pytest.param(0.15, normal, id="much noise"),
        pytest.param(0.005, heavy_tailed, id="heavy tails"),
    ],
)
def test_raises_nothing(seed: int, noise: float, scatter: Noise) -> None:
    assert judged(seed, noise, scatter) == []


@pytest.mark.parametrize("seed", range(3))
def test_single_outliers_of_very_heavy_tails_never_page(seed: int) -> None:
    found = judged(seed, 0.1, heavy_tailed)

    assert {str(finding.severity) for finding in found} == {"info", "warning"}


def test_raises_nothing_through_the_whole_core() -> None:
    story = scenario(ranks=2, noise=0.05, seed=7).healthy(STEPS)

    assert story.job.num_steps == STEPS
    assert story.is_silent
