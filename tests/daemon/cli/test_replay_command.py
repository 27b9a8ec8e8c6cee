"""`caboose replay`: what it prints for people and for programs, how it compares, and what it does with broken files."""

import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.offline.replay.logs import read_log, read_logs
from caboose_daemon.offline.replay.player import play
from caboose_wire import Event
from support.processes import caboose_command, clean_environment
from support.ranks import a_hello, a_report
from support.scenario import JournaledCore

SPIKE = 400
BUSY = 2.5
"""How much longer the same work may take where other processes use the same caches."""
Finished = "subprocess.CompletedProcess[str]"


def run(directory: Path, *arguments: str | Path) -> Finished:
    command = [*caboose_command(), "replay", *map(str, arguments)]
    return subprocess.run(
        command, cwd=directory, env=clean_environment(), text=True, capture_output=True, timeout=60, check=False
    )


def losses(num: int = 600, *, is_spiking: bool = True) -> list[float]:
    """A loss that falls, and jumps to five times its level for a while."""
    random = np.random.default_rng(1)
    curve = (1.5 + 4 * np.exp(-np.arange(num) / 100)) * (1 + 0.01 * random.standard_normal(num))
    if is_spiking:
        curve[SPIKE : SPIKE + 8] *= 5
    return [round(value, 5) for value in curve.tolist()]


def a_csv(path: Path, values: list[float]) -> Path:
    path.write_text("step,loss\n" + "".join(f"{step},{value}\n" for step, value in enumerate(values)))
    return path


@pytest.fixture
def spiking(tmp_path: Path) -> Path:
    return a_csv(tmp_path / "spiking.csv", losses())


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    return a_csv(tmp_path / "calm.csv", losses(is_spiking=False))


