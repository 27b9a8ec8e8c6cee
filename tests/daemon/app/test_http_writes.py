"""HTTP writes go through the loop: at once, committed before they are answered, and withdrawn if it does not answer."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from caboose_daemon.app.app import Daemon
from caboose_daemon.app.sinks import DaemonSink
from caboose_daemon.jobs.pipeline import Change, Sink
from caboose_daemon.out.api.live import Broker
from caboose_daemon.out.web import writes
from caboose_daemon.store.database import Database
from caboose_wire import Event
from support.http import http
from support.processes import wait_until
from support.ranks import a_report, simulated_ranks
from support.scenario import JournaledCore, scenario
from support.served import served

NAN = float("nan")
EVENT = {"kind": "note", "fields": {"text": "hello"}}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with a job."""
    with served(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1) as (rank,):
        rank.send(a_report(1))
        assert wait_until(lambda: "train" in daemon.state.jobs and daemon.state.jobs["train"].num_steps, 10)
        yield daemon


def post(daemon: Daemon, path: str = "/api/v1/jobs/train/events", body: Any = EVENT) -> httpx.Response:
    token = (daemon._data_dir / "token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return http.post(daemon.url.rstrip("/") + path, json=body, headers=headers, timeout=10)


def in_journal(daemon: Daemon) -> int:
    connection = sqlite3.connect(daemon._data_dir / "journal.sqlite")
    try:
        return int(connection.execute("SELECT count(*) FROM events").fetchone()[0])
    finally:
        connection.close()


def test_a_write_is_in_the_journal_when_it_is_answered_and_the_loop_wakes_for_it(daemon: Daemon) -> None:
    seconds = []
    for number in range(1, 11):
        began = time.monotonic()
        assert post(daemon).status_code == 201
        seconds.append(time.monotonic() - began)
        assert in_journal(daemon) == number
    assert min(seconds) < 0.08, "it does not wait for the loop's next turn, 100 ms later"


def test_a_write_that_the_loop_does_not_begin_is_withdrawn_for_good(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "WAIT_SECONDS", 0.2)
    with daemon.state.lock:
        assert wait_until(lambda: daemon.state.lock.is_wanted, 10), "the loop is in the middle of a turn"
        answer = post(daemon)
    assert answer.status_code == 503
    assert answer.json() == {"error": "the daemon was busy for 0.2 s; nothing was changed, try again"}

    assert post(daemon, body={"kind": "note", "fields": {"text": "the next"}}).status_code == 201
    assert [event.fields["text"] for event in daemon.state.jobs["train"].events] == ["the next"]
    assert in_journal(daemon) == 1


def test_a_write_that_the_loop_has_begun_has_an_unknown_outcome(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "WAIT_SECONDS", 0.2)
    go_on = threading.Event()
    monkeypatch.setattr(Database, "before_commit", lambda database: go_on.wait(10) and None)

    answer = post(daemon)
    assert answer.status_code == 503
    assert answer.json()["outcome"] == "unknown"
    assert list(daemon.state.jobs["train"].events) == [], "it is not shown before it is committed"

    go_on.set()
    assert wait_until(lambda: in_journal(daemon) == 1, 10)
    assert wait_until(lambda: len(daemon.state.jobs["train"].events) == 1, 10)


def test_readers_are_answered_while_a_write_is_synced_to_disk(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def wait(database: Database) -> None:
        begun.set()
        go_on.wait(10)

    monkeypatch.setattr(Database, "before_commit", wait)
    writer = threading.Thread(target=post, args=(daemon,))
    writer.start()
    try:
        assert begun.wait(10)
        assert http.get(f"{daemon.url}api/v1/jobs/train", timeout=2).json()["events"] == []
    finally:
        go_on.set()
        writer.join(10)


def test_a_write_that_fails_is_an_answer_and_the_loop_goes_on(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(daemon._context.pipeline, "declaring", fail)
        assert post(daemon).status_code == 500
    assert post(daemon).status_code == 201


def test_a_daemon_whose_loop_has_ended_says_so_at_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon._context, "is_receiving", lambda: False)
    answer = post(daemon)
    assert (answer.status_code, answer.json()["error"]) == (
        503,
        "the receiving loop has stopped; nothing was changed",
    )


def test_an_event_with_a_name_that_is_too_long_is_refused(daemon: Daemon) -> None:
    answer = post(daemon, body={"kind": "note", "fields": {"x" * 257: 1}})
    assert answer.status_code == 400
    assert in_journal(daemon) == 0


# What is shown is committed


class Listener:
    """Collects what a broker delivers, without an event loop."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, str, Any]] = []
        self.broker = Broker()
        self.broker.post = self.updates.extend  # type: ignore[method-assign]


def test_updates_are_posted_after_the_commit_and_marked_where_it_failed(tmp_path: Path) -> None:
    heard = Listener()
    core = JournaledCore(tmp_path / "journal.sqlite")
    sink = DaemonSink(core.journal, heard.broker)
    core.join(sink)
    story = scenario(ranks=1, core=core)
    story.declares("data_switch")
    assert heard.updates == []
    sink.flush(story.now)
    assert heard.updates == []
    sink.post(story.now)
    assert [(kind, "is_committed" in data) for _, kind, data in heard.updates] == [("attempt", False), ("event", False)]

    heard.updates.clear()
    (pages,) = core.execute("PRAGMA page_count").fetchone()
    core.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    core.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(400):
        story.declares("data_switch")
    sink.post(story.now)
    assert core.state.journal_error
    assert {data["is_committed"] for _, _, data in heard.updates} == {False}
    core.close()


def test_a_change_that_cannot_be_kept_is_neither_made_nor_announced(tmp_path: Path) -> None:
    heard = Listener()
    core = JournaledCore(tmp_path / "journal.sqlite")
    sink = DaemonSink(core.journal, heard.broker)
    core.join(sink)
    story = scenario(ranks=1, core=core).healthy(5)
    sink.post(story.now)
    heard.updates.clear()
    event = Event(attempt=1, step=5, time=story.now, kind="checkpoint", fields={"path": "/checkpoints/5"})
    change = core.pipeline.declaring(story.job, event)
    core.execute("PRAGMA query_only = ON")
    assert sink.write(change, story.now) == "attempt to write a readonly database"
    core.execute("PRAGMA query_only = OFF")
    sink.post(story.now + 1.0)
    assert heard.updates == []
    assert core.state.journal_error == ""

    assert sink.write(change, story.now) == ""
    sink.post(story.now)
    assert [kind for _, kind, _ in heard.updates] == ["event", "ledger"]
    core.close()


def test_a_row_that_could_not_be_read_again_refuses_the_change(tmp_path: Path) -> None:
    core = JournaledCore(tmp_path / "journal.sqlite")
    story = scenario(ranks=1, core=core).healthy(2)
    bad = Change(record=lambda sink: _declare_nonsense(sink, story.job), apply=lambda: None)

    assert core.journal.write(bad, story.now) == "it could not be read again"
    assert core.journal.commit(story.now)
    assert core.execute("SELECT count(*) FROM events").fetchone() == (0,)
    core.close()


def _declare_nonsense(sink: Sink, job: Any) -> None:
    sink.event_declared(job, Event(attempt=True, step=1, time=1.0, kind="x"))


# The seam for crash tests


def test_every_commit_passes_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Database, "before_commit", lambda database: seen.append("before"))
    monkeypatch.setattr(Database, "after_commit", lambda database: seen.append("after"))
    core = JournaledCore(tmp_path / "journal.sqlite")
    assert seen == ["before", "after"], "the tables"
    scenario(ranks=1, core=core).healthy(3)
    assert len(seen) > 4
    assert seen == ["before", "after"] * (len(seen) // 2)
    core.close()


def test_an_answer_is_no_future_that_hangs(daemon: Daemon) -> None:
    async def ask() -> int:
        answers = await asyncio.gather(
            *(asyncio.to_thread(post, daemon) for _ in range(8)),
        )
        return sum(answer.status_code == 201 for answer in answers)

    assert asyncio.run(ask()) == 8
    assert in_journal(daemon) == 8
