"""Rollback over HTTP and the command line: a real daemon, and ranks that train and obey by themselves."""

import contextlib
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from caboose_daemon.cli import caboose
from caboose_wire.expectation import MARGIN_STEPS
from support.http import http
from support.obedient import Obedient, obedient_ranks
from support.processes import DaemonProcess, running_daemon, wait_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SECRET = "a secret that the daemon and the ranks share"
pytestmark = pytest.mark.slow


@contextlib.contextmanager
def watched_job(directory: Path) -> Iterator[tuple[DaemonProcess, Obedient]]:
    """A daemon with a secret that may act, and a job with a few snapshots."""
    file = directory / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    with (
        running_daemon(directory / "daemon", "--rollback", "auto", "--secret-file", str(file)) as daemon,
        obedient_ranks(daemon.endpoint, secret=SECRET.encode()) as job,
    ):
        assert wait_until(lambda: len(ledger(daemon)) >= 3, 20)
        yield daemon, job


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, Obedient]]:
    """For tests that ask for something and leave the job running."""
    with watched_job(tmp_path_factory.mktemp("shared")) as both:
        yield both


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[DaemonProcess, Obedient]]:
    """For tests that break something."""
    with watched_job(tmp_path) as both:
        yield both


def ledger(daemon: DaemonProcess) -> list[dict[str, Any]]:
    try:
        return list(daemon.get("/api/v1/jobs/train/ledger")["entries"])
    except httpx.HTTPStatusError:
        return []


def decision(daemon: DaemonProcess, number: int) -> dict[str, Any]:
    rows = daemon.get("/api/v1/jobs/train/decisions")["decisions"]
    return next((row for row in rows if row["number"] == number), {"state": ""})


def in_journal(daemon: DaemonProcess) -> list[tuple[int, str]]:
    connection = sqlite3.connect(daemon.data_dir / "journal.sqlite")
    try:
        return connection.execute("SELECT number, state FROM decisions").fetchall()
    finally:
        connection.close()


def outcome(daemon: DaemonProcess, number: int, *states: str) -> dict[str, Any]:
    assert wait_until(lambda: decision(daemon, number)["state"] in states, 20), decision(daemon, number)
    return decision(daemon, number)


def test_a_rollback_asked_for_over_http_is_shown_first_then_done_and_begins_a_new_attempt(
    shared: tuple[DaemonProcess, Obedient],
) -> None:
    daemon, job = shared
    status, shown = daemon.post("/api/v1/jobs/train/rollback", {"dry_run": True, "by": "me", "skip": 3})
    assert (status, shown["state"], shown["kind"], shown["skip"]) == (200, "advised", "rollback", 3)
    assert shown["target"] in [entry["step"] for entry in ledger(daemon)]
    assert job.commands == []
    assert daemon.get("/api/v1/jobs/train/decisions")["decisions"] == []

    written: list[tuple[int, str]] = []
    job.on_command = lambda command: written.extend(in_journal(daemon))
    status, sent = daemon.post("/api/v1/jobs/train/rollback", {"to": shown["target"], "lr_scale": 0.5, "by": "me"})
    assert (status, sent["state"], sent["command"], sent["world"]) == (202, "sent", 1, 2)

    done = outcome(daemon, 1, "committed")
    assert written[0] == (1, "sent"), "what a rank gets is in the journal already"
    assert wait_until(lambda: decision(daemon, 1)["num_answers"] == {"done": 2}, 10)
    assert (done["by"], done["boundary"]) == ("me", job.acted[0][0])
    assert done["steps_lost"] == done["boundary"] - shown["target"]
    detail = wait_until(lambda: _in_attempt(daemon, 2), 10)
    assert detail["num_live"] == 2
    assert wait_until(lambda: decision(daemon, 1)["continuity"], 10).startswith("rolled back to step")


def _in_attempt(daemon: DaemonProcess, number: int) -> Any:
    detail = daemon.get("/api/v1/jobs/train")
    return detail if detail["attempt"] == number else None


def test_what_cannot_be_done_is_refused_with_the_reason_and_written_down(
    shared: tuple[DaemonProcess, Obedient],
) -> None:
    daemon, job = shared
    num_commands = len(job.commands)
    status, answer = daemon.post("/api/v1/jobs/train/rollback", {"to": 7, "by": "me"})
    assert status == 409
    assert answer["error"].startswith("no snapshot of step 7 is ready on all ranks; held: ")
    kept = decision(daemon, answer["number"])
    assert (kept["state"], kept["by"], kept["outcome"]) == ("refused", "me", answer["error"])

    for path, body, error in (
        ("rollback", {"skip": -1}, "skip = -1: give 0 to 100000 steps"),
        ("rollback", {"lr_scale": 0.0}, "lr_scale = 0.0: give 0.001 to 10"),
        ("rollback", {"too": 7}, 'expected {"to"'),
        ("commands", {"kind": "dance"}, 'expected {"kind"'),
        ("commands", {"kind": "scale_lr"}, "lr_scale = 1: this changes nothing"),
        ("commands", {"kind": "clip", "max_norm": 1e9}, "max_norm = 1000000000.0: give 0.001 to 10000"),
    ):
        status, answer = daemon.post(f"/api/v1/jobs/train/{path}", body)
        assert (status, answer["error"][: len(error)]) == (400, error)
    status, answer = daemon.post("/api/v1/jobs/train/commands", {"kind": "checkpoint"})
    assert (status, answer["error"]) == (409, "the run has no checkpoint directory (attach(..., checkpoints=...))")
    assert daemon.post("/api/v1/jobs/nobody/rollback", {})[0] == 404
    assert http.post(f"{daemon.url}api/v1/jobs/train/rollback", json={}).status_code == 401, "writes need the token"
    assert len(job.commands) == num_commands


