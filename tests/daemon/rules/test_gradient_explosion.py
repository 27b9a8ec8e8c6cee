"""gradient_explosion: a norm far above its own history, or doubling; and norms that are merely large, or new."""

import msgspec
import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.offline.replay.logs import Column, Log
from caboose_daemon.offline.replay.player import play
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView
from support.curves import VISIBLE, Float64, Watch, cosine, falling, flat, noisy, views
from support.scenario import INF, NAN, heavy_tailed
from support.seeds import seeds
from support.summaries import lacks


def norms(*heights: float, before: int = 100, after: int = 0, noise: float = 0.0, level: float = 1.0) -> Float64:
    """A norm at its level, then at these many times its level, then back."""
    shape = np.concatenate([flat(before, level), level * np.array(heights), flat(after, level)])
    return shape * np.exp(noise * np.random.default_rng(0).standard_normal(len(shape)))


def watch(values: Float64, losses: Float64 | None = None, **thresholds: object) -> Watch:
    run = views(flat(len(values)) if losses is None else losses, values)
    return Watch("gradient_explosion", **thresholds).over(run)


# The threshold


def test_is_silent_up_to_three_times_the_level_and_speaks_above() -> None:
    assert watch(norms(2.95)).is_silent
    assert watch(norms(3.05)).only().first.step == 100


def test_a_norm_that_scatters_has_to_reach_further() -> None:
    """Scatter of 0.4 in logarithms: six scales are eleven times the level."""
    assert watch(norms(6.0, noise=0.4, before=200)).is_silent
    assert not watch(norms(60.0, noise=0.4, before=200)).is_silent


def test_its_thresholds_can_be_configured() -> None:
    assert watch(norms(4.5), ratio=5.0).is_silent
    assert watch(norms(4.5), scales=40.0).is_silent
    assert watch(norms(4.5), tails=20.0).is_silent
    assert watch(norms(4.5), warmup_steps=200).is_silent


def test_judges_nothing_before_it_has_learned_the_level() -> None:
    assert watch(norms(30.0, before=19, after=50)).is_silent
    assert not watch(norms(30.0, before=20, after=50)).is_silent


@pytest.mark.parametrize("level", [1e-6, 1.0, 1e4])
def test_how_large_a_norm_is_says_nothing(level: float) -> None:
    """A sum instead of a mean as a loss, or another model: the same curve times a constant."""
    assert watch(norms(1.5, before=300, noise=0.2, level=level)).is_silent
    assert watch(norms(30.0, level=level)).only().first.severity == "warning"


# Severity


def test_one_high_norm_is_for_the_record_unless_it_is_ten_times_the_level() -> None:
    assert watch(norms(9.5, after=20)).only().severity == "info"
    assert watch(norms(10.5, after=20)).only().severity == "warning"
    assert watch(norms(10.5, after=20), outlier_ratio=20.0).only().severity == "info"


def test_the_third_high_norm_in_a_row_is_a_warning() -> None:
    assert watch(norms(5.0, 5.0)).only().severity == "info"
    assert watch(norms(5.0, 5.0, 5.0)).only().severity == "warning"


def test_the_tenth_high_norm_in_a_row_is_critical() -> None:
    assert watch(norms(*[5.0] * 9)).only().severity == "warning"
    assert watch(norms(*[5.0] * 10)).only().severity == "critical"
    assert watch(norms(*[5.0] * 19), critical_steps=20).only().severity == "warning"


def test_the_loss_is_a_second_witness_and_critical_with_the_third_high_norm() -> None:
    losses = np.concatenate([flat(100), flat(3, 5.0)])

    assert watch(norms(5.0, 5.0), losses[:-1]).only().severity == "info"
    episode = watch(norms(5.0, 5.0, 5.0), losses).only()
    assert episode.severity == "critical"
    assert lacks(episode.last.summary, "gradient norm 5 against 1 before step 100 (5x)") == []


def test_a_norm_that_grows_as_the_run_begins_to_learn_is_a_note() -> None:
    """Near the initial weights gradients are small; with them the loss comes down."""
    values = norms(*np.linspace(4.0, 40.0, 10), *[30.0] * 100, before=30, noise=0.03)
    learns = np.concatenate([flat(25, 3.44), 1.0 + 2.4 * np.exp(-np.arange(115) / 30.0)])

    assert watch(values, noisy(learns, 0.01)).only().worst.severity == "info"
    assert watch(values, noisy(flat(140, 3.44), 0.01)).only().worst.severity == "critical"
    assert watch(values, noisy(learns[::-1].copy(), 0.01)).only().worst.severity == "critical", "it gets worse"


