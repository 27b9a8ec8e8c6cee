"""`caboose diagnose` says what is wrong and why: of a job that runs, and of a log that is over."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.offline.replay.player import play
from support.processes import caboose_command, clean_environment, running_daemon, wait_until
from support.ranks import a_report, simulated_ranks


def run(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        caboose_command("diagnose", *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=directory,
        env=clean_environment(),
        check=False,
    )


@pytest.fixture
def spiking(tmp_path: Path) -> Path:
    """A log with one spike that heals."""
    noise = np.random.default_rng(0).normal(0, 0.02, 600)
    loss = 2.0 + 4.0 * np.exp(-np.arange(600) / 300) + noise
    loss[400:406] += np.linspace(8, 1, 6)
    path = tmp_path / "spiking.csv"
    path.write_text("step,loss\n" + "".join(f"{i},{v:.5f}\n" for i, v in enumerate(loss)))
    return path


def test_a_log_gets_causes_fixes_and_what_not_to_do(tmp_path: Path, spiking: Path) -> None:
    done = run(tmp_path, spiking.name)

    assert done.returncode == 0, done.stderr
    for text in ("loss_spike", "resolved: loss back at", "do first", "do not", "verify", "unknown", "unlikely to help"):
        assert text in done.stdout, text
    assert "another optimizer" in done.stdout


def test_confidences_and_unknown_add_up_to_one_for_programs_too(tmp_path: Path, spiking: Path) -> None:
    answer = json.loads(run(tmp_path, "--json", str(spiking)).stdout)

    (incident,) = answer["incidents"]
    diagnosis = incident["diagnosis"]
    assert sum(cause["confidence"] for cause in diagnosis["causes"]) + diagnosis["unknown"] == pytest.approx(
        1, abs=1e-3
    )
    assert diagnosis["causes"][0]["id"] == "outlier_batch"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_a_running_job_is_diagnosed_by_name_or_as_the_only_one(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 2) as ranks:
        for step in range(1, 31):
            for rank in ranks:
                rank.send(a_report(step, loss=float("nan") if step >= 25 and rank is ranks[1] else 2.0))
        assert wait_until(lambda: daemon.get("/api/v1/jobs/train/incidents")["incidents"], 10)

        named = run(tmp_path, "train", "--daemon", daemon.url)
        assert named.returncode == 0, named.stderr
        assert "train/1" in named.stdout
        assert "rank 1 on" in named.stdout
        assert run(tmp_path, "--daemon", daemon.url).stdout == named.stdout

        missing = run(tmp_path, "trian", "--daemon", daemon.url)
        assert missing.returncode == 2
        assert "no job and no file 'trian'" in missing.stderr
        assert "knows train" in missing.stderr


def test_nobody_at_the_daemon_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "--daemon", "127.0.0.1:1")

    assert done.returncode == 2
    assert done.stderr.startswith("caboose: no daemon answers at http://127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_no_log_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here\n")

    done = run(tmp_path, "notes.txt")

    assert done.returncode == 2
    assert "notes.txt" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_config_beside_a_log_is_read(tmp_path: Path, spiking: Path) -> None:
    settings = {"optimizer": "AdamW", "lr": 0.5, "betas": "0.9, 0.999", "dataset_length": 500}
    (tmp_path / "spiking.config.json").write_text(json.dumps(settings))

    log = read_log(spiking)
    judged = play(log, Config().rules)

    assert log.settings == settings
    (incident,) = [incident for incident in judged.incidents if incident.rule == "loss_spike"]
    assert incident.diagnosis is not None
