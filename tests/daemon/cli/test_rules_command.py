"""`caboose rules`: from a daemon, from a file or from the defaults; for people and for programs."""

import json
import os
import pty
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from caboose_daemon.cli import caboose
from caboose_daemon.out.api.client import HINT
from caboose_daemon.rules import RULES
from support.http import http
from support.processes import DaemonProcess, caboose_command, clean_environment, running_daemon, wait_until
from support.ranks import a_report, simulated_ranks

Run = Callable[..., "subprocess.CompletedProcess[str]"]
BLIND = {"job": "blind", "incarnation": "incarnation-blind", "launch": "run-2", "visible": ("lr",)}
NAMES = [rule.name for rule in RULES]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which no daemon is."""
    with socket.socket() as taken:  # bound and not listening: nobody else can have it meanwhile
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with a job whose loss has spiked, one that shows no loss, and a threshold that was posted."""
    directory = tmp_path_factory.mktemp("busy")
    (directory / "caboose.toml").write_text("[rules.rank_silent]\nseverity = 'warning'\nwarn_seconds = 600\n")
    with (
        running_daemon(directory) as daemon,
        simulated_ranks(daemon.endpoint, 1) as (rank,),
        simulated_ranks(daemon.endpoint, 1, BLIND),
    ):
        for step in range(1, 51):
            rank.send(a_report(step, loss=9.0 if step >= 46 else 2.0))
        assert wait_until(lambda: len(daemon.get("/api/v1/jobs")["jobs"]) == 2, 10)
        assert wait_until(lambda: daemon.get("/api/v1/jobs/train")["step"] == 50, 10)
        headers = {"authorization": f"Bearer {daemon.token}"}
        body = {"rules": {"loss_spike": {"ratio": 1.5}, "non_finite": {"enabled": False}}}
        assert http.post(f"{daemon.url}api/v1/config", headers=headers, json=body).status_code == 200
        yield daemon


def rows(text: str) -> dict[str, Any]:
    return {row["rule"]: row for row in json.loads(text)["rules"]}


# Without a daemon


def test_without_a_daemon_the_configuration_is_listed_a_line_a_rule(run_caboose: Run, nobody: str) -> None:
    ended = run_caboose("rules", CABOOSE_HTTP=nobody)

    assert ended.returncode == 0, ended.stderr
    title, *lines = ended.stdout.splitlines()
    assert title.split() == ["rule", "enabled", "severity", "thresholds", "needs", "runbook"]
    assert [line.split()[0] for line in lines] == NAMES
    spike = next(line.split() for line in lines if line.startswith("loss_spike "))
    assert len(spike) == 6, "no column holds a blank"
    assert spike[1:3] == ["true", "critical"]
    assert "ratio=1.25" in spike[3].split(",")
    assert spike[4:] == ["loss", "docs/rules.md#loss_spike"]


def test_what_the_file_changes_is_marked_with_the_default_beside_it(
    run_caboose: Run, nobody: str, tmp_path: Path
) -> None:
    (tmp_path / "caboose.toml").write_text("[rules.loss_spike]\nratio = 2\nseverity = 'warning'\nenabled = false\n")

    lines = run_caboose("rules", CABOOSE_HTTP=nobody).stdout.splitlines()

    spike = next(line.split() for line in lines if line.startswith("loss_spike "))
    assert spike[1:3] == ["false", "warning"]
    assert {"ratio=2*(1.25)", "severity=warning*(critical)", "enabled=false*(true)"} <= set(spike[3].split(","))


@pytest.mark.parametrize("by", ["flag", "variable", "default"])
def test_the_file_is_found_as_the_daemon_finds_it(run_caboose: Run, nobody: str, tmp_path: Path, by: str) -> None:
    name = "caboose.toml" if by == "default" else "other.toml"
    (tmp_path / name).write_text("[rules.loss_spike]\nratio = 2\n")
    env = {"CABOOSE_HTTP": nobody, **({"CABOOSE_CONFIG": name} if by == "variable" else {})}

    ended = run_caboose("rules", "--json", *(("--config", name) if by == "flag" else ()), **env)

    assert json.loads(ended.stdout)["file"] == name
    ratio = rows(ended.stdout)["loss_spike"]["thresholds"]["ratio"]
    assert (ratio["value"], ratio["default"], ratio["from"]) == (2.0, 1.25, "file")
    assert ratio["doc"].startswith("Loss over its level")