def test_one_wrong_sample_of_a_solved_task_is_a_note() -> None:
    """Its batch has a loss and a gradient many times the usual ones, which are those of hardly any error."""
    values = norms(30.0, before=300, after=20, noise=0.05, level=0.03)

    def run(level: float, odd: float) -> Watch:
        return watch(values, noisy(np.concatenate([falling(300, 1.6, level, 20), [odd], flat(20, level)]), 0.3))

    assert run(1e-3, 0.03).only().worst.severity == "info"
    assert run(0.2, 0.9).only().worst.severity == "warning"


def test_where_the_objective_moves_a_norm_alone_never_pages() -> None:
    """A target network is copied: the targets, and with them the gradients, are others at once."""
    values = norms(*[200.0] * 100, before=100, noise=0.05)
    moving = views(noisy(flat(200, 0.01), 0.05), values, visible=VISIBLE | {MOVING_OBJECTIVE})

    assert Watch("gradient_explosion").over(moving).only().worst.severity == "warning"


def test_is_never_more_urgent_than_configured() -> None:
    assert watch(norms(*[50.0] * 30), severity="warning").only().severity == "warning"


# Doubling


def test_three_doublings_in_a_row_need_no_history() -> None:
    assert watch(norms(2.05, 4.2, before=20), warmup_steps=500).is_silent

    first = watch(norms(2.05, 4.2, 8.8, before=20), warmup_steps=500).only().first
    assert (first.step, first.severity) == (22, "warning")
    assert lacks(first.summary, "doubled 3 times in a row") == []


def test_growth_by_less_than_a_doubling_is_not_one() -> None:
    assert watch(norms(1.9, 1.9**2, 1.9**3, before=20), warmup_steps=500).is_silent


def test_norms_some_steps_apart_have_to_double_at_each_of_these_steps() -> None:
    """Every fifth norm is taken. Growth by 20 % a step is no explosion, though each norm is 2.5 times the last one."""
    growing, exploding = (1.0 * rate ** np.arange(41) for rate in (1.2, 2.1))
    for values in (growing, exploding):
        values[np.arange(41) % 5 != 0] = NAN

    assert watch(growing, warmup_steps=500).is_silent
    assert watch(exploding, warmup_steps=500).only().first.severity == "warning"


