"""Commands without arguments: the only job, the only incident, the daemon of this user; and no daemon at all."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from caboose_daemon.cli.jobs import reason, worst_first
from caboose_daemon.format import amount, seconds
from caboose_wire import Bye
from support.processes import DaemonProcess, caboose_command, clean_environment, running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks

NAN = float("nan")


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonProcess]:
    """A daemon with a data directory elsewhere, found by CABOOSE_HTTP alone."""
    with running_daemon(tmp_path / "elsewhere") as daemon:
        monkeypatch.setenv("CABOOSE_HTTP", daemon.url)
        monkeypatch.delenv("CABOOSE_TOKEN_FILE", raising=False)
        yield daemon


def run(*arguments: str) -> Result:
    return CliRunner().invoke(caboose, arguments)


def ended_in_nan(daemon: DaemonProcess, job: str) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 40)
        send_steps(ranks, 41, 60, loss=NAN)
        for rank in ranks:
            rank.send(Bye(step=60))
        assert wait_until(lambda: daemon.get(f"/api/v1/jobs/{job}")["ending"], 20)


def test_the_only_job_and_the_only_incident_need_no_name_and_the_token_is_found(daemon: DaemonProcess) -> None:
    ended_in_nan(daemon, "gpt")

    listed = run("jobs")
    assert "✗ critical" in listed.stdout
    assert "✗ gpt  ended at step 60; open: non_finite since step 41: loss is nan" in listed.stdout
    assert run("note", "halved the rate").stdout.startswith("recorded after step 60 of gpt")
    assert "gpt" in run("diagnose").stdout
    snapshot = run("snapshot")
    assert "job gpt" in snapshot.stderr, snapshot.output

    seen = run("ack", "--reason", "known")
    assert seen.stdout.startswith("gpt/1 (non_finite) acknowledged by "), seen.output
    assert "acknowledged" in run("jobs").stdout
    again = run("ack", "--reason", "known")
    assert (again.exit_code, "no incident waits" in again.stderr) == (1, True)
    assert "not acknowledged" in run("ack", "--undo").stdout


def test_of_two_incidents_the_choice_is_listed(daemon: DaemonProcess) -> None:
    ended_in_nan(daemon, "one")
    ended_in_nan(daemon, "two")

    ended = run("ack", "--reason", "known")

    assert ended.exit_code == 2
    assert "which incident?" in ended.stderr
    assert {"one/1", "two/1"} <= set(ended.stderr.replace(",", " ").split())


def test_alone_it_lists_the_jobs_below_the_help(daemon: DaemonProcess) -> None:
    ended_in_nan(daemon, "gpt")

    said = run()

    assert said.exit_code == 0
    assert said.stdout.index("Commands:") < said.stdout.index("✗ critical")


@pytest.mark.parametrize("command", [("jobs",), ("ack", "--reason", "x"), ("top",), ("snapshot",), ("report",)])
def test_without_a_daemon_every_command_says_how_to_start_one(command: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(caboose, command, env={"CABOOSE_HTTP": "127.0.0.1:1"})

    assert ended.exit_code == 2
    assert "no daemon answers at http://127.0.0.1:1" in ended.stderr
    assert "start one with `caboose daemon`" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_alone_and_without_a_daemon_it_says_how_to_start_one() -> None:
    said = CliRunner().invoke(caboose, [], env={"CABOOSE_HTTP": "127.0.0.1:1"})

    assert said.exit_code == 0
    assert "No daemon answers at http://127.0.0.1:1" in said.stdout
    assert "    caboose daemon " in said.stdout


def test_the_note_of_a_daemon_goes_with_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_daemon(tmp_path / "daemon", env={"XDG_STATE_HOME": str(state)}) as daemon:
        (note,) = (state / "caboose" / "daemons").glob("*.json")
        assert json.loads(note.read_text())["token_file"] == str(daemon.data_dir / "token")
        daemon.stop()
        assert not note.exists()


def test_a_dead_daemons_note_is_not_believed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_daemon(tmp_path / "daemon", env={"XDG_STATE_HOME": str(state)}) as daemon:
        url = daemon.url
        daemon.kill()
    with running_daemon(
        tmp_path / "other", http=url.removeprefix("http://").rstrip("/"), env={"XDG_STATE_HOME": str(tmp_path / "s2")}
    ):
        done = subprocess.run(
            caboose_command("ack", "gpt/1", "--reason", "x"),
            env=clean_environment(CABOOSE_HTTP=url.rstrip("/"), XDG_STATE_HOME=str(state)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "caboose-data/token" in done.stderr, "it falls back to the configuration"


def a_row(job: str, health: str, **changes: Any) -> dict[str, Any]:
    row = {"job": job, "health": health, "state": "running", "silent_seconds": 1.0, "ending": None, "worst": None}
    return {**row, "num_open": 0, **changes}


def test_the_worst_comes_first_and_of_equals_what_runs() -> None:
    rows = [
        a_row("fine", "ok"),
        a_row("seen", "info", state="ended"),
        a_row("over", "critical", state="ended"),
        a_row("burning", "critical"),
        a_row("slow", "warning"),
    ]

    assert [row["job"] for row in worst_first(rows)] == ["burning", "over", "slow", "seen", "fine"]


def test_a_healthy_job_needs_no_line() -> None:
    ending = {"state": "ended", "text": "ended at step 3; was healthy", "unresolved": [], "is_acknowledged": False}

    assert reason(a_row("fine", "ok")) == ""
    assert reason(a_row("fine", "ok", ending=ending)) == ""
    assert reason(a_row("fine", "ok", ending={**ending, "state": "cancelled", "text": "cancelled"})) == "cancelled"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (35_312.0, "35,300"),
        (8.21, "8.21"),
        (1234.0, "1,230"),
        (0.000741, "0.000741"),
        (3e-5, "3e-5"),
        (1.2e13, "1.2e13"),
    ],
)
def test_numbers_are_as_people_write_them(value: float, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0082, "8.2 ms"), (0.112, "112 ms"), (1.1, "1.1 s"), (59.4, "59.4 s"), (600.0, "10 min"), (5e-5, "0.05 ms")],
)
def test_times_have_a_unit_that_fits(value: float, text: str) -> None:
    assert seconds(value) == text
