"""`caboose demo`, as a newcomer runs it: it shows the fault, ends by itself, and leaves nothing behind."""

import re
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from support.processes import caboose_command, clean_environment, end, wait_until

pytestmark = pytest.mark.slow


def family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The demo's daemon, torchrun and ranks, as far as they have started."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def start(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        caboose_command("demo", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment(TMPDIR=str(tmp_path), COLUMNS="110"),
    )


def test_the_demo_finds_the_incident_and_sums_it_up(tmp_path: Path) -> None:
    demo = start(tmp_path)
    try:
        started = wait_until(lambda: len(found := family(demo)) >= 4 and found, 60)
        output, _ = demo.communicate(timeout=150)
    finally:
        end(demo)
    assert demo.returncode == 0, output
    assert "live page http://127.0.0.1:" in output
    # On a busy machine another incident, a rank that is slower than its peer, may have come first.
    assert re.search(r"step 180: demo/\d+ lr_schedule", output), output
    assert "300 steps of 2 ranks" in output
    assert re.search(r"demo/\d+: lr_schedule", output)
    assert "at step 180, on the same step" in output
    found_by = next(line for line in output.splitlines() if "found by" in line)
    assert {"lr_schedule", "loss_spike"} <= set(found_by.replace(",", " ").split()), "one cause, one incident"
    for told in ("cause", "first fix"):
        (line,) = (line for line in output.splitlines() if line.removeprefix("│").strip().startswith(f"{told}  "))
        assert line.strip("│ ").removeprefix(told).strip(), "the summary names it"
    assert re.search(r"roll back to step \d+ at step \d+: committed", output)
    assert "all ranks acted at step" in output
    assert "loss continues from there" in output
    assert "agent's cost" in output
    assert not [process for process in started if process.is_running()]
    assert not list(tmp_path.iterdir()), "its files are removed"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    demo = start(tmp_path, "--steps", "5000")
    try:
        started = wait_until(lambda: len(found := family(demo)) >= 4 and found, 60)
        assert started, "daemon, torchrun and two ranks"
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=20)
    finally:
        end(demo)
    assert demo.returncode == 128 + number, output
    assert wait_until(lambda: not [process for process in started if process.is_running()], 5)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_keep_leaves_the_page_up_until_it_is_interrupted(tmp_path: Path) -> None:
    with tempfile.TemporaryFile("w+") as log:
        demo = subprocess.Popen(
            caboose_command("demo", "--steps", "60", "--keep"),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(TMPDIR=str(tmp_path)),
        )
        try:

            def keeps_running() -> bool:
                log.seek(0)
                return "The page keeps running" in log.read()

            assert wait_until(keeps_running, 90)
            assert demo.poll() is None
            demo.send_signal(signal.SIGINT)
            assert demo.wait(15) == 130
        finally:
            end(demo)
