"""The detection benchmark scores a corpus as its description says."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[4] / "bench" / "detection.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="an installed wheel brings no benchmarks")


def bench(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A calm run, one that is called healthy and spikes, a spike, and a NaN."""
    random = np.random.default_rng(0)
    calm = (1.5 + 4 * np.exp(-np.arange(400) / 50)) * (1 + 0.01 * random.standard_normal(400))
    spiking = calm.copy()
    spiking[300:310] *= 5
    broken = calm.copy()
    broken[300:] = np.nan
    (tmp_path / "runs").mkdir()
    index = ["id,label,onset,excerpt"]
    for name, label, losses in (
        ("calm", "healthy", calm),
        ("wrongly", "healthy", spiking),
        ("spike", "loss_spike", spiking),
        ("nan", "nan", broken),
        ("unclear", "ambiguous", spiking),
    ):
        index.append(f"{name},{label},{f'{label}@300' if label in ('loss_spike', 'nan') else ''},0")
        rows = [f"{step},{loss:.5g}" for step, loss in enumerate(losses)]
        (tmp_path / "runs" / f"{name}.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    (tmp_path / "index.csv").write_text("\n".join(index) + "\n")
    (tmp_path / "events.csv").write_text("id,kind,onset_step,severity\n")
    return tmp_path


def test_counts_false_alarms_and_what_was_caught(corpus: Path) -> None:
    done = bench(corpus, "--check")

    assert "| **Caboose** | 1 / 2 | 1 / 2 | 2 / 2 | 0 / 0 |" in done.stdout
    assert "| loss_spike | 1 / 1 | 0 |" in done.stdout
    assert "wrongly (loss_spike)" in done.stdout
    assert "unclear" not in done.stdout
    assert done.returncode == 0, "one page is within the goal"


def test_an_alarm_on_a_minor_event_is_not_false(corpus: Path) -> None:
    (corpus / "events.csv").write_text(
        "id,kind,onset_step,severity\n" + "".join(f"wrongly,loss_spike,{step},minor\n" for step in range(300, 320, 4))
    )

    assert "| **Caboose** | 0 / 2 | 0 / 2 |" in bench(corpus).stdout


def test_other_systems_stand_in_the_same_table_and_a_missed_goal_is_told(corpus: Path) -> None:
    (corpus / "peer_detectors.py").write_text(
        "import csv\n"
        "def read(path): return {'step': [float(row['step']) for row in csv.DictReader(open(path))]}\n"
        "RULES = {'always': lambda columns: range(len(columns['step']))}\n"
    )
    (corpus / "quiet.toml").write_text("[rules.loss_spike]\nenabled = false\n[rules.divergence]\nenabled = false\n")

    done = bench(corpus, "--check", "--config", corpus / "quiet.toml")

    assert "| always | 2 / 2 | 2 / 2 | 2 / 2 | 0 / 0 |" in done.stdout
    assert "MISSED spike, divergence, NaN 1 of 2" in done.stdout
    assert done.returncode == 1


def test_says_what_is_missing(tmp_path: Path) -> None:
    done = bench(tmp_path)

    assert done.returncode == 2
    assert f"{tmp_path}: index.csv, events.csv, runs missing" in done.stderr