def test_steps_in_which_a_part_does_not_step_are_no_steps_of_it() -> None:
    """A generator that is updated at every fifth step of its critic, and doubles its norm at each of its own."""
    values = 1.0 * 2.1 ** (np.arange(41) // 5)
    values[np.arange(41) % 5 != 0] = NAN
    run = [idle(view) if np.isnan(norm) else view for view, norm in zip(views(flat(41), values), values, strict=True)]

    assert Watch("gradient_explosion", warmup_steps=500).over(run).only().first.severity == "warning"


def idle(view: JobView) -> JobView:
    """A step in which the part has no loss."""
    assert view.step is not None
    return msgspec.structs.replace(view, step=msgspec.structs.replace(view.step, mean_loss=None))


def test_the_first_steps_of_a_run_may_double() -> None:
    values = np.concatenate([0.01 * 2.1 ** np.arange(12), flat(200, 0.01 * 2.1**11)])

    assert watch(values).is_silent


def test_doublings_within_the_scatter_of_a_noisy_norm_are_nothing() -> None:
    values = norms(before=300, noise=0.8)
    values[200:204] = np.exp([-1.2, -0.5, 0.2, 0.9])

    assert watch(values).is_silent


def test_an_excerpt_from_the_middle_of_a_run_has_no_first_steps() -> None:
    run = views(flat(4), [0.2, 0.5, 1.2, 3.0], is_resumed=True)

    assert Watch("gradient_explosion").over(run).told() == {"gradient_explosion": "warning"}


def test_a_norm_that_settles_where_it_doubled_to_without_history_is_never_a_page_and_ends() -> None:
    values = np.concatenate([[0.2, 0.5, 1.2], flat(60, 3.0)])
    episode = Watch("gradient_explosion").over(views(flat(63), values, is_resumed=True)).only()

    assert (episode.severity, episode.last.state) == ("warning", "resolved")


def test_bloom_176b_is_warned_of_before_its_loss_peaks() -> None:
    """From the public chronicles of the training: the loss peaked at 5.1 in step 31,219."""
    steps = np.arange(31214, 31223)
    loss = np.array([2.20, 2.22, 2.60, 2.24, 2.35, 5.10, 3.49, 3.21, 2.80])
    norm = np.array([0.24, 0.95, 2.39, 15.9, 145.0, 960.0, 353.0, 379.0, 650.0])
    logged = np.ones(len(steps), dtype=np.bool_)
    log = Log("bloom.csv", steps, {"loss": Column(loss, logged), "grad_norm": Column(norm, logged)})

    first = play(log, Config().rules).findings[0]

    assert (first.rule, first.severity) == ("gradient_explosion", "warning")
    assert first.step < 31219


# Recovery


def test_is_over_after_five_norms_near_the_level() -> None:
    assert watch(norms(20.0, after=4)).only().is_open

    episode = watch(norms(20.0, after=5)).only()
    assert episode.last.state == "resolved"
    assert (episode.last.values["grad_norm"], episode.last.values["peak"]) == (1, 20)


def test_stays_open_and_learns_nothing_while_the_norm_stays_high() -> None:
    episode = watch(norms(*[20.0] * 1000)).only()

    assert episode.is_open
    assert episode.last.values["level"] == pytest.approx(1.0)


def test_a_second_explosion_is_a_second_episode_with_its_own_peak() -> None:
    first, second = watch(norms(*[50.0] * 5, *[1.0] * 20, *[20.0] * 5)).episodes

    assert (first.last.values["peak"], second.last.values["peak"]) == (50.0, 20.0)


def test_an_explosion_does_not_count_as_one_of_the_runs_own_outliers() -> None:
    """Were their peaks learned, the tail would grow until it hides the later ones."""
    values = np.tile(norms(*[3.5] * 4, before=30), 25)

    assert [episode.first.onset_step for episode in watch(values).episodes] == [34 * i + 30 for i in range(25)]


# Look-alikes


def test_what_a_run_does_every_day_is_its_nature() -> None:
    """Every thirtieth norm at six times its level: told of at first, and then known."""
    values = norms(before=3000, noise=0.1)
    values[100::30] *= 6.0
    steps = [episode.first.step for episode in watch(values).episodes]

    assert len(steps) < 20
    assert max(steps) < 1500


def test_the_rise_of_norms_in_a_warm_up_is_not_told() -> None:
    """From 0.5 to 5 within a hundred steps, while the rate is warmed up."""
    values = np.concatenate([np.geomspace(0.5, 5.0, 100), flat(200, 5.0)])
    values *= np.exp(0.1 * np.random.default_rng(1).standard_normal(300))

    run = views(falling(300), values, lr=cosine(300, 1e-3, 100))
    assert Watch("gradient_explosion").over(run).is_silent


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("noise", [0.05, 0.3, 0.8])
def test_a_long_noisy_healthy_run_is_not_told(seed: int, noise: float) -> None:
    values = falling(4000, 5.0, 0.5, 100) * np.exp(noise * np.random.default_rng(seed).standard_normal(4000))

    assert watch(values, noisy(falling(4000), 0.05, seed=seed)).told() == {}


@pytest.mark.parametrize("seed", seeds(3))
def test_heavy_tails_never_page(seed: int) -> None:
    values = np.exp(0.3 * heavy_tailed(np.random.default_rng(seed), 4000))

    assert "critical" not in watch(values).told().values()


@pytest.mark.parametrize("kind", ["data_switch", "batch_ramp", "resume"])
def test_a_declared_change_begins_a_new_level(kind: str) -> None:
    values = np.concatenate([flat(100, 1.0), flat(200, 8.0)])

    assert Watch("gradient_explosion").over(views(flat(300), values, declared={100: kind})).is_silent


# Blindness and restarts


def test_abstains_without_gradients() -> None:
    run = views(flat(200), norms(*[50.0] * 100), visible=frozenset({"loss"}))

    assert Watch("gradient_explosion").over(run).is_silent


@pytest.mark.parametrize("value", [NAN, INF, 0.0])
def test_what_is_no_norm_says_nothing(value: float) -> None:
    values = norms(before=200)
    values[50::10] = value

    assert watch(values).is_silent


def test_norms_taken_on_every_fourth_step_are_judged_as_they_come() -> None:
    values = norms(*[50.0] * 40)
    values[np.arange(len(values)) % 4 != 0] = NAN

    assert watch(values).only().severity == "critical"


def test_goes_on_with_the_same_onset_and_level_after_a_restart() -> None:
    run = views(flat(140), norms(*[20.0] * 20, after=20))
    watched = Watch("gradient_explosion").over(run, steps=110).restarted().over(run)

    episode = watched.only()
    assert (episode.last.onset_step, episode.last.state, episode.severity) == (100, "resolved", "critical")
    assert episode.last.values["peak"] == 20.0


def test_a_norm_that_grew_over_steps_on_which_nobody_took_it_is_no_jump() -> None:
    """Norms of every step, then of one in 32: by then the run has begun to learn, and its loss falls."""
    steps = np.arange(600)
    norms = np.where(steps < 30, 0.2, 0.9) * np.exp(0.1 * np.random.default_rng(0).standard_normal(600))
    norms[(steps > 24) & (steps % 32 != 0)] = np.nan
    losses = noisy(falling(600, 1.6, 0.8, 100), 0.02)

    assert Watch("gradient_explosion").over(views(losses, norms)).is_silent
    broken = np.where(steps >= 320, 4.0, losses)
    assert not Watch("gradient_explosion").over(views(broken, np.where(steps >= 320, 50 * norms, norms))).is_silent
