"""What a log has of accuracies, of training and of validation, reaches rules and causes."""

from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.offline.replay.player import Judged, play

STEPS = 1500


def judged(folder: Path, columns: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]) -> Judged:
    """A log of these columns; those of validation in every fiftieth row."""
    rows = [",".join(["step", *columns])]
    for step in range(STEPS):
        is_evaluated = step % 50 == 49
        values = [f"{v[step]:.4f}" if is_evaluated or "val" not in name else "" for name, v in columns.items()]
        rows.append(",".join([str(step), *values]))
    (folder / "run.csv").write_text("\n".join(rows) + "\n")
    return play(read_log(folder / "run.csv"), Config().rules)


AT = np.arange(STEPS)
TRAIN = 0.05 + 2.2 * np.exp(-AT / 100)


@pytest.mark.parametrize("name", ["val_acc", "val/accuracy", "eval_accuracy"])
def test_a_validation_loss_that_rises_while_accuracy_holds_is_overconfidence(tmp_path: Path, name: str) -> None:
    accuracy = 0.85 * (1 - np.exp(-AT / 60))
    found = judged(tmp_path, {"loss": TRAIN, "val_loss": 0.5 + np.exp(-AT / 80) + 0.0004 * AT, name: accuracy})
    assert "metric_divergence" in {episode.rule for episode in found.episodes}
    causes = {cause.id for one in found.incidents if one.diagnosis for cause in one.diagnosis.causes}
    assert "overconfident" in causes


def test_training_accuracy_far_above_that_of_validation_is_a_gap(tmp_path: Path) -> None:
    columns = {"loss": TRAIN, "train_acc": 1 - 0.9 * np.exp(-AT / 150), "val_loss": 0.4 + np.exp(-AT / 80)}
    found = judged(tmp_path, {**columns, "val_acc": 0.7 * (1 - np.exp(-AT / 100))})
    (gap,) = [episode for episode in found.episodes if episode.rule == "generalisation_gap"]
    assert gap.severity == "warning"
    assert "accuracy 70 % against 100 % in training" in gap.last.summary
