"""Logs that stand still, become restless or get worse too slowly for any single row to show it."""

from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.config import load
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.offline.replay.player import play
from support.curves import Float64, Watch, flat, noisy, power_law, views
from support.seeds import seeds
from support.sparse import episodes, fallen, raised

NAN = float("nan")


def stuck(num: int, start: float = 15.0, level: float = 7.4, noise: float = 0.004) -> Float64:
    """A first row at the start, and all others around one level."""
    return noisy(np.concatenate([[start], flat(num - 1, level)]), noise)


# Standing still


@pytest.mark.parametrize("num", [24, 60, 200])
@pytest.mark.parametrize(
    ("start", "rule"), [(7.6, "not_learning"), (10.8, "not_learning"), (15.0, "plateau"), (20.0, "plateau")]
)
def test_a_log_that_fell_in_its_first_row_only_stands_still(tmp_path: Path, start: float, rule: str, num: int) -> None:
    """Down to three fifths of its start it may have found no more than the frequencies of its targets."""
    assert raised(tmp_path, stuck(num, start)) == {rule: "warning"}


def test_a_fall_over_several_rows_is_no_longer_learning_either(tmp_path: Path) -> None:
    losses = noisy(np.concatenate([[10.8, 9.2, 8.0, 7.6], flat(40, 7.4)]), 0.004)

    assert raised(tmp_path, losses) == {"not_learning": "warning"}


def test_a_log_of_fifteen_rows_is_too_short_for_that(tmp_path: Path) -> None:
    assert raised(tmp_path, stuck(15)) == {}


def test_its_onset_is_a_quarter_into_the_run(tmp_path: Path) -> None:
    (episode,) = episodes(tmp_path, "plateau", stuck(60))

    assert episode.first.onset_step == pytest.approx(episode.first.step / 4, abs=250)


def test_a_log_that_falls_again_is_no_longer_stuck(tmp_path: Path) -> None:
    losses = np.concatenate([stuck(60), noisy(7.4 * np.exp(-np.arange(40) / 60), 0.004)])

    (episode,) = episodes(tmp_path, "plateau", losses)

    assert not episode.is_open
    assert episode.last.step > 60 * 250


@pytest.mark.parametrize(("num", "is_late"), [(40, False), (70, True)])
def test_a_log_is_judged_when_half_of_it_is_over(tmp_path: Path, num: int, is_late: bool) -> None:
    """Some runs stay at chance for a good part of their length, and learn then."""
    chance, learning = noisy(flat(num, 2.303), 0.002), noisy(fallen(100 - num, 2.303, 0.5, 10), 0.002)

    found = episodes(tmp_path, "not_learning", np.concatenate([chance, learning]))

    assert bool(found) == is_late
    assert all(episode.first.step >= 49 * 250 for episode in found)


@pytest.mark.parametrize(("num", "is_found"), [(11, False), (12, True)])
def test_a_log_that_is_over_after_twelve_rows_will_have_no_more(tmp_path: Path, num: int, is_found: bool) -> None:
    assert ("not_learning" in raised(tmp_path, noisy(flat(num, 2.303), 0.002))) == is_found
    assert raised(tmp_path, noisy(fallen(num, 2.303, 1.5, 8), 0.002)) == {}


def test_rows_without_a_loss_do_not_count_for_its_length(tmp_path: Path) -> None:
    """Trainers write evaluations, and sometimes more, into rows of their own."""
    losses = np.full(160, NAN)
    losses[::4] = noisy(flat(40, 2.303), 0.002)
    path = tmp_path / "log.csv"
    cells = ["" if np.isnan(loss) else str(loss) for loss in losses.tolist()]
    path.write_text("step,loss,epoch\n" + "\n".join(f"{step},{cell},1" for step, cell in enumerate(cells)))

    assert "not_learning" in {finding.rule for finding in play(read_log(path), load(None).rules).findings}


