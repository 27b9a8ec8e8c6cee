"""A page from end to end: a real run with a fault, a daemon, Prometheus, Alertmanager, and a pager."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.ops.drills import catalogue
from caboose_daemon.ops.drills.through import judged
from caboose_daemon.ops.stack import ports
from caboose_daemon.ops.stack import stack as stacks
from caboose_daemon.out.api.client import Client
from support.pager import Pager, a_pager
from support.processes import caboose_command, clean_environment, end, wait_until
from support.ranks import send_steps, simulated_ranks
from support.stacked import acknowledge, ask, running_stack


@pytest.fixture
def pager() -> Iterator[Pager]:
    with a_pager() as pager:
        yield pager


@pytest.fixture
def stack(tmp_path: Path, pager: Pager) -> Iterator[stacks.Stack]:
    with running_stack(tmp_path / "stack", pager) as made:
        yield made


@pytest.mark.slow  # real ranks, and times of several programs
def test_a_nan_on_one_rank_is_one_page_and_a_resolve_once_it_is_acknowledged(
    stack: stacks.Stack, pager: Pager, tmp_path: Path
) -> None:
    job = subprocess.Popen(
        [sys.executable, "-m", "caboose_drills", "run", "nan_input", "--seeds", "0", "--prefix", "chain"],
        env=clean_environment(CABOOSE_ENDPOINT=stack.endpoint, OMP_NUM_THREADS="1", TMPDIR=str(tmp_path)),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        paged = wait_until(lambda: pager.alerts("firing", severity="critical"), 120)
        assert paged, "no page arrived"
        job.wait(60)
    finally:
        end(job)
    assert wait_until(lambda: ask(stack, 'caboose_incident_unresolved{training_job="chain-0"} == 1'), 60)
    assert pager.told(severity="critical") == ["firing"], "its end resolves nothing"
    acknowledge(stack, "chain-0/1")
    assert wait_until(lambda: pager.alerts("resolved", severity="critical"), 60), "it never resolved"

    assert wait_until(lambda: not ask(stack, 'caboose_incident_open{training_job="chain-0"}'), 60), (
        "the incident is still exported"
    )

    assert pager.told(severity="critical") == ["firing", "resolved"], "paged once, and resolved once"
    (page,) = pager.alerts("firing", severity="critical")
    labels = page["labels"]
    assert (labels["alertname"], labels["training_job"], labels["rule"]) == (
        "CabooseBadBatch",
        "chain-0",
        "bad_batch",
    )
    assert not {"rank", "host", "layer", "incident"} & set(labels), "a culprit that changes would make a new alert"
    first = page["annotations"]
    assert "rank 1" in first["culprit"]
    assert first["cause"] == "input_not_finite"
    assert first["runbook_url"] == f"{stack.daemon_url}/runbooks/CabooseBadBatch?job=chain-0&incident=1"
    others = {alert["labels"]["alertname"] for alert in pager.alerts("firing")} - {"CabooseBadBatch"}
    assert not others, "one cause, one page"
    assert ask(stack, 'caboose_incidents_total{training_job="chain-0",rule="bad_batch"}')


def stack_command(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`caboose stack` in a directory, with a home of its own."""
    env = clean_environment(XDG_STATE_HOME=str(directory / "state"))
    command = caboose_command(*arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=directory, env=env, check=False)


@pytest.mark.slow
def test_the_daemon_of_a_stack_is_found_and_a_dead_part_comes_back_in_its_place(tmp_path: Path) -> None:
    started = stack_command(tmp_path, "stack", "up", "--with-daemon", "--ports", "free", "--json")
    assert started.returncode == 0, started.stderr
    try:
        made = json.loads(started.stdout)
        before = {part["name"]: part["url"] for part in made["parts"]}
        with simulated_ranks(made["endpoint"], 2, {"job": "gpt"}) as ranks:
            send_steps(ranks, 1, 50)
            assert wait_until(lambda: json.loads(stack_command(tmp_path, "jobs", "--json").stdout)["jobs"], 30)
            noted = stack_command(tmp_path, "note", "halved the rate")
            assert "of gpt" in noted.stdout, "address and token are found, and the only job: " + noted.stderr

            known = stacks.load(tmp_path / "caboose-stack")
            assert known is not None
            for name in ("daemon", "prometheus"):
                os.kill(known.part(name).pid, signal.SIGKILL)
            assert wait_until(lambda: not known.part("daemon").is_running, 10)
            assert "gone" in stack_command(tmp_path, "stack", "status").stdout
            send_steps(ranks, 51, 60)

            again = stack_command(tmp_path, "stack", "up", "--json")

            assert again.returncode == 0, again.stderr
            after = {part["name"]: part["url"] for part in json.loads(again.stdout)["parts"]}
            assert after == before, "every part is where it was"
            listed = json.loads(stack_command(tmp_path, "jobs", "--json").stdout)["jobs"]
            assert [row["job"] for row in listed] == ["gpt"], "with its data"
            revived = stacks.load(tmp_path / "caboose-stack")
            assert revived is not None
            assert revived.part("alertmanager") == known.part("alertmanager"), "what lives is left alone"
    finally:
        stack_command(tmp_path, "stack", "down")
    assert not list((tmp_path / "state" / "caboose" / "daemons").glob("*.json"))


