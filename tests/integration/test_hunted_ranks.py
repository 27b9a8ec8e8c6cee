"""Real ranks hunt together: asked for by hand, and by themselves before they are rolled back."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from caboose_daemon.cli import caboose
from support.http import http
from support.processes import DaemonProcess, running_daemon, wait_until
from support.training import JOBS, finish, training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = JOBS / "hunted.py"
NAN_AT = 130


def ask(daemon: DaemonProcess, path: str) -> Any:
    return http.get(f"{daemon.url}api/v1/jobs/hunted/{path}", timeout=10).json()


def num_ready(daemon: DaemonProcess) -> int:
    return sum(entry["is_held"] for entry in ask(daemon, "ledger").get("entries", ()))


def hunt_by_hand(daemon: DaemonProcess) -> dict[str, Any]:
    """As soon as the ranks hold a snapshot that is ready."""
    token = daemon.data_dir / "token"
    where = ["--daemon", daemon.url, "--token-file", str(token), "--json"]

    def answer() -> dict[str, Any] | None:
        if not num_ready(daemon):
            return None
        result = CliRunner().invoke(caboose, ["hunt", "hunted", "--dry-run", *where])
        plan = json.loads(result.stdout) if result.exit_code == 0 else {}
        return plan if plan.get("target") else None

    assert wait_until(answer, 60)
    result = CliRunner().invoke(caboose, ["hunt", "hunted", *where])
    assert result.exit_code == 0, result.output
    decision: dict[str, Any] = json.loads(result.stdout)
    return decision


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_ranks_hunt_at_one_boundary_and_go_on_bit_for_bit_and_are_then_rolled_back(tmp_path: Path, way: str) -> None:
    with running_daemon(tmp_path / "daemon", "--rollback", "auto") as daemon:
        env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": "hunted", "OMP_NUM_THREADS": "1"}
        arguments = ("--way", way, "--nan-at", str(NAN_AT), "--step-seconds", "0.08", "--guarded")
        with training(tmp_path / "run", *arguments, env=env, script=SCRIPT) as process:
            by_hand = hunt_by_hand(daemon)
            ranks = finish(process, tmp_path / "run", timeout=120)
        decisions = list(reversed(ask(daemon, "decisions")["decisions"]))
        incidents = ask(daemon, "incidents")["incidents"]
        events = [event["fields"] for event in ask(daemon, "events")["events"] if event["kind"] == "hunt"]
    twin_env = {"CABOOSE_ENDPOINT": "tcp://127.0.0.1:9", "CABOOSE_JOB": "twin", "OMP_NUM_THREADS": "1"}
    with training(tmp_path / "twin", "--way", way, "--nan-at", "0", env=twin_env, script=SCRIPT) as process:
        twins = finish(process, tmp_path / "twin")

    assert by_hand["state"] == "committed"
    assert by_hand["boundary"] < NAN_AT, "else it would prove nothing"
    for rank, twin in zip(ranks, twins, strict=True):
        assert rank["losses"][: NAN_AT - 1] == twin["losses"][: NAN_AT - 1]
        assert not math.isfinite(float.fromhex(rank["losses"][NAN_AT])), "the weights were lost, for a while"
    told = [(decision["kind"], decision["state"]) for decision in decisions]
    assert told[:3] == [("hunt", "committed"), ("hunt", "committed"), ("rollback", "committed")], told
    assert [rank["num_rollbacks"] for rank in ranks] == [1, 1]
    assert math.isfinite(float.fromhex(ranks[0]["losses"][-1]))

    hunt = decisions[1]
    assert hunt["onset"] == NAN_AT
    assert 0 < hunt["target"] < NAN_AT
    found = next(event for event in events if event.get("where") == "input")
    assert (found["rank"], found["samples"], found["batch"]) == (1, "5", NAN_AT - 1)
    assert found["weights_of"] == hunt["target"]
    assert bool(found.get("declined")) is (way == "fsdp2"), "a sharded model is looked at, and not run"
    incident = next(i for i in incidents if any(member["rule"] == "non_finite" for member in i["members"]))
    assert incident["diagnosis"]["causes"][0]["id"] == "input_not_finite", incident
    assert incident["diagnosis"]["hunts"][0] == found["summary"]
