"""CSV logs: what people, Lightning and W&B write."""

import gzip
import math
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.offline.replay.logs import Log, read_log


def a_log(tmp_path: Path, text: str | bytes, name: str = "run.csv") -> Log:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_log(file)


def logged(log: Log, name: str) -> list[float | None]:
    """A column with None where there is a gap."""
    column = log.columns[name]
    return [value if there else None for value, there in zip(column.values.tolist(), column.is_logged, strict=True)]


def test_every_column_is_read_with_its_gaps(tmp_path: Path) -> None:
    log = a_log(tmp_path, "step,loss,grad_norm,lr,val_loss\n1,2.5,0.1,3e-4,\n2,2.4,,3e-4,2.6\n")

    assert log.file == str(tmp_path / "run.csv")
    assert log.steps.dtype == np.int64
    assert log.steps.tolist() == [1, 2]
    assert list(log.columns) == ["loss", "grad_norm", "lr", "val_loss"]
    assert logged(log, "loss") == [2.5, 2.4]
    assert logged(log, "grad_norm") == [0.1, None]
    assert logged(log, "val_loss") == [None, 2.6]


def test_a_nan_that_was_logged_is_no_gap(tmp_path: Path) -> None:
    log = a_log(tmp_path, "step,loss\n1,nan\n2,NaN\n3,\n4,inf\n5,-inf\n6,Inf\n7,None\n8,1\n")

    values = log.columns["loss"].values
    assert log.columns["loss"].is_logged.tolist() == [True, True, False, True, True, True, False, True]
    assert np.isnan(values[:2]).all()
    assert values[3:6].tolist() == [math.inf, -math.inf, math.inf]


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("global_step,train_loss,learning_rate,eval_loss", ["loss", "lr", "val_loss"]),
        ("_step,train/loss,train/learning_rate,val/loss", ["loss", "lr", "val_loss"]),
        ("iteration,lm loss,grad-norm,lm loss validation", ["loss", "grad_norm", "val_loss"]),
        ("iter,Training Loss,gradient_norm,valid_loss", ["loss", "grad_norm", "val_loss"]),
        ("trainer/global_step,train_loss_step,lr-AdamW,train_loss_epoch", ["loss", "lr", "train_loss_epoch"]),
        ("step,loss,train_loss,epoch", ["loss", "train_loss", "epoch"]),
        (
            "Step,vivid-sun-3 - train/loss,vivid-sun-3 - train/loss__MIN,x",
            ["loss", "vivid-sun-3 - train/loss__MIN", "x"],
        ),
    ],
)
def test_names_of_other_loggers_are_known(tmp_path: Path, header: str, names: list[str]) -> None:
    log = a_log(tmp_path, f"{header}\n1,2,3,4\n2,3,4,5\n")

    assert log.steps.tolist() == [1, 2]
    assert list(log.columns) == names
    assert logged(log, "loss") == [2, 3]


def test_a_trainers_step_comes_before_the_loggers_count(tmp_path: Path) -> None:
    log = a_log(tmp_path, "_step,_runtime,train/global_step,train/loss\n0,1.5,50,2\n1,1.9,100,1\n")

    assert log.steps.tolist() == [50, 100]
    assert logged(log, "_step") == [0, 1]


def test_a_step_with_gaps_gives_way_to_one_without(tmp_path: Path) -> None:
    assert a_log(tmp_path, "_step,train/global_step,train/loss\n0,50,2\n1,,1\n").steps.tolist() == [0, 1]


def test_rows_without_step_or_value_are_passed_over(tmp_path: Path) -> None:
    assert a_log(tmp_path, "step,loss,gpu\n1,2,\n,,55\n2,3,\n").steps.tolist() == [1, 2]


def test_neighbouring_rows_of_one_step_become_one(tmp_path: Path) -> None:
    log = a_log(tmp_path, "step,epoch,time,loss,val_loss,lr\n1,0,10,2,,1\n1,0,11,,3,1\n2,0,12,1,,1\n")

    assert log.steps.tolist() == [1, 2]
    assert logged(log, "loss") == [2, 1]
    assert logged(log, "val_loss") == [3, None]
    assert logged(log, "time") == [11, 12]


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        ("1,2,\n1,2,\n", [1, 1]),  # a loss twice, even the same
        ("1,2,0.5\n1,,0.7\n", [1, 1]),  # another quantity with two values
        ("1,2,nan\n1,,nan\n", [1]),
        ("1,2,\n2,3,\n1,,5\n", [1, 2, 1]),  # not neighbours: a resumed run
        ("1,2,\n1,,5\n1,3,\n1,,6\n", [1, 1]),  # two pairs
    ],
)
def test_rows_that_contradict_each_other_stay_apart(tmp_path: Path, rows: str, steps: list[int]) -> None:
    assert a_log(tmp_path, f"step,loss,accuracy\n{rows}").steps.tolist() == steps