def test_usual_ports_are_taken_where_they_are_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)
    assert ports.choose("prometheus", is_usual=True) in (ports.USUAL["prometheus"], *range(1024, 65536))
    assert ports.choose("prometheus", is_usual=False) != ports.USUAL["prometheus"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_status_and_down_find_what_up_started_and_down_ends_everything(tmp_path: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = caboose_command("stack", *arguments)
        return subprocess.run(
            command, capture_output=True, text=True, timeout=90, cwd=tmp_path, env=clean_environment(), check=False
        )

    started = run("up", "--with-daemon", "--ports", "free", "--json")
    assert started.returncode == 0, started.stderr
    try:
        parts = json.loads(started.stdout)["parts"]
        assert [(part["name"], part["state"]) for part in parts] == [
            ("daemon", "ready"),
            ("alertmanager", "ready"),
            ("prometheus", "ready"),
        ]
        again = run("up", "--with-daemon", "--ports", "free")
        assert (again.returncode, "runs in" in again.stderr) == (1, True)
        assert run("status").returncode == 0
    finally:
        ended = run("down")
    assert ended.stdout == "ended: daemon, alertmanager, prometheus\n"
    assert not any(Client(part["url"]).is_ok("") for part in parts)
    assert run("status").returncode == 2
    assert run("down").returncode == 2


def test_without_a_daemon_the_error_names_the_flag_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(stacks.StackError, match="--with-daemon"):
        stacks.up(tmp_path / "stack", daemon="127.0.0.1:1", rules=[])
    assert not (tmp_path / "stack" / "stack.json").exists()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("directory", ["/proc/caboose", "/dev/null/caboose"])
def test_a_directory_that_cannot_be_created_gives_one_line(directory: str, tmp_path: Path) -> None:
    done = subprocess.run(
        caboose_command("stack", "up", "--with-daemon", "--ports", "free", "--dir", directory),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=clean_environment(),
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.startswith(f"caboose: --dir {directory} cannot be created: ")
    assert done.stderr.count("\n") == 1


def test_the_error_of_a_program_that_does_not_start_is_shown_and_the_others_end(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("groups: 3\n")

    with pytest.raises(stacks.StackError, match="prometheus did not start") as raised:
        stacks.up(tmp_path / "stack", daemon=None, rules=[broken])

    assert "broken.yml" in str(raised.value)
    assert stacks.load(tmp_path / "stack") is None


def test_the_error_for_a_missing_program_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Exception, match="apt-get install prometheus"):
        stacks.up(tmp_path / "stack", daemon=None, rules=[])


@pytest.mark.long
@pytest.mark.slow  # a real run, and times of several programs
def test_a_drill_through_alerts_times_each_hop_until_the_resolve(stack: stacks.Stack, tmp_path: Path) -> None:
    command = caboose_command("drill", "non_finite", "--through-alerts", str(stack.directory), "--json")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=clean_environment(), check=False
    )

    assert done.returncode == 0, done.stderr
    passage = json.loads(done.stdout)
    assert list(passage["seconds"]) == ["daemon", "prometheus", "alert", "alertmanager", "resolved"]
    assert sorted(passage["seconds"].values()) == list(passage["seconds"].values())
    labels = passage["alert"]
    assert (labels["alertname"], labels["rule"], labels["severity"]) == ("CabooseNonFinite", "non_finite", "critical")
    assert (passage["receivers"], passage["wrong"]) == (["default"], [])


def an_alert(rule: str, severity: str, *receivers: str) -> dict[str, Any]:
    labels = {"alertname": f"Caboose-{rule}", "rule": rule, "severity": severity}
    return {"labels": labels, "receivers": [{"name": name} for name in receivers or ("pager",)]}


@pytest.mark.parametrize(
    ("alerts", "wrong"),
    [
        pytest.param([an_alert("non_finite", "critical")], [], id="one page"),
        pytest.param(
            [an_alert("non_finite", "warning")],
            ["non_finite arrived as warning, the daemon has non_finite (critical)"],
            id="a ticket instead of a page",
        ),
        pytest.param(
            [an_alert("non_finite", "critical"), an_alert("straggler", "warning")],
            [
                "2 alerts for one cause: Caboose-non_finite (critical), Caboose-straggler (warning)",
                "unexpected alert of rule 'straggler' for this drill",
            ],
            id="two alerts for one cause",
        ),
        pytest.param(
            [{**an_alert("non_finite", "critical"), "receivers": []}],
            ["Alertmanager has no receiver for it"],
            id="no receiver",
        ),
    ],
)
def test_alerts_are_compared_with_the_incidents_of_the_daemon(alerts: list[dict[str, Any]], wrong: list[str]) -> None:
    drill = catalogue.Drill(name="non_finite", about="", rule="non_finite")

    assert judged(alerts, {("non_finite", "critical")}, drill) == wrong


@pytest.mark.slow
@pytest.mark.long
def test_a_drill_without_a_stack_names_what_is_missing(tmp_path: Path) -> None:
    stations = tmp_path / "stations.json"
    stations.write_text('{"endpoint": "tcp://127.0.0.1:1"}')
    for where, message in ((tmp_path, "no stack was started"), (stations, "missing required field `daemon`")):
        command = caboose_command("drill", "non_finite", "--through-alerts", str(where))
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=clean_environment(), check=False
        )
        assert done.returncode == 2
        assert message in done.stderr
