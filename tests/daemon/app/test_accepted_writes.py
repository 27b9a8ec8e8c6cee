"""A write answered with 2xx outlives the daemon; one that cannot be kept is refused and changes nothing."""

import contextlib
import os
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.http import http
from support.obedient import obedient_ranks
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_report, simulated_ranks

NAN = float("nan")
SECRET = "a secret that the daemon and the ranks share"
pytestmark = pytest.mark.slow

INCIDENT = "/api/v1/jobs/train/incidents/1/ack"
EVENTS = "/api/v1/jobs/train/events"


@contextlib.contextmanager
def broken_run(daemon: DaemonProcess) -> Iterator[None]:
    """A job with one open incident."""
    with simulated_ranks(daemon.endpoint, 1) as (rank,):
        for step in range(1, 11):
            rank.send(a_report(step, loss=NAN if step > 8 else 2.0))
        assert wait_until(lambda: incidents(daemon), 10)
        yield


def incidents(daemon: DaemonProcess) -> list[dict[str, Any]]:
    try:
        return list(daemon.get("/api/v1/jobs/train/incidents")["incidents"])
    except httpx.HTTPStatusError:
        return []


def events(daemon: DaemonProcess) -> list[dict[str, Any]]:
    return list(daemon.get("/api/v1/jobs/train")["events"])


# SIGKILL right after the answer


def acknowledged(daemon: DaemonProcess) -> Any:
    (incident,) = incidents(daemon)
    return incident["acknowledged"] and incident["acknowledged"]["reason"]


Write = tuple[str, dict[str, Any], Callable[[DaemonProcess], bool]]


def a_write(number: int) -> Write:
    """An acknowledgement, a note, a checkpoint, the end of an acknowledgement, in turn."""
    text = f"write {number}"
    return (
        (INCIDENT, {"reason": text, "by": "me"}, lambda daemon: acknowledged(daemon) == text),
        (
            EVENTS,
            {"kind": "note", "fields": {"text": text}},
            lambda daemon: text in [event["fields"].get("text") for event in events(daemon)],
        ),
        (
            EVENTS,
            {"kind": "checkpoint", "fields": {"path": text, "step": 5}},
            lambda daemon: text in [row["name"] for row in daemon.get("/api/v1/jobs/train/ledger")["entries"]],
        ),
        (INCIDENT, {"undo": True}, lambda daemon: acknowledged(daemon) is None),
    )[number % 4]


def test_a_kill_right_after_the_answer_loses_no_write(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, broken_run(daemon):
        daemon.kill()
    lost = []
    path, body, is_kept = a_write(0)
    for number in range(9):
        with running_daemon(tmp_path) as daemon:
            if number and not is_kept(daemon):
                lost.append((number - 1, path))
            path, body, is_kept = a_write(number)
            client = httpx.Client(headers={"authorization": f"Bearer {daemon.token}"}, timeout=10)
            with client:
                answer = client.post(daemon.url.rstrip("/") + path, json=body)
                os.kill(daemon.process.pid, signal.SIGKILL)
            assert answer.status_code in (200, 201), answer.text
    assert lost == []


def test_a_kill_right_after_a_command_was_accepted_loses_no_decision(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    arguments = ("--rollback", "auto", "--secret-file", str(file))
    with running_daemon(tmp_path / "d", *arguments) as daemon:
        endpoint = daemon.endpoint
        with obedient_ranks(endpoint, secret=SECRET.encode()) as job:
            job.on_command = lambda command: None
            ledger = "/api/v1/jobs/train/ledger"
            assert wait_until(lambda: _found(daemon, ledger) and daemon.get(ledger)["entries"], 20)
            answers = []
            for _ in range(3):
                status, decision = daemon.post("/api/v1/jobs/train/commands", {"kind": "snapshot", "by": "me"})
                answers.append((status, decision["number"]))
            daemon.kill()
    with running_daemon(tmp_path / "d", *arguments) as daemon:
        kept = [row["number"] for row in daemon.get("/api/v1/jobs/train/decisions")["decisions"]]
    assert {status for status, _ in answers} <= {202, 409}
    assert set(kept) >= {number for _, number in answers}, "a refused request is on record as well"


def _found(daemon: DaemonProcess, path: str) -> bool:
    return http.get(daemon.url.rstrip("/") + path).status_code == 200


# A full disk


WRITES = {
    "ack": (INCIDENT, {"reason": "looking at it"}),
    "note": (EVENTS, {"kind": "note", "fields": {"text": "x" * 4000}}),
    "checkpoint": (EVENTS, {"kind": "checkpoint", "fields": {"path": "x" * 3000, "step": 3}}),
    "rollback": ("/api/v1/jobs/train/rollback", {"by": "me"}),
    "command": ("/api/v1/jobs/train/commands", {"kind": "stop", "by": "me"}),
    "config": ("/api/v1/config", {"rules": {"non_finite": {"enabled": False}}}),
}


def everything(daemon: DaemonProcess) -> dict[str, Any]:
    """All that a write could change."""
    tails = ("/incidents", "/decisions", "/ledger", "/findings")
    seen = {tail: daemon.get(f"/api/v1/jobs/train{tail}") for tail in tails}
    return {**seen, "events": events(daemon), "config": daemon.get("/api/v1/config")}


def test_on_a_full_disk_every_write_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with broken_run(daemon):
            pass
        files = [daemon.data_dir / f"journal.sqlite{end}" for end in ("", "-wal")]
        full = min(file.stat().st_size for file in files)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
        before = everything(daemon)
        answers = {name: daemon.post(path, body) for name, (path, body) in WRITES.items()}

        assert {name: status for name, (status, _) in answers.items()} == dict.fromkeys(WRITES, 503)
        assert all("the journal cannot be written" in body["error"] for _, body in answers.values())
        assert everything(daemon) == before
        assert http.get(f"{daemon.url}readyz").status_code == 503

        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, unlimited)
        status, _ = daemon.post(INCIDENT, {"reason": "now it is kept"})
        assert status == 200
        daemon.kill()
    with running_daemon(tmp_path) as daemon:
        assert acknowledged(daemon) == "now it is kept"
        assert [event["kind"] for event in events(daemon)] == []


# The loop does not answer


def test_a_write_waits_a_second_for_the_journal_and_no_longer(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, broken_run(daemon):
        other = sqlite3.connect(daemon.data_dir / "journal.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        status, body = daemon.post(INCIDENT, {"reason": "looking at it"})
        assert (status, "the journal cannot be written" in body["error"]) == (503, True)
        other.execute("ROLLBACK")
        other.close()
        assert acknowledged(daemon) is None
        assert daemon.post(INCIDENT, {"reason": "looking at it"})[0] == 200