def objects(done: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_says_what_would_have_been_raised_and_when(spiking: Path, calm: Path, tmp_path: Path) -> None:
    done = run(tmp_path, calm, spiking)

    assert done.returncode == 0
    assert "calm.csv  600 points: nothing to report" in done.stdout
    assert "spiking.csv  600 points: 1 page, 0 tickets" in done.stdout
    (found,) = (line.split() for line in done.stdout.splitlines() if "loss_spike" in line)
    assert found[:4] == ["page", "loss_spike", str(SPIKE), str(SPIKE)]
    assert "2 runs, 1,200 points: would have paged 1 times in 1 of them and made 0 tickets" in done.stdout
    assert done.stderr == ""


def test_prints_one_object_per_run_for_programs(spiking: Path, calm: Path, tmp_path: Path) -> None:
    quiet, loud = objects(run(tmp_path, "--json", calm, spiking))

    assert quiet == {"file": str(calm), "points": 600, "incidents": [], "findings": []}
    assert loud["points"] == 600
    (incident,) = loud["incidents"]
    assert incident["summary"].startswith("loss ")
    del incident["summary"]
    assert incident == {
        "rule": "loss_spike",
        "severity": "critical",
        "onset_step": SPIKE,
        "detected_step": SPIKE,
        "state": "resolved",
        "cause": None,  # eight rows at one height are not one batch
        "rules": ["loss_spike"],
    }
    assert loud["findings"][0] == {"rule": "loss_spike", "severity": "warning", "step": SPIKE}
    assert {finding["severity"] for finding in loud["findings"]} == {"warning", "critical"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_compares_two_configurations(spiking: Path, calm: Path, tmp_path: Path) -> None:
    numb = tmp_path / "numb.toml"
    numb.write_text("[rules.loss_spike]\nratio = 50.0\n")

    done = run(tmp_path, "--config", numb, calm, spiking)
    assert "pages 1 -> 0, tickets 0 -> 0" in done.stdout
    assert f"  - {spiking}: critical loss_spike at step {SPIKE}" in done.stdout

    _, compared = objects(run(tmp_path, "--json", "--config", numb, calm, spiking))
    assert compared["compared"]["pages"] == [1, 0]
    assert [lost["rule"] for lost in compared["compared"]["lost"]] == ["loss_spike"]
    assert compared["compared"]["gained"] == []

    same = tmp_path / "same.toml"
    same.write_text("")
    assert "no difference on these logs" in run(tmp_path, "--config", same, spiking).stdout


@pytest.mark.slow
@pytest.mark.long
def test_a_lower_severity_is_told_as_a_change_and_an_earlier_finding_as_a_lead(spiking: Path, tmp_path: Path) -> None:
    quieter = tmp_path / "quieter.toml"
    quieter.write_text("[rules.loss_spike]\nseverity = 'warning'\n")
    assert "pages 1 -> 0, tickets 0 -> 1" in (out := run(tmp_path, "--config", quieter, spiking).stdout)
    assert "(was critical)" in out

    later = tmp_path / "later.toml"
    later.write_text("[rules.loss_spike]\noutlier_ratio = 100.0\n")
    (compared,) = objects(run(tmp_path, "--json", "--config", later, spiking))
    assert compared["compared"]["lead_steps"] == [-1], "without its outlier ratio it waits for the second step"


def test_uses_the_configuration_of_the_directory(spiking: Path, tmp_path: Path) -> None:
    (tmp_path / "caboose.toml").write_text("[rules.loss_spike]\nenabled = false\n[rules.divergence]\nenabled = false\n")

    assert "nothing to report" in run(tmp_path, spiking).stdout


def test_a_broken_file_gets_one_line_and_the_others_go_on(spiking: Path, calm: Path, tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.csv", tmp_path / "empty.csv"
    broken.write_text("step,accuracy\n1,0.5\n")
    empty.touch()

    done = run(tmp_path, broken, calm, empty, tmp_path / "gone.csv", spiking)

    assert done.returncode == 2
    assert "calm.csv" in done.stdout
    assert "spiking.csv" in done.stdout
    lines = done.stderr.splitlines()
    assert [Path(line.split(": ")[1]).name for line in lines] == ["broken.csv", "empty.csv", "gone.csv"]


def test_a_configuration_that_is_wrong_is_told_before_anything_is_read(spiking: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[rules.loss_spike]\nratoi = 2.0\n")

    done = run(tmp_path, "--config", wrong, spiking)

    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean rules.loss_spike.ratio?" in done.stderr


def test_replays_a_journal_job_by_job(tmp_path: Path) -> None:
    """Each job of the file is a run of its own, with its NaN, its validations and its restarts."""
    core = JournaledCore(tmp_path / "journal.sqlite")
    for job, values in (("spiking", losses()), ("broken", [2.0] * 30 + [math.nan] * 5)):
        peer = job.encode()
        core.say(peer, a_hello(rank=0, world=1, job=job, incarnation=f"incarnation-{job}", launch=job), 1000.0)
        for step, loss in enumerate(values, start=1):
            core.say(peer, a_report(step, loss=loss), 1000.0 + step)
            if step == 20:
                fields = {"loss": 2.5}
                core.say(peer, Event(attempt=0, step=step, time=1.0, kind="validation", fields=fields), 1000.0 + step)
            core.pass_time(1000.0 + step)
    core.close()

    spiking, broken = read_logs(tmp_path / "journal.sqlite")
    assert (len(spiking.steps), len(broken.steps)) == (600, 35)
    assert spiking.events[20][0].fields == {"loss": 2.5}, "before the row of step 21"
    first, second = objects(run(tmp_path, "--json", "journal.sqlite"))
    assert (first["file"], second["file"]) == ("journal.sqlite#spiking", "journal.sqlite#broken")
    assert [incident["rule"] for incident in first["incidents"]] == ["loss_spike"]
    assert second["incidents"][0]["rule"] == "non_finite"
    assert second["incidents"][0]["onset_step"] == 31


def test_a_step_that_goes_back_begins_a_new_attempt(tmp_path: Path) -> None:
    path = tmp_path / "resumed.csv"
    values = losses(300, is_spiking=False)
    rows = [(step, value) for step, value in enumerate(values)] + [(step, 10.0) for step in range(250, 300)]
    path.write_text("step,loss\n" + "".join(f"{step},{value}\n" for step, value in rows))

    judged = play(read_log(path), Config().rules)

    assert "loss_spike" not in {episode.rule for episode in judged.episodes}, "the new attempt has its own level"


@pytest.mark.slow
@pytest.mark.long
def test_a_million_points_would_take_less_than_a_minute(tmp_path: Path) -> None:
    """Of CPU, and with room for a machine that is busy with other things: by a tenth of them."""
    random = np.random.default_rng(0)
    num = 100_000
    steps = np.arange(num)
    curve = (2 + 6 * np.exp(-steps / 200)) * (1 + 0.02 * random.standard_normal(num))
    norm = np.exp(0.2 * random.standard_normal(num))
    path = tmp_path / "long.csv"
    rows = np.column_stack([steps, curve, norm, np.full(num, 1e-3)])
    np.savetxt(
        path, rows, fmt=["%d", "%.5g", "%.5g", "%.5g"], delimiter=",", header="step,loss,grad_norm,lr", comments=""
    )

    start = time.process_time()
    judged = play(read_log(path), Config().rules)
    seconds = time.process_time() - start

    assert judged.num_points == num
    assert not judged.episodes
    assert 10 * seconds < 60 * BUSY, f"{seconds:.1f} s"
