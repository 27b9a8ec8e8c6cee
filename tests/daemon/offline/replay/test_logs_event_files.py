"""TensorBoard's event files, written by torch's SummaryWriter."""

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_daemon.offline.replay.logs import Log, LogError, read_log

pytest.importorskip("tensorboard", reason="event files are written and read with it")


def a_writer(directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports warn
        from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory))


def logged(log: Log, name: str) -> list[float | None]:
    """A column with None where there is a gap."""
    column = log.columns[name]
    return [value if there else None for value, there in zip(column.values.tolist(), column.is_logged, strict=True)]


def a_run(directory: Path, steps: range) -> Path:
    writer = a_writer(directory)
    for step in steps:
        writer.add_scalar("train/loss", 2.0, step)
        writer.add_scalar("train/lr", 0.5, step)
    writer.close()
    (file,) = directory.glob("*tfevents*")
    return file


def test_scalars_of_one_step_become_one_row(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for step in range(1, 4):
        writer.add_scalar("Loss/train", math.nan if step == 2 else float(step), step)
        writer.add_scalar("learning_rate", 0.5, step)
        writer.add_scalar("accuracy", 0.25, step, new_style=True)
        writer.add_histogram("weights", np.arange(10.0), step)
    writer.add_text("config", "lr: 1", 0)
    writer.add_scalar("Loss/val", 4.0, 2)  # late: the loss is at step 3 already
    writer.close()

    (file,) = tmp_path.glob("*tfevents*")
    renamed = tmp_path / "run.csv"
    renamed.write_bytes(file.read_bytes())
    for path in (tmp_path, file, renamed):
        log = read_log(path)
        assert log.steps.tolist() == [1, 2, 3]
        assert log.columns["loss"].is_logged.all()
        assert np.isnan(log.columns["loss"].values[1])
        assert logged(log, "val_loss") == [None, 4.0, None]
        assert logged(log, "lr") == [0.5] * 3
        assert logged(log, "accuracy") == [0.25] * 3
        assert set(log.columns) == {"loss", "val_loss", "lr", "accuracy"}


def test_a_resumed_run_goes_back_where_its_loss_does(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for step in (1, 2, 3, 2, 3, 4):
        writer.add_scalar("loss", 1.0, step)
        writer.add_scalar("lr", 0.5, step)
    writer.close()

    assert read_log(tmp_path).steps.tolist() == [1, 2, 3, 2, 3, 4]


def test_a_directorys_files_follow_each_other(tmp_path: Path) -> None:
    first = a_run(tmp_path / "a", range(5))
    second = a_run(tmp_path / "b", range(3, 7))
    both = tmp_path / "both"
    both.mkdir()
    first.rename(both / "events.out.tfevents.9")
    second.rename(both / "events.out.tfevents.10")

    assert read_log(both).steps.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6]
    assert read_log(tmp_path).steps.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6]  # the one directory below that has any


def test_several_runs_below_a_directory_are_refused(tmp_path: Path) -> None:
    a_run(tmp_path / "a", range(5))
    a_run(tmp_path / "b", range(5))

    with pytest.raises(LogError, match=rf"holds several runs; name one of {tmp_path / 'a'}, {tmp_path / 'b'}$"):
        read_log(tmp_path)


def test_a_record_cut_short_is_left_out(tmp_path: Path) -> None:
    file = a_run(tmp_path, range(5))
    file.write_bytes(file.read_bytes()[:-5])

    log = read_log(file)

    assert logged(log, "loss") == [2.0] * 5
    assert logged(log, "lr") == [0.5] * 4 + [None]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    file = a_run(tmp_path, range(5))
    whole = file.read_bytes()
    file.write_bytes(whole[:60] + b"\xff" * 40 + whole[100:])

    with pytest.raises(LogError, match=r"damaged at byte \d+: .*is it an event file\?$"):
        read_log(file)


def test_without_tensorboard_the_line_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_run(tmp_path, range(5))
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)

    with pytest.raises(LogError) as refused:
        read_log(file)

    assert str(refused.value) == f"{file}: TensorBoard's event files are read with tensorboard: pip install tensorboard"


def test_an_event_file_without_scalars_says_so(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="an event file without scalars yet"):
        read_log(a_run(tmp_path, range(0)))
