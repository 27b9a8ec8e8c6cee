"""What is diagnosed from a log alone: curves, without layers, ranks or samples."""

from pathlib import Path

import numpy as np

from caboose_daemon.config import load
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.offline.replay.player import play
from support.curves import Float64, flat, noisy

ROWS = 1500


def incidents(directory: Path, **columns: Float64) -> list[Incident]:
    path = directory / "log.csv"
    rows = [",".join(map(str, (step, *row))) for step, row in enumerate(zip(*columns.values(), strict=True))]
    path.write_text("\n".join([",".join(["step", *columns]), *rows]) + "\n")
    return [one for one in play(read_log(path), load(None).rules).incidents if one.severity != "info"]


def causes(incident: Incident) -> list[str]:
    assert incident.diagnosis is not None
    return [cause.id for cause in incident.diagnosis.causes]


def test_a_gradient_norm_of_nothing_is_evidence_that_it_vanishes(tmp_path: Path) -> None:
    loss, lr = noisy(flat(ROWS, 2.303), 0.001), flat(ROWS, 1e-3)
    (tiny,) = incidents(tmp_path, loss=loss, lr=lr, grad_norm=noisy(flat(ROWS, 1e-8), 0.1))
    (usual,) = incidents(tmp_path, loss=loss, lr=lr, grad_norm=noisy(flat(ROWS, 0.5), 0.1))

    assert causes(tiny)[0] == "vanishing_depth"
    assert "vanishing_depth" not in causes(usual)


def test_a_loss_that_swings_from_early_on_and_learns_nothing_is_one_incident(tmp_path: Path) -> None:
    swings = 1.0 + 0.5 * np.sin(2.0 * np.arange(ROWS)) * (1 + np.arange(ROWS) / ROWS)
    (incident,) = incidents(tmp_path, loss=noisy(swings), lr=flat(ROWS, 0.5))

    assert {"oscillation", "not_learning"} <= {episode.rule for episode in incident.episodes}
    assert causes(incident)[0] == "lr_too_high"


def test_a_loss_that_swings_only_at_the_end_does_not_explain_that_nothing_was_learned(tmp_path: Path) -> None:
    loss = noisy(flat(ROWS, 2.3), 0.004)
    loss[1100:] += 0.8 * np.sin(2.0 * np.arange(400))
    found = incidents(tmp_path, loss=loss, lr=flat(ROWS, 0.5))

    assert [sorted({episode.rule for episode in one.episodes}) for one in found][:1] == [["not_learning"]]


def test_a_fall_in_the_first_rows_only_is_named_and_weighed_as_a_plateau(tmp_path: Path) -> None:
    loss = noisy(1.4 + 0.9 * np.exp(-np.arange(ROWS) / 60), 0.006)
    (incident,) = incidents(tmp_path, loss=loss, lr=flat(ROWS, 1e-3))

    assert "in which it fell from 2.3" in incident.summary
    assert causes(incident) == ["saddle"]
