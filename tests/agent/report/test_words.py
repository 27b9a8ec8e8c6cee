"""What rank 0 prints for the person who started the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from caboose.report.words import Words
from caboose_wire import Verdict
from support.processes import DaemonProcess, clean_environment

VERDICT = Verdict(job="train", url="http://node0:8080/?job=train", health="ok")
BAD = Verdict(job="train", url=VERDICT.url, health="critical", summary="non_finite since step 4: loss is NaN")
SCRIPT = """
import sys, time
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4) * (float("nan") if step == 5 else 1.0)
    (model(inputs) - torch.randn(8, 1)).square().mean().backward()
    optimizer.step()
    time.sleep(0.1)
"""


def test_one_line_when_the_daemon_answers_and_one_with_its_last_verdict(capfd: pytest.CaptureFixture[str]) -> None:
    words = Words("tcp://127.0.0.1:5757", "advise", is_quiet=False)
    words.take(VERDICT)
    words.take(BAD)
    words.say_last(1234)

    first, last = capfd.readouterr().err.splitlines()
    assert [word in first for word in ("'train'", VERDICT.url, "advise")] == [True] * 3
    assert [word in last for word in ("1,234", "critical", "non_finite since step 4", BAD.url)] == [True] * 4


def test_a_rank_that_failed_is_not_called_well(capfd: pytest.CaptureFixture[str]) -> None:
    words = Words("tcp://127.0.0.1:5757", "advise", is_quiet=False)
    words.take(VERDICT)
    words.say_last(80, "this rank failed: ValueError: bad shard")

    last = capfd.readouterr().err.splitlines()[-1]
    assert "at step 80: this rank failed: ValueError: bad shard; before that ok: " in last


def test_quiet_is_quiet_and_without_a_verdict_there_is_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    quiet = Words("tcp://127.0.0.1:5757", "advise", is_quiet=True)
    quiet.take(VERDICT)
    quiet.say_last(3)
    Words("tcp://127.0.0.1:5757", "advise", is_quiet=False).say_last(3)

    assert capfd.readouterr().err == ""


def test_what_the_daemon_sends_stays_one_line_without_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    hostile = Verdict(job="train", url="\x1b[31m\n" * 1000, health="\x07", summary="a\nb")
    words = Words("tcp://127.0.0.1:5757", "advise", is_quiet=False)
    words.take(hostile)
    words.say_last(3)

    printed = capfd.readouterr().err
    assert printed.count("\n") == 2
    assert "\x1b" not in printed
    assert len(printed) < 1000


def run(tmp_path: Path, num_steps: int, **env: str) -> list[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "caboose", "train.py", str(num_steps)]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(**env), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("caboose:")]


@pytest.mark.slow
def test_a_run_prints_where_its_page_is_and_how_it_stood(tmp_path: Path, daemon: DaemonProcess) -> None:
    first, last, numbers = run(tmp_path, 50, CABOOSE_ENDPOINT=daemon.endpoint, CABOOSE_QUIET="0", CABOOSE_JOB="nan")

    assert f"{daemon.url}?job=nan" in first
    assert "critical, bad_batch since step 6" in last
    assert numbers.startswith("caboose: 50 steps, ")


@pytest.mark.slow
def test_a_run_of_a_second_prints_all_lines_too(tmp_path: Path, daemon: DaemonProcess) -> None:
    lines = run(tmp_path, 9, CABOOSE_ENDPOINT=daemon.endpoint, CABOOSE_QUIET="0", CABOOSE_JOB="short")

    assert len(lines) == 3, lines


FORGETFUL = """
import sys
import torch
import caboose

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
monitor = caboose.attach(model, optimizer)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("status", "num_lines"), [(0, 1), (3, 0)])
def test_one_warning_if_a_script_that_ends_well_reported_no_step(
    tmp_path: Path, daemon: DaemonProcess, status: int, num_lines: int
) -> None:
    (tmp_path / "train.py").write_text(FORGETFUL)
    done = subprocess.run(
        [sys.executable, "train.py", str(status)],
        cwd=tmp_path,
        env=clean_environment(CABOOSE_ENDPOINT=daemon.endpoint),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == status
    assert done.stderr.count("monitor.step(loss)") == num_lines, done.stderr


@pytest.mark.slow
def test_one_warning_if_no_daemon_answers(tmp_path: Path) -> None:
    (line,) = run(tmp_path, 3, CABOOSE_ENDPOINT="tcp://127.0.0.1:9")

    assert [word in line for word in ("tcp://127.0.0.1:9", "caboose daemon", "CABOOSE_ENDPOINT")] == [True] * 3
