"""Only causes that something speaks for are listed."""

from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.incidents.diagnosis_record import Diagnosis
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.offline.replay.player import play
from caboose_wire import Event
from support.scenario import scenario
from support.written_logs import written


def diagnoses_of(path: str) -> list[Diagnosis]:
    judged = play(read_log(Path(path)), Config().rules)
    return [incident.diagnosis for incident in judged.incidents if incident.diagnosis is not None]


@pytest.mark.parametrize("level", [2.3, 0.7])
def test_a_flat_log_without_anything_else_gets_no_list_of_guesses(tmp_path: Path, level: float) -> None:
    losses = level + np.random.default_rng(0).normal(0, 0.02, 1500)
    found = diagnoses_of(written(tmp_path, "flat", losses, lr=1e-3))
    assert found, "it is an incident"
    for diagnosis in found:
        assert all(cause.evidence_for for cause in diagnosis.causes)
        assert "batch_too_small" not in [cause.id for cause in diagnosis.causes]
        total = diagnosis.unknown + sum(cause.confidence for cause in diagnosis.causes)
        assert total == pytest.approx(1.0), "what is not listed is unknown"


def test_a_loss_that_falls_while_the_metric_stands_has_not_converged() -> None:
    story = scenario(about="metric_divergence", facts={"num_classes": 10})
    for number in range(12):
        story.losses(*np.linspace(2.0 - 0.12 * number, 1.9 - 0.12 * number, 10))
        fields = {"loss": 2.0 - 0.12 * number, "accuracy": 0.3}
        story.says(0, Event(attempt=0, step=10 * (number + 1), time=1.0, kind="validation", fields=fields))
    episode = story.only("metric_divergence")
    assert episode.first.values["stalled"] == 1
    (incident,) = story.job.incidents.open
    assert incident.diagnosis is not None
    assert "converged" not in [cause.id for cause in incident.diagnosis.causes[:2]]
