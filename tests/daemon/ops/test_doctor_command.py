"""`caboose doctor` finds what is broken between a run and its users, and prints the fix."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from caboose_daemon.app import keys as key_files
from caboose_daemon.cli import caboose
from caboose_daemon.ops.doctor.daemon import check_agents, check_daemon, check_rollback
from caboose_daemon.out.api import known_daemons
from caboose_daemon.out.api.client import Client
from caboose_daemon.out.api.known_daemons import KnownDaemon
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HTTP", "ENDPOINT", "CONFIG", "DATA_DIR", "TOKEN_FILE", "SERVER_KEY", "AGENT_KEY"):
        monkeypatch.delenv(f"CABOOSE_{name}", raising=False)


def examine(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and what was found by name."""
    ended = CliRunner().invoke(caboose, ["doctor", "--json", *arguments])
    assert ended.stdout, ended.output
    answer = json.loads(ended.stdout)
    for check in answer["checks"]:
        assert check["state"] in ("ok", "unknown") or check["fix"], f"a cross without a fix: {check}"
    return ended.exit_code, {check["name"]: check for check in answer["checks"]}


def states(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: check["state"] for name, check in checks.items()}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with a run of three ranks, of which two are heard."""
    with (
        running_daemon(tmp_path_factory.mktemp("examined")) as daemon,
        simulated_ranks(daemon.endpoint, 2, {"job": "gpt", "world": 3, "agent_version": "0.0.9"}) as ranks,
    ):
        send_steps(ranks, 1, 5)
        assert wait_until(lambda: daemon.get("/api/v1/jobs/gpt")["num_live"] == 2, 10)
        yield daemon


def test_the_daemon_of_the_stack_is_examined_as_every_command_asks_it(
    watched: DaemonProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    token, pid = str(watched.data_dir / "token"), os.getpid()
    of_the_stack = KnownDaemon(watched.url, token, watched.endpoint, pid, known_daemons.start_time(pid))
    known_daemons.note(of_the_stack, known_daemons.STACK)

    checks = examine()[1]

    assert watched.url.rstrip("/") in checks["daemon"]["text"]
    assert [checks[name]["state"] for name in ("daemon", "reports", "token")] == ["ok"] * 3


@pytest.fixture
def where(watched: DaemonProcess) -> tuple[str, ...]:
    return ("--daemon", watched.url, "--endpoint", watched.endpoint, "--token-file", str(watched.data_dir / "token"))


def test_a_daemon_that_works_has_its_marks_and_what_does_not_its_crosses(where: tuple[str, ...]) -> None:
    code, checks = examine(*where)

    found = states(checks)
    for name in (
        "configuration",
        "keys",
        "daemon",
        "reports",
        "token",
        "clock",
        "journal",
        "messages",
        "errors",
        "rollback",
    ):
        assert found[name] == "ok", checks[name]
    assert found["versions"] == "cross"
    assert "0.0.9" in checks["versions"]["text"]
    assert found["agents"] == "cross"
    assert "gpt: 2 of 3 ranks" in checks["agents"]["text"]
    assert code == 1


def test_who_scrapes_is_seen(watched: DaemonProcess, where: tuple[str, ...]) -> None:
    watched.text("/metrics")

    scraped = examine(*where)[1]["prometheus"]

    assert scraped["state"] == "ok"
    assert "by python-httpx" in scraped["text"]


def test_a_wrong_token_and_a_wrong_endpoint_are_crosses(watched: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("not the daemon's own token\n")

    _, checks = examine(
        "--daemon", watched.url, "--endpoint", "tcp://127.0.0.1:1", "--token-file", str(tmp_path / "token")
    )

    assert checks["token"]["state"] == "cross"
    assert checks["reports"]["state"] == "cross"
    assert "no connection to tcp://127.0.0.1:1" in checks["reports"]["text"]


def test_without_a_daemon_ports_and_directory_are_looked_at() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        Path("caboose.toml").write_text(f'[daemon]\nlisten = "tcp://127.0.0.1:{port}"\nhttp = "127.0.0.1:1"\n')

        code, checks = examine()

    assert code == 1
    assert checks["daemon"]["state"] == "cross"
    assert checks["daemon"]["fix"].startswith("start one: `caboose daemon`")
    assert checks["ports"]["state"] == "cross"
    assert f"--listen {port}: Address already in use" in checks["ports"]["text"]
    assert checks["journal"]["state"] == "ok"
    assert checks["the rest"]["state"] == "unknown"


def test_a_configuration_that_cannot_be_read_is_one_cross_among_others(where: tuple[str, ...]) -> None:
    Path("caboose.toml").write_text("[daemon]\nlisen = 1\n")

    code, checks = examine(*where)

    assert code == 1
    assert checks["configuration"]["state"] == "cross"
    assert "did you mean daemon.listen?" in checks["configuration"]["text"]
    assert checks["daemon"]["state"] == "ok", "the rest was looked at"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.slow
def test_keys_that_are_not_the_daemons_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, agent = key_files.make(tmp_path / "keys")
    other, _ = key_files.make(tmp_path / "others")
    with running_daemon(tmp_path / "daemon", "--keys", str(tmp_path / "keys")) as daemon:
        where = ("--daemon", daemon.url, "--endpoint", daemon.endpoint, "--token-file", str(daemon.data_dir / "token"))
        without = examine(*where)[1]["reports"]
        monkeypatch.setenv("CABOOSE_SERVER_KEY", other)
        monkeypatch.setenv("CABOOSE_AGENT_KEY", agent)
        wrong = examine(*where)[1]["reports"]
        monkeypatch.setenv("CABOOSE_SERVER_KEY", server)
        right = examine(*where)[1]
        monkeypatch.setenv("CABOOSE_AGENT_KEY", "short")
        short = examine(*where)[1]["keys"]

    assert (without["state"], "needs keys" in without["text"]) == ("cross", True)
    assert (wrong["state"], "not the daemon's" in wrong["text"]) == ("cross", True)
    assert (right["reports"]["state"], right["keys"]["state"]) == ("ok", "ok")
    assert "CABOOSE_AGENT_KEY has 5 characters" in short["text"]


def judged(watched: DaemonProcess, **changes: Any) -> dict[str, str]:
    """The states of the checks on a daemon with this status."""
    about = watched.get("/api/v1/daemon") | changes
    return {check.name: check.state for check in check_daemon(Client(watched.url), about, 0.01)}


def test_a_clock_a_journal_and_a_scraper_that_went_wrong_are_crosses(watched: DaemonProcess) -> None:
    about = watched.get("/api/v1/daemon")
    journal = about["journal"]

    assert judged(watched)["clock"] == "ok"
    assert judged(watched, time=about["time"] - 60)["clock"] == "cross"
    assert judged(watched, journal=journal | {"error": "database or disk is full"})["journal"] == "cross"
    assert judged(watched, journal=journal | {"free_bytes": 10**6})["journal"] == "warning"
    assert judged(watched, journal=journal | {"damage": "page 7 is not valid"})["journal"] == "cross"
    for changed in ({"set_aside": "journal.sqlite.damaged-x"}, {"num_quarantined": 3}, {"num_refused": 1}):
        assert judged(watched, journal=journal | changed)["journal"] == "warning"
    assert judged(watched, scrape={"seconds": 600, "by": "Prometheus"})["prometheus"] == "cross"
    assert judged(watched, num_refused={"version": 3})["messages"] == "warning"
    assert judged(watched, num_errors={"step: KeyError": 3})["errors"] == "warning"
    assert judged(watched, num_errors={"step: KeyError": 3}, quarantined=["gpt"])["errors"] == "cross"


def test_a_run_that_allows_more_than_its_daemon_is_pointed_out(watched: DaemonProcess) -> None:
    jobs = [{"job": "gpt", "state": "running", "owner_mode": "auto", "mode": "advise", "agent_versions": []}]

    assert judged(watched, jobs=jobs)["rollback"] == "warning"
    assert judged(watched, jobs=jobs, rollback={"mode": "auto", "is_signed": True})["rollback"] == "ok"


def test_what_going_back_is_expected_to_lose_is_stated() -> None:
    job = {"job": "gpt", "state": "running", "owner_mode": "auto", "mode": "auto", "agent_versions": []}
    about = {"rollback": {"mode": "auto", "is_signed": True}}

    assert (
        "run allows auto; going back loses about 14 steps)"
        in check_rollback({**about, "jobs": [{**job, "expected_steps_lost": 14}]}).text
    )
    assert "run allows auto)" in check_rollback({**about, "jobs": [job]}).text


def a_job(**changes: Any) -> dict[str, Any]:
    return {"job": "gpt", "state": "running", "world": 4, "num_live": 4, "silent_seconds": 0.1, **changes}


def test_a_job_that_was_killed_is_not_one_whose_ranks_are_missing() -> None:
    killed = check_agents([a_job(num_live=0, silent_seconds=45.0)])
    assert (killed.state, killed.text) == ("cross", "no report from gpt for 45 s")
    assert "caboose diagnose gpt" in killed.fix

    short = check_agents([a_job(num_live=3)])
    assert (short.state, short.text) == ("cross", "ranks missing: gpt: 3 of 4 ranks")
    assert "CABOOSE_ENDPOINT" in short.fix


def test_a_job_that_is_lost_runs_no_more() -> None:
    lost = a_job(job="old", state="lost", num_live=0, silent_seconds=14 * 86_400.0)

    assert check_agents([lost]).text == "1 job known, none running"
    assert check_agents([lost, a_job()]).state == "ok"


def test_the_page_for_people_ends_with_what_there_is_to_do(where: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(caboose, ["doctor", *where])

    assert ended.exit_code == 1
    assert "✗  agents" in ended.stdout
    assert "→ find them with `caboose top gpt`" in ended.stdout
    assert ended.stdout.rstrip().endswith("problems to fix")