def test_an_open_page_is_told_of_a_decision(shared: tuple[DaemonProcess, Obedient]) -> None:
    daemon, _ = shared
    with http.stream("GET", f"{daemon.url}api/v1/stream", params={"job": "train"}, timeout=20) as response:
        lines = response.iter_lines()
        assert any(line == "event: status" for line in lines), "it is listening"
        _, asked = daemon.post("/api/v1/jobs/train/rollback", {"to": 7})
        assert any(line == "event: decision" for line in lines)
        told = json.loads(next(lines).removeprefix("data: "))

    assert (told["job"], told["number"], told["state"]) == ("train", asked["number"], "refused")
    assert told["explanation"][0].endswith(": refused")


def test_the_command_line_shows_asks_waits_and_says_what_became_of_it(
    shared: tuple[DaemonProcess, Obedient], run_caboose: Run
) -> None:
    daemon, job = shared
    where = ("--daemon", daemon.url, "--token-file", str(daemon.data_dir / "token"))
    num_acted = len(job.acted)

    shown = run_caboose("rollback", "train", "--dry-run", *where)
    assert shown.returncode == 0, shown.stderr
    assert ": advised" in shown.stdout.splitlines()[0]

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(caboose, [*arguments, *where])

    done = run("rollback", "train", "--skip", "2", "--json")
    assert done.exit_code == 0, done.output
    assert (json.loads(done.stdout)["state"], json.loads(done.stdout)["skip"]) == ("committed", 2)
    scaled = run("apply", "train", "--lr-scale", "0.5")
    assert (scaled.exit_code, scaled.stdout.splitlines()[0][-11:]) == (0, ": committed"), scaled.output
    acted = [(command.kind, command.lr_scale) for _, command in job.acted[num_acted:]]
    assert acted == [("rollback", 1.0), ("scale_lr", 0.5)]

    planned = run("apply", "train", "--clip", "1.5", "--dry-run")
    assert (planned.exit_code, planned.stdout.splitlines()[0][:30]) == (0, "limit the gradient norm to 1.5"), (
        planned.output
    )
    clipped = run("apply", "train", "--clip", "1.5")
    assert (clipped.exit_code, clipped.stdout.splitlines()[0][-11:]) == (0, ": committed"), clipped.output
    undone = run("apply", "train", "--clip", "off")
    assert undone.exit_code == 0, undone.output
    assert [(command.kind, command.max_norm) for _, command in job.acted[-2:]] == [("clip", 1.5), ("clip", 0.0)]
    for wrong in (["--clip", "none"], ["--clip", "-1"], ["--clip", "1", "--lr-scale", "0.5"]):
        assert run("apply", "train", *wrong).exit_code == 2

    job.refusal = "the loader has ended"
    refused = run("rollback", "train")
    job.refusal = ""
    assert refused.exit_code == 1
    assert re.search(r"no rank acted: rank \d refused: the loader has ended", refused.stdout)

    nothing = run("apply", "train")
    assert nothing.exit_code == 2
    assert nothing.stderr == "caboose: no open incident of train suggests another learning rate; give --lr-scale\n"
    unknown = run("rollback", "nobody")
    assert (unknown.exit_code, unknown.stderr) == (2, "caboose: no job 'nobody'; known: train\n")
    tokenless = CliRunner().invoke(caboose, ["rollback", "train", "--daemon", daemon.url, "--token-file", "nowhere"])
    assert (tokenless.exit_code, tokenless.stderr[:44]) == (2, "caboose: nowhere: No such file or directory;")


def test_weights_that_are_lost_bring_the_run_back_by_itself(own: tuple[DaemonProcess, Obedient]) -> None:
    daemon, job = own
    onset = job.step + 20
    job.loss = lambda step: float("nan") if step >= onset and not job.attempt else 2.0 + 0.01 * (step % 5)

    done = outcome(daemon, 1, "committed")

    assert (done["trigger"], done["mode"], done["triage"]["verdict"]) == ("train/1", "auto", "diverging")
    assert done["target"] <= onset - MARGIN_STEPS
    assert {step for step, _ in job.acted} == {done["boundary"]}
    assert any(terms.is_holding for terms in job.terms), "and meanwhile no snapshots are taken"
    incident = wait_until(lambda: _overcome(daemon), 20)
    assert (incident["id"], incident["is_open"]) == ("train/1", False)


def _overcome(daemon: DaemonProcess) -> Any:
    rows = daemon.get("/api/v1/jobs/train/incidents")["incidents"]
    return next((row for row in rows if "loss continues from there" in row["reason"]), None)


@pytest.mark.long
@pytest.mark.slow
def test_a_daemon_killed_in_mid_command_follows_it_afterwards_and_never_sends_it_again(
    own: tuple[DaemonProcess, Obedient], tmp_path: Path
) -> None:
    daemon, job = own
    job.deaf = {0, 1}  # so that the command is still on its way
    assert daemon.post("/api/v1/jobs/train/rollback", {"by": "me"})[0] == 202
    assert wait_until(lambda: job.num_ignored == 2, 5)
    daemon.kill()
    job.deaf = set()

    with running_daemon(tmp_path / "daemon", "--rollback", "auto", listen=daemon.endpoint) as again:
        assert wait_until(lambda: decision(again, 1)["state"] == "sent", 10), "it is remembered"
        assert wait_until(lambda: again.get("/api/v1/jobs/train")["num_live"] == 2, 10)
        status, answer = again.post("/api/v1/jobs/train/rollback", {})
        assert (status, answer["error"][:35]) == (409, "command 1 (decision 1: roll back to")
        assert not wait_until(lambda: job.commands, 0.5)
