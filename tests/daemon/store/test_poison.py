"""One bad row costs that row: what cannot be read is set aside, and the daemon starts."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caboose_daemon.app.app import Daemon
from caboose_daemon.jobs.job import Job
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.api.declared import declared
from caboose_daemon.out.api.steps_around import steps_around
from caboose_daemon.store.history import HistoryReader, read_jobs, restore
from caboose_daemon.store.rows import ROWS
from caboose_daemon.store.sample_history import SampleReader
from caboose_wire import Event, Hello
from caboose_wire.messages import Part
from support.journals import NUM_STEPS, started_on, write_journal
from support.processes import running_daemon, wait_until
from support.ranks import a_report, simulated_ranks
from support.recorder import Core
from support.scenario import JournaledCore, scenario

# What is written can be read


@pytest.mark.parametrize("step", [True, 2**63, 2**64 - 1, -5, 1.5, "x", None])
def test_an_odd_number_in_an_event_is_not_taken_over(tmp_path: Path, step: Any) -> None:
    odd = {"path": "/checkpoints/1", "step": step, "world": True, "model_step": False, "num_bytes": True}
    core = JournaledCore(tmp_path / "journal.sqlite")
    story = scenario(ranks=1, core=core).healthy(3)
    story.says(0, Event(attempt=0, step=3, time=5.0, kind="checkpoint", fields=odd))
    story.says(0, Event(attempt=0, step=3, time=5.0, kind="validation", fields={"loss": True, "accuracy": False}))
    story.wait(2.0)
    (before,) = story.job.rollback.ledger

    (after,) = story.daemon_restarts().job.rollback.ledger

    assert after == before
    assert (after.step, after.world, after.model_step, after.num_bytes) == (3, None, None, None)
    assert story.core.state.journal_refused == story.core.state.journal_quarantined == 0
    assert isinstance(story.core, JournaledCore)
    story.core.close()


@pytest.mark.slow
def test_a_bool_for_a_step_over_wire_and_http_does_not_end_the_next_start(tmp_path: Path) -> None:
    fields = {"path": "/checkpoints/1", "step": True}
    with running_daemon(tmp_path) as daemon:
        with simulated_ranks(daemon.endpoint, 1) as (rank,):
            rank.send(a_report(1))
            rank.send(Event(attempt=0, step=1, time=1.0, kind="checkpoint", fields=fields))
            assert wait_until(lambda: daemon.step("train") == 1, 10)
        posted = {"kind": "checkpoint", "fields": {**fields, "path": "/checkpoints/2"}}
        assert daemon.post("/api/v1/jobs/train/events", posted)[0] == 201
        assert wait_until(lambda: len(daemon.get("/api/v1/jobs/train/ledger")["entries"]) == 2, 10)
        daemon.kill()
    with running_daemon(tmp_path) as daemon:
        assert [entry["step"] for entry in daemon.get("/api/v1/jobs/train/ledger")["entries"]] == [1, 1]


def test_a_number_that_sqlite_cannot_store_costs_its_row_and_not_the_journal(tmp_path: Path) -> None:
    core = JournaledCore(tmp_path / "journal.sqlite")
    story = scenario(ranks=1, core=core).healthy(5)
    too_much = replace(story.job.recent[-1], step=99, num_tokens=2**63)  # the sum of thousands of absurd reports

    core.journal.step_closed(story.job, too_much)
    story.healthy(1)

    assert (core.state.journal_refused, core.state.journal_error) == (1, "")
    assert [row[0] for row in execute(tmp_path, "SELECT step FROM steps")] == list(range(1, 7))
    core.close()


# What cannot be read is set aside

POISON = {
    "totals": ("UPDATE totals SET body = ?", b"\xc1"),
    "attempts": ("UPDATE attempts SET world = ?", "two"),
    "members": ("UPDATE members SET pid = ? WHERE rank = 0", "no number"),
    "members.incarnation": ("UPDATE members SET incarnation = CAST(? AS TEXT)", b"\xff\xfe incarnation"),
    "descriptions": ("UPDATE descriptions SET body = ?", b"\x81\xa3job\x07"),
    "steps": ("UPDATE steps SET loss = ? WHERE step = 7", "x"),
    "part_steps": ("UPDATE part_steps SET loss = ? WHERE step = 7", "x"),
    "sample_facts": ("UPDATE sample_facts SET body = ?", b"\xc1"),
    "last_reports": ("UPDATE last_reports SET body = ?", msgspec.msgpack.encode({0: 1})),
    "named_steps": ("UPDATE named_steps SET value = ? WHERE step = 7", "x"),
    "episodes": ("UPDATE episodes SET first = ?", b"\xc1"),
    "episodes.severity": ("UPDATE episodes SET severity = ?", "dreadful"),
    "incidents": ("UPDATE incidents SET body = ?", msgspec.msgpack.encode({"job": 1})),
    "incidents.members": ("UPDATE incidents SET members = ?", msgspec.msgpack.encode(["x"])),
    "decisions": ("UPDATE decisions SET body = ?", b""),
    "decisions.number": ("UPDATE decisions SET number = ?", 77),
    "ledger": ("UPDATE ledger SET body = ?", msgspec.msgpack.encode({"kind": "checkpoint", "step": True})),
    "events": ("UPDATE events SET fields = ? WHERE kind = 'data_switch'", msgspec.msgpack.encode([1])),
    "events.step": ("UPDATE events SET step = ?", -1),
    "jobs": ("UPDATE jobs SET created = ?", "yesterday"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_journal(tmp_path_factory.mktemp("original"))
    parts = (Part("actor", (0, 1), (0, 1)), Part("critic", (1, 2), (0, 1)))
    for (body,) in execute(directory, "SELECT body FROM descriptions"):
        hello = msgspec.structs.replace(msgspec.msgpack.decode(body, type=Hello), parts=parts)
        execute(directory, "UPDATE descriptions SET body = ? WHERE body = ?", msgspec.msgpack.encode(hello), body)
    columns = "job, attempt, step, part, loss, bad"
    execute(directory, f"INSERT INTO part_steps ({columns}) SELECT job, attempt, step, 'actor', loss, 0 FROM steps")
    columns = "job, attempt, step, source, name, value"
    named = f"INSERT INTO named_steps ({columns}) SELECT job, attempt, step, 'metric', 'accuracy', loss FROM steps"
    execute(directory, named)
    return directory


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def execute(data: Path, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(data / "journal.sqlite")) as connection:
        connection.text_factory = bytes
        rows = connection.execute(sql, values).fetchall()
        connection.commit()
        return rows


def show(job: Job, data: Path) -> None:
    """Everything that a page or a command asks for."""
    json_shapes.job_detail(job, 0.0, 3)
    json_shapes.job_diagnosis(job)
    for incident in job.incidents:
        json_shapes.incident(incident)
    for episode in job.episodes:
        json_shapes.episode(episode)
    for decision in job.rollback.decisions:
        json_shapes.decision(decision)
    for entry in job.rollback.ledger:
        json_shapes.entry(entry)
    with closing(HistoryReader(data / "journal.sqlite")) as reader:
        reader.series(job.name, 1000)
        reader.latest_sample(job.name)
        SampleReader(reader.connection, job.name).samples(["grad_norm"], 0, 100)
        declared(reader.connection, job.name)
        steps_around(reader.connection, job.name, 1, 30, 50, 50)


def num_quarantined(daemon: Daemon) -> int:
    return daemon.state.journal_quarantined


@pytest.mark.parametrize("place", POISON)
def test_a_poisoned_row_costs_that_row_only(data: Path, place: str) -> None:
    sql, value = POISON[place]
    table = place.partition(".")[0]
    execute(data, sql, value)

    with started_on(data) as daemon:
        job = daemon.state.jobs["train"]
        assert (job.num_attempts, job.latest_step) == (1, NUM_STEPS)
        assert job.attempt is not None
        assert job.attempt.world == 2
        show(job, data)
        num = num_quarantined(daemon)
        assert num >= 1
    rows = execute(data, "SELECT source, reason, body FROM quarantine")
    assert len(rows) == num
    assert {source.decode().partition(" ")[0] for source, _, _ in rows} == {table}
    assert all(reason and set(msgspec.msgpack.decode(body)) >= set(_columns(table)) for _, reason, body in rows)
    with started_on(data) as daemon:
        assert num_quarantined(daemon) == num, "a row is set aside once"
        assert daemon.state.jobs["train"].latest_step == NUM_STEPS


def _columns(table: str) -> tuple[str, ...]:
    return ROWS[table].__struct_fields__


def test_a_job_whose_name_cannot_be_is_left_out_and_noted_once(data: Path) -> None:
    execute(data, "INSERT INTO jobs (id, name, created) VALUES (7, 'no / name', 1.0)")
    execute(
        data, "INSERT INTO attempts SELECT 7, number, began, world, launch, agent_attempt, '', 0, NULL, 0 FROM attempts"
    )

    for _ in range(2):
        with started_on(data) as daemon:
            assert set(daemon.state.jobs) == {"train"}
            assert num_quarantined(daemon) == 1


def test_the_rows_of_every_table_can_be_poisoned(original: Path) -> None:
    tables = {place.partition(".")[0] for place in POISON}
    assert tables == set(ROWS) - {"samples", "latest_samples"}, "those two are read when a page asks for them"
    for table in ROWS:
        assert execute(original, f"SELECT count(*) FROM {table}")[0][0] > 0, f"{table} is empty"


@pytest.mark.parametrize("table", ["samples", "latest_samples"])
def test_a_sample_that_cannot_be_read_is_not_shown(data: Path, table: str) -> None:
    execute(data, f"UPDATE {table} SET body = ?", b"\xc1")

    with started_on(data) as daemon:
        show(daemon.state.jobs["train"], data)


def test_a_journal_that_is_only_read_is_read_without_its_bad_rows(data: Path) -> None:
    execute(data, "UPDATE steps SET loss = 'x' WHERE step = 7")
    before = (data / "journal.sqlite").read_bytes()

    (job,) = read_jobs(data / "journal.sqlite", Core().pipeline.make_attempt, 0.0)

    assert 7 not in [summary.step for summary in job.recent]
    assert (data / "journal.sqlite").read_bytes() == before


@pytest.mark.parametrize("table", [table for table in ROWS if table != "jobs"])
def test_any_value_of_a_row_may_be_wrong(data: Path, table: str) -> None:
    pristine = (data / "journal.sqlite").read_bytes()
    for column in _columns(table):
        for value in (b"\xff\x00", -1):
            (data / "journal.sqlite").write_bytes(pristine)
            try:
                execute(data, f"UPDATE OR IGNORE {table} SET {column} = ?", value)
            except sqlite3.IntegrityError:
                continue
            core = Core()
            restore(data / "journal.sqlite", core.state, core.pipeline, 0.0)
            show(core.state.jobs["train"], data)
