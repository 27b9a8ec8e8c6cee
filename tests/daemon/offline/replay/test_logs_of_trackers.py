"""Runs as the libraries of trackers write them: read from their files, without these libraries."""

import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.offline.replay.logs import Log, LogError, read_log, read_logs
from caboose_daemon.offline.runs.opening import open_runs

STEPS = 60
VALUES = "{'train/loss': math.exp(-step / 20) if step != 40 else math.nan, 'lr': 1e-3}"
WANDB = f"""
import math, sys, wandb
settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
run = wandb.init(project="p", mode="offline", dir=sys.argv[1], settings=settings)
for step in range({STEPS}):
    run.log({{**{VALUES}, "table": "x" * 3000, "picture": wandb.Histogram([1.0, 2.0])}}, step=step)
run.finish()
"""
MLFLOW = f"""
import math, sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("e")
for name in sys.argv[2:]:
    with mlflow.start_run(run_name=name):
        for step in range({STEPS}):
            mlflow.log_metrics({VALUES}, step=step)
"""
TRACKIO = f"""
import math, sys, trackio
for name in sys.argv[1:]:
    trackio.init(project="p", name=name, embed=False)
    for step in range({STEPS}):
        trackio.log({VALUES}, step=step)
    trackio.finish()
"""
pytestmark = pytest.mark.slow


def written(script: str, *arguments: object, needs: str, **env: str) -> None:
    """Runs a script that logs with the real library."""
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    command = [sys.executable, "-c", script, *map(str, arguments)]
    subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, timeout=200)


def check(log: Log) -> None:
    loss = log.columns["loss"]
    assert log.steps.tolist() == list(range(STEPS))
    expected = [math.exp(-step / 20) if step != 40 else math.nan for step in range(STEPS)]
    np.testing.assert_allclose(loss.values, expected, rtol=1e-6)
    assert loss.is_logged.all(), "NaN was logged"
    np.testing.assert_allclose(log.columns["lr"].values, 1e-3)


def never() -> None:
    raise AssertionError("no daemon is asked")


def names(text: object) -> list[str]:
    return [run.where for run in open_runs(str(text), never)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def of_wandb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wandb")
    written(WANDB, folder, needs="wandb")
    (run,) = folder.glob("wandb/offline-run-*")
    return run


def test_a_run_of_wandb_is_read_from_its_directory_its_file_and_the_directory_above(of_wandb: Path) -> None:
    (file,) = of_wandb.glob("*.wandb")
    for path in (of_wandb, file, of_wandb.parent.parent):
        check(read_log(path))
    assert names(of_wandb) == [str(of_wandb)]


def test_a_run_of_wandb_that_is_still_written_is_read_so_far(of_wandb: Path, tmp_path: Path) -> None:
    (file,) = of_wandb.glob("*.wandb")
    cut = tmp_path / "run.wandb"
    cut.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    assert 0 < len(read_log(cut).steps) < STEPS


@pytest.mark.parametrize("damage", [b"\xff" * 64, b"\x00" * 64], ids=["ones", "zeros"])
def test_a_damaged_run_of_wandb_is_refused_in_one_line(of_wandb: Path, tmp_path: Path, damage: bytes) -> None:
    (file,) = of_wandb.glob("*.wandb")
    body = file.read_bytes()
    bad = tmp_path / "run.wandb"
    bad.write_bytes(body[:100] + damage + body[100 + len(damage) :])

    with pytest.raises(LogError, match=str(bad)) as caught:
        read_log(bad)
    assert "\n" not in str(caught.value)


def test_an_empty_run_of_wandb_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(b":W&B\xe1\xbe\x00")

    with pytest.raises(LogError, match="without history yet"):
        read_log(path)


def test_the_runs_of_mlflows_database_are_read_one_by_one(tmp_path: Path) -> None:
    if find_spec("sqlalchemy") is None:
        pytest.skip("sqlalchemy is not installed, which MLflow needs for a database")
    database = tmp_path / "mlflow.db"
    written(MLFLOW, f"sqlite:///{database}", "one", "two", needs="mlflow")

    logs = read_logs(database)
    assert [log.file for log in logs] == [f"{database}:one", f"{database}:two"]
    for log in (*logs, read_log(Path(f"{database}:two"))):
        check(log)
    assert names(f"{database}:one") == [f"{database}:one"]
    with pytest.raises(LogError, match=f"name one: {database}:one, {database}:two"):
        read_log(tmp_path)
    with pytest.raises(LogError, match="no run 'three'; it has one, two"):
        read_log(Path(f"{database}:three"))


def test_a_run_in_mlflows_file_store_is_read_from_its_directory(tmp_path: Path) -> None:
    store = tmp_path / "mlruns"
    written(MLFLOW, store.as_uri(), "one", needs="mlflow", MLFLOW_ALLOW_FILE_STORE="true")

    (metrics,) = store.glob("*/*/metrics")
    check(read_log(metrics.parent))
    check(read_log(tmp_path))


def test_the_runs_of_a_project_of_trackio_are_read_one_by_one(tmp_path: Path) -> None:
    written(TRACKIO, "one", "two", needs="trackio", TRACKIO_DIR=str(tmp_path))

    project = tmp_path / "p.db"
    logs = read_logs(project)
    assert [log.file for log in logs] == [f"{project}:one", f"{project}:two"]
    for log in logs:
        check(log)
    assert names(f"{project}:two") == [f"{project}:two"]


def test_lines_that_are_no_metric_are_refused_and_half_a_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "meta.yaml").write_text("name: run\n")
    (tmp_path / "metrics").mkdir()
    file = tmp_path / "metrics" / "loss"
    file.write_text("1700000000000 0.5 0\n1700000000001 0.4 1\n17000")
    assert read_log(tmp_path).steps.tolist() == [0, 1]

    file.write_text("1700000000000 high 0\n1700000000001 0.4 1\n")
    with pytest.raises(LogError, match="line 1: not time, value and step"):
        read_log(tmp_path)