def test_each_attempt_of_a_log_has_a_length_of_its_own(tmp_path: Path) -> None:
    first, second = noisy(fallen(300, 2.303, 0.5, 10), 0.002), noisy(flat(60, 2.303), 0.002)
    steps = np.concatenate([np.arange(300), np.arange(60)])
    path = tmp_path / "log.csv"
    values = zip(steps.tolist(), np.concatenate([first, second]).tolist(), strict=True)
    path.write_text("step,loss\n" + "\n".join(f"{step},{loss}" for step, loss in values))

    assert "not_learning" in {finding.rule for finding in play(read_log(path), load(None).rules).findings}


@pytest.mark.parametrize(("noise", "fall", "is_found"), [(0.05, 0.0, True), (0.05, 0.2, False), (0.3, 0.0, False)])
@pytest.mark.parametrize("seed", seeds(3))
def test_a_noisy_log_without_a_trend(tmp_path: Path, noise: float, fall: float, is_found: bool, seed: int) -> None:
    """It need not be flat to a percent: it must have fallen by less than any run that learns, for certain."""
    losses = noisy(np.linspace(4.0, 4.0 * (1.0 - fall), 100), noise, seed=seed)

    assert ("not_learning" in raised(tmp_path, losses)) == is_found


def test_coming_back_from_a_bad_start_is_no_progress(tmp_path: Path) -> None:
    losses = noisy(np.concatenate([[4.0], [16.0, 21.0, 9.0], flat(56, 4.0)]), 0.01)

    assert "not_learning" in raised(tmp_path, losses)


def wandering(num: int, level: float, size: float, seed: int) -> Float64:
    """A level that keeps nine tenths of its deviation from row to row."""
    values, last = [], 0.0
    for fresh in np.random.default_rng(seed).standard_normal(num).tolist():
        last = 0.9 * last + (1.0 - 0.81) ** 0.5 * fresh
        values.append(level * np.exp(size * last))
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize("seed", seeds(8))
def test_a_level_that_wanders_neither_stands_still_nor_rises(tmp_path: Path, seed: int) -> None:
    """Rows that resemble their neighbours are fewer observations than rows."""
    losses = wandering(400, 1.0, 0.1, seed) * power_law(400)

    assert not {"plateau", "not_learning", "divergence"} & raised(tmp_path, losses).keys()


