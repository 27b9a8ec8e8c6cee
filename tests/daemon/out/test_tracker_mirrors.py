"""Mirrors to MLflow and Trackio, by the real libraries, read back from their files."""

import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from caboose_daemon.offline.replay.logs import read_log
from caboose_wire import Event
from support.processes import running_daemon, wait_until
from support.ranks import a_report, simulated_ranks

pytestmark = pytest.mark.slow
STEPS = 250
"""More than one batch of each."""


def mirrored(folder: Path, table: str, target: str) -> None:
    """A daemon with this mirror gets a run with a NaN and a validation, and ends. In a process of its own."""
    (folder / "caboose.toml").write_text(f"[export]\n{table}\n")
    sent = f'caboose_exports_total{{target="{target}"}} '
    with running_daemon(folder, env={"HOME": str(folder)}) as daemon:
        with simulated_ranks(daemon.endpoint, 1) as (rank,):
            for step in range(1, STEPS + 1):
                rank.send(a_report(step, loss=math.nan if step == 4 else 2.0 + 1 / step))
            rank.send(Event(attempt=0, step=STEPS, time=1.0, kind="validation", fields={"loss": 2.5}))
            assert wait_until(
                lambda: float(daemon.text("/metrics").partition(sent)[2].partition("\n")[0] or 0) >= STEPS + 1, 90
            )
        daemon.stop()


def check(path: Path) -> None:
    log = read_log(path)
    assert log.steps.tolist() == list(range(1, STEPS + 1))
    loss = log.columns["loss"].values.tolist()
    assert [loss[0], loss[-1]] == pytest.approx([3.0, 2.0 + 1 / STEPS])
    assert math.isnan(loss[3])
    assert log.columns["val_loss"].values[-1] == 2.5


def test_a_run_of_mlflow_holds_the_curves_and_its_incidents(tmp_path: Path) -> None:
    if find_spec("mlflow") is None:
        pytest.skip("mlflow-skinny is not installed")
    mirrored(tmp_path, f"mlflow_uri = '{(tmp_path / 'mlruns').as_uri()}'\nmlflow_experiment = 'e'", "mlflow")

    (metrics,) = (tmp_path / "mlruns").glob("*/*/metrics")
    check(metrics.parent)
    (tag,) = (metrics.parent / "tags" / "incidents").iterdir()
    assert "non_finite" in tag.read_text()


def test_a_run_of_trackio_holds_the_curves(tmp_path: Path) -> None:
    if find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    mirrored(tmp_path, f"trackio_project = 'p'\ntrackio_dir = '{tmp_path / 'runs'}'", "trackio")

    check(tmp_path / "runs" / "p.db")