def test_a_step_that_goes_back_is_kept(tmp_path: Path) -> None:
    assert a_log(tmp_path, "step,loss\n1,1\n2,1\n3,1\n2,1\n3,1\n").steps.tolist() == [1, 2, 3, 2, 3]


@pytest.mark.parametrize("tail", ["3", "3,", "3,1,", '3,"1', "3,1,2e-", "3,1,0.5x\n"])
def test_half_a_line_at_the_end_is_left_out(tmp_path: Path, tail: str) -> None:
    log = a_log(tmp_path, f"step,loss,lr\n1,1,1\n2,1,1\n{tail}")

    assert log.steps.tolist()[:2] == [1, 2]
    assert len(log.steps) == (3 if tail == "3,1," else 2)


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfstep,loss\r\n1,2\r\n2,3\r\n",
        "step,loss\n1,2\n2,3\n".encode("utf-16"),
        gzip.compress(b"step,loss\n1,2\n2,3\n", mtime=0),
        b'"step","loss"\n"1","2"\n"2","3"',
        b"step\tloss\n1\t2\n2\t3\n",
        b"step; loss\n 1; 2\n 2; 3\n",
        b"\n\nstep,loss\n\n1,2\n\n2,3\n\n",
        b"# step,loss\n1e0,2\n2.0,3\n",
        b"step,loss\n1,2\nstep,loss\n2,3\n",  # a resumed run wrote its header again
        b"step,loss,note\n1,2,begun\n2,3,\n",
        b"step,loss,gpu,gpu\n1,2,5,6\n2,3,5,6\n",
        b"step,loss,\n1,2,\n2,3,\n",
        b"step,loss,caf\xe9\n1,2,5\n2,3,5\n",
    ],
)
def test_the_way_it_is_written_does_not_matter(tmp_path: Path, text: bytes) -> None:
    log = a_log(tmp_path, text, "run.log")

    assert log.steps.tolist() == [1, 2]
    assert logged(log, "loss") == [2, 3]


def test_a_column_that_tells_training_from_validation_is_heeded(tmp_path: Path) -> None:
    log = a_log(tmp_path, "step,split,loss\n1,train,2\n1,val,3\n2,train,1\n")

    assert log.steps.tolist() == [1, 2]
    assert logged(log, "loss") == [2, 1]
    assert logged(log, "val_loss") == [3, None]


def test_columns_of_text_and_empty_columns_are_left_out(tmp_path: Path) -> None:
    log = a_log(tmp_path, "step,loss,note,lr,mixed\n1,2,a,,1\n2,2,b,,x\n3,2,b,,1\n")

    assert list(log.columns) == ["loss"]


def test_thousands_of_columns(tmp_path: Path) -> None:
    names = ",".join(f"layer.{i}.norm" for i in range(5000))
    log = a_log(tmp_path, f"step,loss,{names}\n" + "".join(f"{i},1,{'0.5,' * 4999}0.5\n" for i in range(20)))

    assert len(log.columns) == 5001
    assert len(log.steps) == 20


def test_lightnings_metrics_csv(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports warn
        from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path, name="run", version=0)
    for step in range(1, 5):
        logger.log_metrics({"epoch": 0, "train_loss_step": 1.0 / step, "lr-AdamW": 0.1}, step)
    logger.log_metrics({"epoch": 0, "val_loss": float("nan")}, 4)
    logger.log_metrics({"epoch": 0, "train_loss_epoch": 0.5}, 4)
    logger.save()

    log = read_log(tmp_path / "run" / "version_0")

    assert log.steps.tolist() == [1, 2, 3, 4]
    assert logged(log, "loss") == [1.0, 0.5, 1.0 / 3, 0.25]
    assert logged(log, "lr") == [0.1] * 4
    assert logged(log, "train_loss_epoch") == [None, None, None, 0.5]
    assert log.columns["val_loss"].is_logged.tolist() == [False, False, False, True]
    assert np.isnan(log.columns["val_loss"].values[3])


@pytest.mark.slow
@pytest.mark.long
def test_a_million_rows_are_read_in_seconds(tmp_path: Path) -> None:
    rows = "".join(
        f"{i},2.4567891,0.123456,0.0003,\n{i + 1},2.4567891,0.123456,0.0003,2.5\n" for i in range(0, 1000, 2)
    )
    file = tmp_path / "run.csv"
    file.write_text("step,loss,grad_norm,lr,val_loss\n" + rows * 1000)
    start = time.process_time()

    log = read_log(file)

    assert time.process_time() - start < 15
    assert len(log.steps) == 1_000_000
