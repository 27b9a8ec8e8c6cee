"""not_learning, of logs that fall in a straight line at a rate that is far too small."""

from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.config import load
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.offline.replay.player import Judged, play
from support.curves import Float64, flat, noisy
from support.seeds import seeds

ROWS = 1500


def replayed(directory: Path, losses: Float64, rates: Float64) -> Judged:
    path = directory / "log.csv"
    rows = [f"{step},{loss},{rate}" for step, (loss, rate) in enumerate(zip(losses, rates, strict=True))]
    path.write_text("\n".join(["step,loss,lr", *rows]) + "\n")
    return play(read_log(path), load(None).rules)


def raised(directory: Path, losses: Float64, rate: float | Float64) -> set[str]:
    rates = flat(len(losses), rate) if isinstance(rate, float) else rate
    return {finding.rule for finding in replayed(directory, losses, rates).findings if finding.severity != "info"}


def straight(fall: float, *, start: float = 2.3, num: int = ROWS, noise: float = 0.01, seed: int = 0) -> Float64:
    return noisy(start * (1.0 - fall * np.arange(num) / num), noise, seed=seed)


def bent(fall: float, *, sharpness: float = 0.35, noise: float = 0.01, seed: int = 0) -> Float64:
    """A power law from 2.3 that loses this share in all."""
    curve = (1.0 + np.arange(ROWS) / 20.0) ** -sharpness
    return noisy(2.3 * (1.0 - fall * (1.0 - curve) / (1.0 - curve[-1])), noise, seed=seed)


@pytest.mark.parametrize("seed", seeds(5))
def test_a_straight_fall_at_a_tiny_rate_is_not_learning(tmp_path: Path, seed: int) -> None:
    made = replayed(tmp_path, straight(0.06, seed=seed), flat(ROWS, 1e-6))
    (incident,) = made.incidents
    cause = incident.diagnosis.causes[0]

    assert {finding.rule for finding in made.findings} == {"not_learning"}
    assert incident.severity == "warning"
    assert "loss creeps" in made.findings[0].summary
    assert (cause.id, cause.confidence > 0.5) == ("lr_too_low", True)


def test_a_schedule_to_zero_is_taken_into_account(tmp_path: Path) -> None:
    rates = 1e-6 * np.linspace(1.0, 0.0, ROWS)
    covered = np.cumsum(rates) / np.sum(rates)

    assert raised(tmp_path, noisy(2.3 * (1 - 0.06 * covered), 0.005), rates) == {"not_learning"}


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("fall", [0.03, 0.06, 0.12])
def test_fine_tuning_at_the_same_rate_bends_and_is_healthy(tmp_path: Path, fall: float, seed: int) -> None:
    assert "not_learning" not in raised(tmp_path, bent(fall, seed=seed), 1e-6)


def test_usual_rates_are_never_called_too_small(tmp_path: Path) -> None:
    assert raised(tmp_path, straight(0.06), 2.1e-6) == set()
    assert raised(tmp_path, straight(0.06), 1.9e-6) == {"not_learning"}


def test_a_fall_that_is_worth_its_steps_is_no_creeping(tmp_path: Path) -> None:
    assert raised(tmp_path, straight(0.16), 1e-6) == set()


def test_preferences_begin_at_ln_2_and_are_trained_at_such_rates(tmp_path: Path) -> None:
    assert raised(tmp_path, straight(0.1, start=0.693, noise=0.002), 1e-6) == set()


def test_a_short_log_or_one_of_noise_is_not_judged(tmp_path: Path) -> None:
    assert raised(tmp_path, straight(0.12, num=190), 1e-6) == set()
    assert raised(tmp_path, straight(0.08, num=400, noise=0.3), 1e-6) == set()
