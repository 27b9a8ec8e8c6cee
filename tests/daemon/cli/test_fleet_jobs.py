"""`caboose jobs` over several daemons: all jobs in one list, and a daemon that is away is named."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks

AWAY = "127.0.0.1:9"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(caboose, arguments)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DaemonProcess]]:
    """Two daemons that both have a job of the same name."""
    home = tmp_path_factory.mktemp("fleet")
    with running_daemon(home / "one") as one, running_daemon(home / "two") as two:
        for daemon, job in ((one, "gpt"), (two, "gpt"), (two, "resnet")):
            with simulated_ranks(daemon.endpoint, 1, {"job": job}) as ranks:
                send_steps(ranks, 1, 5)
                assert wait_until(lambda daemon=daemon, job=job: daemon.step(job) == 5, 10)
        yield [one, two]


def test_the_jobs_of_all_daemons_are_listed_with_their_daemon(daemons: list[DaemonProcess]) -> None:
    one, two = (daemon.url.rstrip("/") for daemon in daemons)
    found = run("jobs", "--daemon", one, "--daemon", two, "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    rows = [(row["job"], row["daemon"]) for row in answer["jobs"]]
    assert sorted(rows) == sorted([("gpt", one), ("gpt", two), ("resnet", two)])
    assert answer["unanswered"] == []
    text = run("jobs", "--daemon", one, "--daemon", two).stdout
    assert text.count("gpt") == 2
    assert one.removeprefix("http://") in text


def test_a_daemon_that_is_away_is_named_and_the_others_are_listed(daemons: list[DaemonProcess]) -> None:
    found = run("jobs", "--daemon", daemons[0].url, "--daemon", AWAY)
    assert (found.exit_code, "gpt" in found.stdout) == (0, True), found.output
    assert AWAY in found.stderr


def test_none_that_answers_is_an_error(daemons: list[DaemonProcess]) -> None:
    assert run("jobs", "--daemon", AWAY, "--daemon", "127.0.0.1:10").exit_code == 2


def test_the_list_of_the_configuration_needs_no_flags(
    daemons: list[DaemonProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ", ".join(f'"{daemon.url}"' for daemon in daemons)
    (tmp_path / "caboose.toml").write_text(f"[fleet]\ndaemons = [{listed}]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CABOOSE_HTTP", raising=False)
    monkeypatch.delenv("CABOOSE_CONFIG", raising=False)
    found = run("jobs", "--json")
    assert len(json.loads(found.stdout)["jobs"]) == 3, found.output