def test_without_a_daemon_there_is_no_state(run_caboose: Run, nobody: str) -> None:
    answer = json.loads(run_caboose("rules", "--json", CABOOSE_HTTP=nobody).stdout)

    assert answer["source"] == f"defaults; no daemon answers at http://{nobody}"
    assert [row["rule"] for row in answer["rules"]] == NAMES
    assert all("jobs" not in row for row in answer["rules"])


def test_a_bad_file_is_one_line(run_caboose: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[rules.loss_spike]\nratios = 2\n")

    ended = run_caboose("rules", "--config", "bad.toml")

    assert ended.returncode == 2
    assert ended.stderr == (
        "caboose: bad.toml: rules.loss_spike.ratios = 2: unknown key; did you mean rules.loss_spike.ratio?\n"
    )


# With one


def test_a_running_daemon_tells_what_is_in_force_and_how_each_rule_does(run_caboose: Run, busy: DaemonProcess) -> None:
    ended = run_caboose("rules", "--json", "--daemon", busy.url)

    assert ended.returncode == 0, ended.stderr
    found = rows(ended.stdout)
    spike = found["loss_spike"]
    assert spike["thresholds"]["ratio"]["value"] == 1.5
    assert spike["thresholds"]["ratio"]["from"] == "posted"
    assert spike["runs"] == 50
    assert 0 < spike["mean_seconds"] < 1
    assert spike["failures"] == 0
    states = {job["job"]: job for job in spike["jobs"]}
    assert (states["train"]["state"], states["train"]["onset_step"]) == ("open", 46)
    assert (states["blind"]["state"], states["blind"]["missing"]) == ("abstaining", ["loss"])
    assert {job["state"] for job in found["rank_silent"]["jobs"]} == {"quiet"}
    assert {job["state"] for job in found["non_finite"]["jobs"]} == {"off"}
    assert found["rank_silent"]["severity"] == "warning"


def test_the_daemon_is_found_by_the_variable_that_the_daemon_reads(run_caboose: Run, busy: DaemonProcess) -> None:
    address = busy.url.removeprefix("http://").rstrip("/")

    title, *lines = run_caboose("rules", CABOOSE_HTTP=address).stdout.splitlines()

    assert title.split()[6:] == ["state", "runs", "mean_ms", "failures"]
    spike = next(line.split() for line in lines if line.startswith("loss_spike "))
    assert "train=open,_critical_since_step_46" in spike[6].split(";")
    assert "blind=abstaining,_no_loss" in spike[6].split(";")


def test_a_proxy_is_not_asked_for_this_machines_own_daemon(run_caboose: Run, busy: DaemonProcess, nobody: str) -> None:
    ended = run_caboose("rules", "--daemon", busy.url, http_proxy=f"http://{nobody}")

    assert ended.returncode == 0, ended.stderr


def test_a_daemon_that_was_named_and_does_not_answer_is_one_line(run_caboose: Run, nobody: str) -> None:
    ended = run_caboose("rules", "--daemon", f"http://{nobody}/")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"caboose: no daemon answers at http://{nobody}: Connection refused{HINT}\n"


class NotOurs(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[1, 2]")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_something_else_at_the_address_is_one_line(run_caboose: Run) -> None:
    with HTTPServer(("127.0.0.1", 0), NotOurs) as server:
        Thread(target=server.handle_request).start()
        ended = run_caboose("rules", "--daemon", f"127.0.0.1:{server.server_port}")

    assert ended.returncode == 2
    assert ended.stderr == f"caboose: http://127.0.0.1:{server.server_port} answers, but not as a Caboose daemon\n"


@pytest.mark.parametrize("address", ["ftp://host:1", "http://", "nowhere", "host:99999"])
def test_an_address_that_is_none_is_one_line(run_caboose: Run, address: str) -> None:
    ended = run_caboose("rules", "--daemon", address)

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"caboose: --daemon '{address}' ")
    assert len(ended.stderr.splitlines()) == 1


def test_a_file_and_a_daemon_at_once_are_refused(run_caboose: Run, nobody: str) -> None:
    ended = run_caboose("rules", "--config", "x.toml", "--daemon", nobody)

    assert ended.returncode == 2
    assert "give one of them" in ended.stderr


# One rule


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_has_its_page(nobody: str, name: str) -> None:
    ended = CliRunner().invoke(caboose, ["rules", "show", name], env={"CABOOSE_HTTP": nobody})

    assert ended.exit_code == 0, ended.output
    assert ended.output.startswith(f"{name}\n")
    assert f"[rules.{name}]" in ended.output
    assert f"docs/rules.md#{name}" in ended.output


def test_a_page_tells_why_with_which_thresholds_and_when(run_caboose: Run, nobody: str, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[rules.loss_spike]\nratio = 2\n")

    page = " ".join(run_caboose("rules", "show", "loss_spike", "--config", "other.toml").stdout.split())

    assert "Why it works this way" in page
    assert re.search(r"ratio 2 Loss over its level .* \(file; the default is 1.25\)", page)
    assert "needs loss; abstains without it" in page
    assert "starts over after batch ramp, data switch, resume" in page


def test_a_page_of_a_running_daemon_has_the_state(run_caboose: Run, busy: DaemonProcess) -> None:
    page = run_caboose("rules", "show", "loss_spike", "--daemon", busy.url).stdout

    assert "train: open, critical since step 46" in page
    assert "(posted; the default is" in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("arguments", [("show", "loss_spike", "--json"), ("--json", "show", "loss_spike")])
def test_a_page_for_programs(run_caboose: Run, nobody: str, arguments: tuple[str, ...]) -> None:
    answer = json.loads(run_caboose("rules", *arguments, CABOOSE_HTTP=nobody).stdout)

    assert answer["rule"] == "loss_spike"
    assert answer["sees"]
    assert answer["sections"][0][0] == "Design"
    assert answer["thresholds"]["ratio"]["value"] == 1.25


@pytest.mark.parametrize(
    ("name", "hint"),
    [("los_spike", "did you mean loss_spike?"), ("Loss-Spike", "did you mean loss_spike?"), ("qqq", "the rules are ")],
)
def test_an_unknown_name_gets_the_nearest_one(run_caboose: Run, name: str, hint: str) -> None:
    ended = run_caboose("rules", "show", name)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"caboose: no rule '{name}'; {hint}")
    assert len(ended.stderr.splitlines()) == 1


# For people


@pytest.mark.parametrize("arguments", [("rules",), ("rules", "show")])
def test_help_has_an_example(run_caboose: Run, arguments: tuple[str, ...]) -> None:
    text = run_caboose(*arguments, "--help").stdout

    assert "Example:\n" in text
    assert "Exit codes:" in text


def test_on_a_terminal_it_is_a_table(busy: DaemonProcess, tmp_path: Path) -> None:
    text = on_a_terminal(tmp_path, "rules", "--daemon", busy.url)

    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert f"From daemon at {busy.url.rstrip('/')}" in plain
    assert "ratio=1.5*(1.25)" in plain
    assert "docs/rules.md#NAME" in plain
    assert all(name in plain for name in NAMES)


def on_a_terminal(directory: Path, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    env = clean_environment(COLUMNS="160", TERM="xterm-256color")
    process = subprocess.Popen(caboose_command(*arguments), stdout=theirs, cwd=directory, env=env)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65_536):
            parts.append(part)
    except OSError:  # how a terminal says that nobody writes any more
        pass
    finally:
        os.close(ours)
        assert process.wait(30) == 0
    return b"".join(parts).decode()
