"""How belief becomes confidence: no order changes, and the parts add up."""

import pytest

from caboose_daemon.diagnosis.calibration import calibrated
from caboose_daemon.diagnosis.weighing import diagnose
from support.cases import a_case, a_finding


@pytest.mark.parametrize("shares", [[0.5, 0.1, 0.05], [0.96, 0.02], [0.31, 0.3, 0.2], [0.9], [0.4, 0.4, 0.2]])
def test_the_order_stays_and_nothing_is_more_than_certain(shares: list[float]) -> None:
    found = calibrated(shares)

    assert found == sorted(found, reverse=True)
    assert sum(found) <= 1.0 + 1e-9
    assert all(0 < one < 1 for one in found)


def test_a_first_cause_is_surer_the_further_it_is_ahead() -> None:
    ahead = [calibrated([share, 0.1])[0] for share in (0.46, 0.6, 0.75, 0.88)]

    assert ahead == sorted(ahead)
    assert 0.75 < ahead[0] < ahead[-1] < 0.97


def test_one_of_two_alike_is_a_guess_among_two() -> None:
    assert calibrated([0.45, 0.45])[0] == pytest.approx(0.5)


def test_where_the_unknown_has_more_nothing_is_named() -> None:
    assert calibrated([0.3, 0.1]) == [0.3, 0.1]
    assert calibrated([]) == []


def test_faults_of_processes_keep_their_belief() -> None:
    silent = diagnose(a_case(a_finding("rank_silent", 100)))

    assert sum(cause.confidence for cause in silent.causes) + silent.unknown == pytest.approx(1.0)
