"""The table of columns: a number that is defined there is stored, served, drawn, exported and mirrored."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from caboose_daemon.jobs.state import State
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.export.items import MirroredStep
from caboose_daemon.out.metrics.table import ENTRIES
from caboose_daemon.steps.columns import RANK_COLUMNS, STEP_COLUMNS, Column, RankNumbers, StepSummary
from caboose_daemon.store import step_table
from caboose_daemon.store.journal import Journal
from caboose_wire import Heartbeat
from support.processes import DaemonProcess, wait_until
from support.ranks import a_report, send_steps, simulated_ranks
from support.scenario import scenario

NAN = float("nan")
GIB = 2**30


def a_summary(**changes: Any) -> StepSummary:
    """A step in which every number is known, and no two are equal."""
    known = {column.name: column.kind(number + 1) for number, column in enumerate(STEP_COLUMNS)}
    return StepSummary(**{**known, **changes})


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]


def a_table() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, name TEXT)")
    connection.execute(step_table.CREATE)
    return connection


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": NAN, "grad_norm": NAN},
        {"loss": float("inf"), "grad_norm": NAN},
        {column.name: None for column in STEP_COLUMNS if not column.is_required},
    ],
    ids=["all known", "both NaN", "infinite", "none known"],
)
def test_a_row_is_read_as_it_was_written(changes: dict[str, Any]) -> None:
    summary = a_summary(**changes)
    connection = a_table()

    connection.execute(step_table.INSERT, (1, *step_table.to_row(summary)))
    (row,) = connection.execute(f"SELECT {step_table.SELECTED} FROM steps").fetchall()

    assert repr(step_table.to_summary(row)) == repr(summary)


def test_a_number_that_can_be_nan_has_a_bit_of_its_own() -> None:
    bits = [column.nan_bit for column in STEP_COLUMNS if column.nan_bit]

    assert len(bits) == len(set(bits))
    assert all(bit.bit_count() == 1 for bit in bits)


@pytest.mark.parametrize(("seconds", "expected"), [((0.25, NAN), 0.25), ((float("inf"), NAN), None)])
def test_a_number_without_a_bit_is_none_where_it_is_not_finite(seconds: Any, expected: float | None) -> None:
    story = scenario(ranks=2).plays(1, agent_seconds=lambda rank, step: seconds[rank])
    assert story.job.recent[-1].agent_seconds == expected


def test_a_journal_that_lacks_a_column_gets_it_and_its_rows_have_no_value(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    state = State(rule_configs={}, started=0.0)
    Journal(path, state, max_steps=10, retention_days=1.0).close(0.0)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO jobs (id, name, created) VALUES (1, 'train', 0)")
    connection.execute(step_table.INSERT, (1, *step_table.to_row(a_summary())))
    connection.execute("ALTER TABLE steps DROP COLUMN device_bytes")
    connection.commit()

    Journal(path, state, max_steps=10, retention_days=1.0).close(0.0)

    (row,) = connection.execute(f"SELECT {step_table.SELECTED} FROM steps").fetchall()
    connection.close()
    assert step_table.to_summary(row) == a_summary(device_bytes=None)


def test_every_number_of_a_step_is_in_the_api_and_in_the_mirrors() -> None:
    summary = a_summary()
    mirrored = MirroredStep("train", summary, {}, None, None, {}, 0).values

    shape = json_shapes.step(summary)

    assert {name: shape[name] for name in names(STEP_COLUMNS)} == {
        name: getattr(summary, name) for name in names(STEP_COLUMNS)
    }
    for column in STEP_COLUMNS:
        if column.mirror:
            assert mirrored[column.mirror] == getattr(summary, column.name)


def test_every_curve_is_condensed_from_its_column() -> None:
    connection = a_table()
    for step in (1, 2):
        row = step_table.to_row(a_summary(step=step, loss=float(step), grad_norm=10.0 * step, device_bytes=step * GIB))
        connection.execute(step_table.INSERT, (1, *row))

    columns = ", ".join(f"{sql} AS {name}" for name, sql in step_table.CONDENSED.items())
    (row,) = connection.execute(f"SELECT {columns} FROM steps").fetchall()
    bucket = dict(zip(step_table.CONDENSED, row, strict=True))

    assert {column.name for column in STEP_COLUMNS if column.curve} <= bucket.keys()
    assert (bucket["loss"], bucket["grad_norm_min"], bucket["grad_norm_max"]) == (1.5, 10.0, 20.0)
    assert bucket["device_bytes"] == 2 * GIB


def test_every_metric_of_a_column_is_in_the_table_of_metrics() -> None:
    wanted = {column.metric for column in (*STEP_COLUMNS, *RANK_COLUMNS) if column.metric}

    assert wanted <= ENTRIES.keys()


# A rank's numbers


def test_a_ranks_numbers_follow_its_messages() -> None:
    numbers = RankNumbers()

    numbers.take_report(a_report(1, loss=3.0, device_bytes=5 * GIB))
    numbers.take_heartbeat(Heartbeat(step=1, utilization=0.75))
    numbers.take_report(a_report(2, loss=None, phases=None))

    assert numbers.loss is None, "the last report had none"
    assert numbers.step_seconds == 0.1, "not every step is timed: the last time stands"
    assert (numbers.device_utilization, numbers.device_bytes) == (0.75, 5 * GIB), "memory comes with samples only"


def test_the_device_of_a_rank_is_in_the_api_and_in_the_metrics(daemon: DaemonProcess) -> None:
    with simulated_ranks(daemon.endpoint, 2) as ranks:
        send_steps(ranks, 1, 2, is_sampled=True)
        ranks[1].send(a_report(3, is_sampled=True, device_bytes=20 * GIB))
        ranks[1].send(Heartbeat(step=3, utilization=0.25))
        assert wait_until(lambda: _device_of(daemon, 1) == (0.25, 20 * GIB), 5.0)

        assert _device_of(daemon, 0) == (None, None), "unknown is never 0"
        assert 'caboose_rank_device_memory_bytes{host="node1",rank="1"' in (text := daemon.text("/metrics"))
        assert 'caboose_rank_device_utilization_ratio{host="node1",rank="1"' in text
        assert 'caboose_rank_device_memory_bytes{host="node0"' not in text
    served = {(row["scope"], row["name"]): row for row in daemon.get("/api/v1/columns")["columns"]}
    assert served["rank", "device_bytes"]["unit"] == "bytes"


def _device_of(daemon: DaemonProcess, rank: int) -> tuple[Any, Any]:
    if daemon.step("train") < 0:
        return (NAN, NAN)
    found = {row["rank"]: row for row in daemon.get("/api/v1/jobs/train")["ranks"]}
    return found[rank]["device_utilization"], found[rank]["device_bytes"]
