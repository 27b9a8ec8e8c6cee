"""JSON logs: the Hugging Face Trainer's, W&B's, and one object a line."""

import gzip
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_daemon.offline.replay.logs import Log, read_log


def a_log(tmp_path: Path, text: str | bytes, name: str = "run.json") -> Log:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_log(file)


def logged(log: Log, name: str) -> list[float | None]:
    """A column with None where there is a gap."""
    column = log.columns[name]
    return [value if there else None for value, there in zip(column.values.tolist(), column.is_logged, strict=True)]


def test_the_trainers_state(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports warn
        from transformers.trainer_callback import TrainerState

    state = TrainerState(
        log_history=[
            {"loss": 2.0, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 0.5, "step": 10},
            {"loss": math.nan, "grad_norm": math.inf, "learning_rate": 1e-4, "epoch": 1.0, "step": 20},
            {"eval_loss": 2.2, "eval_runtime": 3.0, "epoch": 1.0, "step": 20},
            {"train_runtime": 60.0, "train_loss": 1.9, "total_flos": 1e30, "epoch": 1.0, "step": 20},
        ]
    )
    state.save_to_json(str(tmp_path / "trainer_state.json"))

    for path in (tmp_path / "trainer_state.json", tmp_path):
        log = read_log(path)
        assert log.steps.tolist() == [10, 20]
        assert log.columns["loss"].is_logged.tolist() == [True, True]
        assert np.isnan(log.columns["loss"].values[1])
        assert logged(log, "grad_norm") == [1.5, math.inf]
        assert logged(log, "lr") == [1e-4, 1e-4]
        assert logged(log, "val_loss") == [None, 2.2]
        assert logged(log, "train_loss") == [None, 1.9]


ROWS: list[dict[str, Any]] = [
    {"_step": 0, "_runtime": 1.5, "train/loss": 2.0, "note": "begun"},
    {"_step": 1, "_runtime": 2.5, "train/loss": None, "eval/loss": 2.5},
    {"_step": 2, "_runtime": 3.5, "train/loss": "NaN", "eval/loss": None},
]
COLUMNS = {name: [row.get(name) for row in ROWS] for name in ("_step", "_runtime", "train/loss", "eval/loss")}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        json.dumps({"rows": ROWS}),
        json.dumps({"run": "vivid-sun-3", "history": ROWS}),
        json.dumps(COLUMNS),
        json.dumps({name: {str(i): cell for i, cell in enumerate(cells)} for name, cells in COLUMNS.items()}),
        "\n".join(map(json.dumps, ROWS)),
        "".join(json.dumps(row) + "\r\n\r\n" for row in ROWS),
        "\ufeff" + json.dumps(ROWS).replace('"NaN"', "NaN"),
    ],
)
def test_rows_columns_and_lines_say_the_same(tmp_path: Path, text: str) -> None:
    log = a_log(tmp_path, text)

    assert log.steps.tolist() == [0, 1, 2]
    assert log.columns["loss"].is_logged.tolist() == [True, False, True]
    assert np.isnan(log.columns["loss"].values[2])
    assert logged(log, "val_loss") == [None, 2.5, None]
    assert logged(log, "_runtime") == [1.5, 2.5, 3.5]
    assert "note" not in log.columns


def test_bare_infinities_strings_and_huge_numbers_in_lines(tmp_path: Path) -> None:
    lines = [
        '{"num_updates": "1", "loss": "8.4"}',
        '{"num_updates": 2, "loss": -Infinity, "tokens": 1' + "0" * 400 + "}",
    ]
    log = a_log(tmp_path, gzip.compress("\n".join(lines).encode()), "train.jsonl.gz")

    assert log.steps.tolist() == [1, 2]
    assert logged(log, "loss") == [8.4, -math.inf]
    assert logged(log, "tokens") == [None, math.inf]


def test_objects_within_a_row_are_taken_apart(tmp_path: Path) -> None:
    log = a_log(tmp_path, '{"step": 1, "train": {"loss": 2, "lr": [1]}, "val": {"loss": 3}, "ok": true}')

    assert {name: logged(log, name) for name in log.columns} == {"loss": [2], "val_loss": [3]}


def test_lines_of_validation_beside_lines_of_training(tmp_path: Path) -> None:
    log = a_log(
        tmp_path, '{"mode":"train","iter":50,"loss":2}\n{"mode":"val","iter":50,"loss":3}\n{"mode":"train","iter":'
    )

    assert log.steps.tolist() == [50]
    assert (logged(log, "loss"), logged(log, "val_loss")) == ([2], [3])
