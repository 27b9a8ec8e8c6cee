"""A launch that is killed and started again loses no step, and nobody else's Hello disturbs one that runs."""

import contextlib
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from caboose_wire import Hello
from support.processes import DaemonProcess, clean_environment, end, torchrun, wait_until
from support.ranks import a_hello, a_report, simulated_ranks
from support.training import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

JOB = "launched"


def start(daemon: DaemonProcess, directory: Path, *options: str) -> "subprocess.Popen[bytes]":
    """A job of two ranks."""
    directory.mkdir()
    env = clean_environment(CABOOSE_ENDPOINT=daemon.endpoint, CABOOSE_JOB=JOB)
    with (directory / "job.log").open("wb") as log:
        command = torchrun(JOBS / "train.py", str(directory), *options)
        return subprocess.Popen(command, stdout=log, stderr=log, env=env)


def kill(daemon: DaemonProcess, process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL for the launcher and its ranks, as at the end of a machine's memory."""
    ranks = [row["pid"] for row in daemon.get(f"/api/v1/jobs/{JOB}")["ranks"]]
    process.kill()
    process.wait(10)
    for pid in ranks:  # torchrun starts each in a session of its own
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def steps(daemon: DaemonProcess, attempt: int) -> list[int]:
    with sqlite3.connect(f"file:{daemon.data_dir / 'journal.sqlite'}?mode=ro", uri=True) as journal:
        query = "SELECT step FROM steps WHERE attempt = ? AND num_ranks = 2 ORDER BY step"
        found = [step for (step,) in journal.execute(query, (attempt,))]
    journal.close()
    return found


@pytest.fixture
def started(daemon: DaemonProcess, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = start(daemon, tmp_path / "first", "--steps", "5000", "--step-seconds", "0.05")
    try:
        assert wait_until(lambda: daemon.step(JOB) > 5, 40), (tmp_path / "first" / "job.log").read_text()
        yield process
    finally:
        if process.poll() is None:
            kill(daemon, process)


def test_all_steps_of_a_relaunch_after_a_kill_are_in_the_journal(
    daemon: DaemonProcess, tmp_path: Path, started: "subprocess.Popen[bytes]"
) -> None:
    kill(daemon, started)
    again = start(daemon, tmp_path / "second", "--steps", "60", "--step-seconds", "0.02")
    try:
        assert again.wait(90) == 0, (tmp_path / "second" / "job.log").read_text()
    finally:
        end(again)
    wait_until(lambda: steps(daemon, 2) == list(range(1, 61)), 20)
    assert steps(daemon, 2) == list(range(1, 61))


@pytest.mark.parametrize("is_restart", [True, False], ids=["as its restart", "in every way"])
def test_a_forged_hello_does_not_disturb_a_run(
    daemon: DaemonProcess, started: "subprocess.Popen[bytes]", is_restart: bool
) -> None:
    """It claims both ranks of the launch, with the launch id that can be guessed, and stays connected."""
    before = daemon.step(JOB)
    with sqlite3.connect(f"file:{daemon.data_dir / 'journal.sqlite'}?mode=ro", uri=True) as journal:
        (launch,) = journal.execute("SELECT launch FROM attempts").fetchone()
        incarnations = dict(journal.execute("SELECT rank, incarnation FROM members").fetchall())
    journal.close()
    told = {"job": JOB, "launch": launch}
    with simulated_ranks(daemon.endpoint, 2, told) as ranks:
        for rank, forger in enumerate(ranks):
            real = incarnations[rank]
            claims: list[dict[str, object]] = [{"attempt": 1}]
            if not is_restart:
                claims += [{"attempt": 0}, {"incarnation": real}, {"incarnation": real, "attempt": 3}]
            for claim in claims:
                forger.send(_forged(rank, **told, **claim))
                forger.send(a_report(before + 5, loss=1e9, attempt=int(str(claim.get("attempt", 0)))))
        assert wait_until(lambda: daemon.step(JOB) > before + 60, 30)
        (row,) = (row for row in daemon.get("/api/v1/jobs")["jobs"] if row["job"] == JOB)
    assert started.poll() is None
    assert (row["state"], row["num_live"], row["attempt"]) == ("running", 2, 1)
    found = steps(daemon, 1)
    assert found == list(range(found[0], found[-1] + 1))
    assert found[-1] > before + 50


def _forged(rank: int, **claim: object) -> Hello:
    return msgspec.structs.replace(a_hello(rank=rank), **claim)
