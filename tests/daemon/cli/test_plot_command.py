"""`caboose plot` draws what a run has, as a picture or a page."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from caboose_daemon.offline.plotting.charts import charts, moving_average
from caboose_daemon.offline.runs.from_log import from_log
from support.written_logs import falling, written

VALIDATIONS = {50: 3.0, 200: 2.0, 390: 1.9}


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(caboose, ["plot", *arguments])


@pytest.fixture
def log(tmp_path: Path) -> str:
    return written(tmp_path, "run", falling(400, 1.0), lr=np.linspace(0.01, 0.001, 400), validations=VALIDATIONS)


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("html", b"<!doctype html>")])
def test_it_is_written_in_each_format(tmp_path: Path, log: str, ending: str, start: bytes) -> None:
    target = tmp_path / f"curves.{ending}"
    done = ran(log, "-o", str(target), "--json")
    assert done.exit_code == 0, done.output
    assert target.read_bytes().startswith(start)
    titles = [chart["title"] for chart in json.loads(done.stdout)["charts"]]
    assert titles == ["Loss", "Learning rate", "Loss against learning rate"]
    assert "last validation 1.9, training 1.3" in done.stdout


def test_the_loss_has_a_moving_average_that_does_not_look_ahead(log: str) -> None:
    (chart,) = charts([from_log(Path(log))], ["loss"], window=10)
    assert [series.name for series in chart.series] == ["loss", "moving average of 10", "validation"]
    raw, average = chart.series[0].y, chart.series[1].y
    assert average[100] == pytest.approx(np.mean([raw[i] or 0 for i in range(91, 101)]), rel=1e-4)
    assert list(chart.series[2].x) == list(VALIDATIONS)


def test_a_spike_of_one_step_stays_visible_in_a_long_run(tmp_path: Path) -> None:
    losses = falling(20_000, 1.0, noise=0.01)
    losses[13_337] = 50.0
    (chart,) = charts([from_log(Path(written(tmp_path, "long", losses)))], ["loss"])
    assert len(chart.series[0].y) <= 2000
    assert max(value for value in chart.series[0].y if value is not None) == 50.0


def test_several_runs_share_a_chart(tmp_path: Path, log: str) -> None:
    other = written(tmp_path, "other", falling(300, 2.0))
    done = ran(log, other, "-o", str(tmp_path / "both.svg"), "--what", "loss")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "both.svg").read_text()
    assert text.startswith("<?xml")
    (chart,) = charts([from_log(Path(log)), from_log(Path(other))], ["loss"])
    names = [series.name for series in chart.series]
    assert names == ["run: moving average of 8", "run: validation", "other: moving average of 6"]


def test_the_gradients_of_layers_are_drawn_where_a_log_has_them(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    rows = [f"{i},{2 - i / 100},{0.001 * (i + 1)},{0.1},{1.0}" for i in range(20)]
    path.write_text("step,loss,grad_norm/0.weight,grad_norm/2.weight,grad_norm\n" + "\n".join(rows) + "\n")
    (chart,) = charts([from_log(path)], ["flow"])
    assert list(chart.series[0].x) == ["0.weight", "2.weight"]
    assert list(chart.series[0].y) == [pytest.approx(0.02), pytest.approx(0.1)]
    assert "largest over smallest 5" in chart.note


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "curves.jpg"], "give a name that ends in .png, .svg or .html"),
        (["-o", "nowhere/curves.png"], "there is no folder nowhere"),
        (["--what", "losses"], "--what losses: there are loss, lr, lr-loss, gradients, flow"),
        (["--what", "flow", "-o", "flow.png"], "nothing to draw for flow"),
    ],
)
def test_a_mistake_is_explained(log: str, arguments: list[str], says: str) -> None:
    done = ran(log, *arguments)
    assert done.exit_code == 2
    assert says in done.output


def test_the_moving_average_of_few_values() -> None:
    assert moving_average(np.array([1.0, 3.0, 5.0]), 2).tolist() == [1.0, 2.0, 4.0]