@pytest.mark.parametrize("num", [30, 150])
def test_a_steady_rise_within_such_wandering_is_a_divergence(tmp_path: Path, num: int) -> None:
    losses = wandering(num, 1.0, 0.03, 1) * np.concatenate(
        [fallen(num // 3, 3.0, 1.0, 3), np.linspace(1, 2.2, num - num // 3)]
    )

    assert "divergence" in raised(tmp_path, losses)


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("seed", seeds(3))
def test_slow_progress_is_none(tmp_path: Path, noise: float, seed: int) -> None:
    assert "plateau" not in raised(tmp_path, noisy(power_law(400), noise, seed=seed))


@pytest.mark.parametrize("seed", seeds(5))
def test_what_noise_hides_is_not_reported(tmp_path: Path, seed: int) -> None:
    """Of losses that scatter by 30 %, forty rows do not show whether they fall by a few percent."""
    losses = np.concatenate([[10.8], noisy(power_law(39), 0.3, seed=seed)])

    assert "plateau" not in raised(tmp_path, losses)


def test_a_log_that_fell_to_a_tenth_may_have_converged(tmp_path: Path) -> None:
    assert "plateau" not in raised(tmp_path, stuck(100, 74.0))


def test_a_live_run_may_be_at_its_noise_floor_within_a_few_steps() -> None:
    assert Watch("plateau").over(views(stuck(600))).is_silent


def test_evaluations_show_what_the_noise_of_batches_hides(tmp_path: Path) -> None:
    losses, still = stuck(60, noise=0.03), np.concatenate([[15.0], noisy(flat(59, 7.5), 0.002)])
    learning = noisy(power_law(60, 10.8, 3.0), 0.002)

    assert "plateau" not in raised(tmp_path, losses)
    assert raised(tmp_path, losses, still).get("plateau") == "warning"
    assert "plateau" not in raised(tmp_path, losses, learning)


# Restlessness


def restless(num: int, level: float, seed: int = 0) -> Float64:
    """Values that scatter by a factor, each independent of the one before."""
    return np.asarray(level * np.exp(0.7 * np.random.default_rng(seed).standard_normal(num)), dtype=np.float64)


@pytest.mark.parametrize("num", [24, 60, 240])
def test_a_calm_log_that_becomes_restless_oscillates(tmp_path: Path, num: int) -> None:
    """Half of the log is enough, however few rows it has."""
    calm = num // 2
    losses = np.concatenate([noisy(fallen(calm, 5.0, 1.0, num / 16), 0.01), restless(num - calm, 1.2)])

    first = episodes(tmp_path, "oscillation", losses)[0].first

    assert first.severity == "warning"
    assert first.step / 250 >= calm + 3


@pytest.mark.parametrize("period", [2.0, 3.0, 7.0, 12.0])
def test_slow_and_fast_waves_are_unrest(tmp_path: Path, period: float) -> None:
    wave = 1.0 + 0.5 * np.cos(2 * np.pi * np.arange(60) / period)
    losses = np.concatenate([noisy(fallen(40, 5.0, 1.0, 5), 0.01), wave])

    assert raised(tmp_path, losses).get("oscillation") == "warning"


@pytest.mark.parametrize(("size", "is_found"), [(0.08, False), (0.4, True)])
def test_swings_must_be_a_good_part_of_the_level(tmp_path: Path, size: float, is_found: bool) -> None:
    swings = 1.0 + size * (-1.0) ** np.arange(60)
    losses = np.concatenate([noisy(fallen(60, 5.0, 1.0, 5), 0.003), swings])

    assert ("oscillation" in raised(tmp_path, losses)) == is_found


def test_a_few_restless_rows_are_not_enough(tmp_path: Path) -> None:
    losses = np.concatenate([noisy(fallen(128, 5.0, 1.0, 15), 0.01), restless(12, 1.2), noisy(flat(100, 1.0), 0.01)])

    assert episodes(tmp_path, "oscillation", losses) == []


@pytest.mark.parametrize("level", [0.6, 1.7, 5.0])
@pytest.mark.parametrize("num", [30, 60, 200])
def test_another_level_is_no_unrest(tmp_path: Path, num: int, level: float) -> None:
    losses = np.concatenate([noisy(flat(num, 1.0), 0.01), noisy(flat(num, level), 0.01)])

    assert episodes(tmp_path, "oscillation", losses) == []


def test_it_is_over_when_the_log_is_calm_again(tmp_path: Path) -> None:
    losses = np.concatenate([noisy(fallen(120, 5.0, 1.0, 15), 0.01), restless(120, 1.2), noisy(flat(100, 1.0), 0.01)])

    found = episodes(tmp_path, "oscillation", losses)

    assert found
    assert not any(episode.is_open for episode in found)


@pytest.mark.parametrize("seed", seeds(5))
def test_a_log_that_was_never_calm_is_noisy(tmp_path: Path, seed: int) -> None:
    assert "oscillation" not in raised(tmp_path, fallen(600, 5.0, 1.0, 60) * restless(600, 1.0, seed))


def test_a_loss_that_scatters_because_it_has_learned_is_lower(tmp_path: Path) -> None:
    """All batches are alike to an untrained classifier; later some are easy and some are not."""
    losses = np.concatenate([noisy(flat(120, 0.693), 0.005), restless(200, 0.3)])

    assert "oscillation" not in raised(tmp_path, losses)


# Above its start, and too slow


def test_ten_rows_well_above_the_start_are_not_a_warm_up(tmp_path: Path) -> None:
    losses = np.concatenate([[7.1, 6.9, 7.3], noisy(flat(20, 12.3), 0.15)])

    assert raised(tmp_path, losses[:10]) == {}
    assert raised(tmp_path, losses).get("lr_too_high") == "warning"


def test_a_little_above_its_start_is(tmp_path: Path) -> None:
    losses = np.concatenate([[7.1, 6.9, 7.3], noisy(flat(12, 8.8), 0.05), noisy(fallen(30, 8.8, 4.0, 8), 0.02)])

    assert "lr_too_high" not in raised(tmp_path, losses)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_validation_loss_that_rises_within_its_noise_is_seen_in_all_evaluations(tmp_path: Path, seed: int) -> None:
    training = noisy(fallen(100, 4.0, 0.3, 25), 0.01)
    level = np.concatenate([fallen(30, 4.0, 1.0, 6), np.linspace(1.0, 1.6, 70)])

    assert raised(tmp_path, training, noisy(level, 0.12, seed=seed)) == {"overfitting": "warning"}
    assert raised(tmp_path, training, noisy(np.minimum(level, fallen(100, 4.0, 1.0, 6)), 0.12, seed=seed)) == {}


# A validation that breaks


def evaluated(*values: float) -> Float64:
    """An evaluation in every fifth row; the others have none."""
    rows = np.full(5 * len(values), NAN)
    rows[::5] = values
    return rows


def test_a_validation_loss_that_is_infinite_once_is_a_warning_and_is_over_with_the_next() -> None:
    at = {20: 3.0, 40: 2.5, 60: 2.2, 80: float("inf"), 100: 2.1}
    watched = Watch("non_finite").over(views(noisy(power_law(120), 0.01), validations=at))

    episode = watched.only()
    assert (episode.severity, episode.first.onset_step, episode.is_open) == ("warning", 80, False)
    assert episode.first.phase == "validation"


def test_one_that_was_never_finite_or_is_written_as_nan_where_there_is_none_is_no_news() -> None:
    losses = noisy(power_law(200), 0.01)
    gaps = {step: (2.0 if step % 20 == 0 else NAN) for step in range(0, 200, 5)}

    assert Watch("non_finite").over(views(losses, validations={20: NAN, 40: NAN, 60: NAN})).is_silent
    assert Watch("non_finite").over(views(losses, validations=gaps)).is_silent


def test_a_loss_that_breaks_as_well_is_another_episode() -> None:
    losses = noisy(power_law(120), 0.01)
    losses[100:] = NAN
    at = {20: 3.0, 40: 2.5, 60: 2.2, 80: NAN}

    watched = Watch("non_finite").over(views(losses, validations=at))

    assert [episode.severity for episode in watched.episodes] == ["warning", "critical"]


# NaN in single rows


@pytest.mark.parametrize(
    ("bad", "severity"), [((20,), "warning"), ((20, 55), "critical"), ((20, 21), "critical"), ((79,), "critical")]
)
def test_a_row_of_nan_pages_if_it_is_not_the_only_one_or_the_log_ends_there(
    tmp_path: Path, bad: tuple[int, ...], severity: str
) -> None:
    losses = noisy(fallen(80, 4.0, 1.0, 20), 0.01)
    losses[list(bad)] = NAN

    assert raised(tmp_path, losses) == {"non_finite": severity}


# The end of a log


@pytest.mark.parametrize(("end", "severity"), [(1.15, "warning"), (1.5, "critical")])
@pytest.mark.parametrize("num", [40, 200])
def test_a_log_that_ends_well_above_its_best_pages(tmp_path: Path, num: int, end: float, severity: str) -> None:
    losses = noisy(np.concatenate([fallen(num // 2, 4.0, 1.0, num / 12), np.linspace(1.0, end, num // 2)]), 0.002)

    assert raised(tmp_path, losses)["divergence"] == severity


def test_the_same_rise_does_not_page_while_the_log_goes_on(tmp_path: Path) -> None:
    rise = np.concatenate(
        [fallen(60, 4.0, 1.0, 8), np.linspace(1.0, 1.4, 60), np.linspace(1.4, 0.8, 40), flat(40, 0.8)]
    )

    assert raised(tmp_path, noisy(rise, 0.002)) == {"divergence": "warning"}


@pytest.mark.parametrize(("num", "is_found"), [(32, True), (200, False)])
def test_the_level_before_a_spike_is_learned_from_a_quarter_of_a_short_log(
    tmp_path: Path, num: int, is_found: bool
) -> None:
    """A long log has time to learn it, and its first rows are its start."""
    losses = noisy(fallen(num, 4.0, 2.0, 10), 0.01)
    losses[14] *= 3.0

    assert ("loss_spike" in raised(tmp_path, losses)) == is_found
