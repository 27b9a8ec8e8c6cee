"""A run's curves in buckets: windows, spikes that survive, attempts that overlap, throughput and phases."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caboose_daemon.config import Config
from caboose_daemon.ingest.admission import PATIENCE_SECONDS
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.store.history import HistoryReader, restore
from caboose_daemon.store.journal import Journal
from caboose_daemon.store.series import _width
from caboose_wire import Phases
from support.http import http
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_report, send_steps, simulated_ranks
from support.scenario import INF, NAN, NORMS, JournaledCore, scenario

Make = Callable[..., JournaledCore]


@pytest.fixture
def reader(tmp_path: Path, journaled: Make) -> Iterator[HistoryReader]:
    journaled()
    reader = HistoryReader(tmp_path / "journal.sqlite")
    yield reader
    reader.close()


def test_a_window_holds_its_first_and_last_step_and_none_beside(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).healthy(100)

    assert [row["step"] for row in reader.series("train", 1000, 20, 23)] == [20, 21, 22, 23]
    assert [row["step"] for row in reader.series("train", 1000, first=98)] == [98, 99, 100]
    assert [row["step"] for row in reader.series("train", 1000, last=2)] == [1, 2]
    assert reader.series("train", 1000, 101, 200) == []


def test_a_window_is_finer_than_the_whole_and_keeps_its_spike(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).healthy(500).losses(50.0).healthy(499)

    whole, window = reader.series("train", 20), reader.series("train", 20, 491, 530)

    assert [row["num_steps"] for row in whole[1:-1]] == [50] * (len(whole) - 2)
    assert {row["num_steps"] for row in window} <= {1, 2}
    assert sum(row["num_steps"] for row in window) == 40
    assert max(row["loss_max"] for row in whole) == max(row["loss_max"] for row in window) == 50.0


def test_a_window_is_read_from_the_key_and_nothing_is_sorted(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).healthy(10)
    asked: list[str] = []
    reader.connection.set_trace_callback(asked.append)
    reader.series("train", 2, 3, 9)
    reader.connection.set_trace_callback(None)

    for sql in asked:
        plan = " ".join(row[3] for row in reader.connection.execute(f"EXPLAIN QUERY PLAN {sql}"))
        assert "SCAN steps" not in plan, sql
        assert "TEMP B-TREE" not in plan, sql


def test_buckets_that_are_kept_are_those_that_are_read(tmp_path: Path, journaled: Make, reader: HistoryReader) -> None:
    def fresh() -> object:
        other = HistoryReader(tmp_path / "journal.sqlite")
        try:
            return other.curves("train", 10)
        finally:
            other.close()

    story = scenario(ranks=1, core=journaled(max_steps=150)).plays(170, metrics=lambda rank, step: {"x": float(step)})
    assert reader.curves("train", 10) == fresh()
    story.losses(50.0).plays(8, metrics=lambda rank, step: {"x": float(step)})
    assert reader.curves("train", 10) == fresh(), "the newest bucket is read again"
    assert max(row["loss_max"] for row in reader.series("train", 10)) == 50.0
    story.daemon_sleeps(4000.0)
    story.core.journal.retention.advance(story.now)
    assert reader.curves("train", 10) == fresh(), "what the retention deleted is not shown"


def test_a_growing_run_rarely_changes_the_width_of_its_buckets() -> None:
    widths = [_width(steps, 1000) for steps in range(200_000, 400_000, 1000)]

    assert len(set(widths)) <= 9
    assert all(1.0 <= width / (200 + number) <= 1.13 for number, width in enumerate(widths))


def test_attempts_that_overlap_in_steps_are_apart_and_bounded_together(journaled: Make, reader: HistoryReader) -> None:
    story = scenario(ranks=1, core=journaled()).healthy(100).daemon_restarts(60.0)
    later = story.now + PATIENCE_SECONDS
    scenario(ranks=1, core=story.core, launch="run-2", incarnation="incarnation-new", now=later).healthy(60)

    rows = reader.series("train", 16, 11, 50)

    assert sorted({row["attempt"] for row in rows}) == [1, 2]
    assert [sum(row["num_steps"] for row in rows if row["attempt"] == number) for number in (1, 2)] == [40, 40]
    assert len(rows) <= 16 + 2, "one bucket more for each attempt at most"
    assert [(row["attempt"], row["step"]) for row in rows] == sorted((row["attempt"], row["step"]) for row in rows)


def test_an_infinite_loss_leaves_no_hole_as_wide_as_its_bucket(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).healthy(5).losses(1.0, 2.0, INF, NAN, 3.0, 2.0)

    (row,) = reader.series("train", 1, 6, 11)

    assert (row["loss"], row["loss_min"], row["loss_max"]) == (2.0, 1.0, 3.0)
    assert (row["num_bad"], row["num_bad_losses"], row["num_steps"]) == (2, 2, 6)


def test_a_gradient_that_is_not_finite_is_no_loss_that_is_not(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).healthy(5).nan_gradient(0, at=6).healthy(1)

    (row,) = reader.series("train", 1, 4, 7)

    assert (row["num_bad"], row["num_bad_losses"]) == (1, 0)


def test_throughput_is_samples_over_seconds_and_a_slow_step_shows(journaled: Make, reader: HistoryReader) -> None:
    story = scenario(ranks=1, core=journaled()).healthy(3)
    for step, seconds in enumerate((0.1, 0.1, 0.4, 0.1), start=4):
        phases = Phases(total=seconds, data=0.01, forward=0.02, backward=0.04, optimizer=0.01)
        story.says(0, a_report(step, num_samples=8, phases=phases))
    story.wait(1.0)

    (row,) = reader.series("train", 1, 4, 7)

    assert row["samples_per_second"] == pytest.approx(32 / 0.7)
    assert (row["samples_per_second_min"], row["samples_per_second_max"]) == (pytest.approx(20), pytest.approx(80))
    assert row["tokens_per_second"] is None
    assert row["step_seconds_max"] == pytest.approx(0.4)
    phases_seen = [row[f"{phase}_seconds"] for phase in ("data", "forward", "backward", "optimizer")]
    assert phases_seen == pytest.approx([0.01, 0.02, 0.04, 0.01])


def test_the_smallest_norm_of_a_bucket_is_kept_beside_the_largest(journaled: Make, reader: HistoryReader) -> None:
    story = scenario(ranks=1, core=journaled()).healthy(2)
    for height in (0.5, 1.0, 7.0):
        story.gradients(*(NORMS * height)).healthy(1)

    (row,) = reader.series("train", 1, 3, 5)

    assert row["grad_norm_min"] < row["grad_norm"] < row["grad_norm_max"]
    assert row["grad_norm_max"] == pytest.approx(14 * row["grad_norm_min"], rel=0.05)


# The journal of an earlier version

SCHEMA_3 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created REAL NOT NULL);
CREATE TABLE attempts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, number INTEGER NOT NULL, began REAL NOT NULL,
    world INTEGER NOT NULL, launch TEXT NOT NULL, agent_attempt INTEGER NOT NULL, reason TEXT NOT NULL DEFAULT '',
    start_step INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE TABLE steps (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, attempt INTEGER NOT NULL, step INTEGER NOT NULL,
    time REAL NOT NULL, loss REAL, loss_min REAL, loss_max REAL, grad_norm REAL, lr REAL, step_seconds REAL,
    data_seconds REAL, agent_seconds REAL, num_ranks INTEGER NOT NULL, bad INTEGER NOT NULL,
    PRIMARY KEY (job, attempt, step)
) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', '3');
INSERT INTO jobs VALUES (1, 'train', 0.0);
INSERT INTO attempts VALUES (1, 1, 0.0, 1, 'run-1', 0, '', 0);
INSERT INTO steps VALUES (1, 1, 1, 1000.0, 2.5, 2.4, 2.6, 0.5, 0.001, 0.1, 0.01, 0.0005, 1, 0);
INSERT INTO steps VALUES (1, 1, 2, 1001.0, NULL, NULL, NULL, 0.5, 0.001, 0.1, 0.01, 0.0005, 1, 1);
"""
"""As it was, with two steps in it, the second with a loss of NaN."""


@pytest.fixture
def old_journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA_3)
    connection.close()
    return path


def test_a_journal_of_schema_3_is_brought_up_to_date_and_loses_nothing(old_journal: Path) -> None:
    state = State(rule_configs=Config().rules, started=0.0)
    journal = Journal(old_journal, state, max_steps=1000, retention_days=1e6)
    restore(old_journal, state, Pipeline(state, journal), 2000.0)
    job = state.jobs["train"]
    first, second = job.recent

    assert (first.loss, first.step_seconds, first.num_ranks) == (2.5, 0.1, 1)
    assert second.loss != second.loss, "NaN"
    assert (first.forward_seconds, first.num_samples, first.samples_per_second) == (None, None, None)
    assert job.num_non_finite == 1
    journal.close(2000.0)


def test_old_and_new_steps_stand_in_one_curve_after_the_upgrade(old_journal: Path) -> None:
    core = JournaledCore(old_journal)
    restore(old_journal, core.state, core.pipeline, 2000.0)
    scenario(ranks=1, core=core).says(0, a_report(3, num_samples=4)).wait(1.0)
    reader = HistoryReader(old_journal)
    rows = {row["step"]: row for row in reader.series("train", 1000)}
    reader.close()
    core.close()

    assert (rows[1]["loss"], rows[1]["forward_seconds"], rows[1]["samples_per_second"]) == (2.5, None, None)
    assert (rows[3]["forward_seconds"], rows[3]["samples_per_second"]) == (pytest.approx(0.03), pytest.approx(40.0))


# Over HTTP


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        with simulated_ranks(daemon.endpoint, 2) as ranks:
            send_steps(ranks, 1, 60, num_samples=4)
            assert wait_until(lambda: [job["step"] for job in daemon.get("/api/v1/jobs")["jobs"]] == [60], 20)
        yield daemon


def test_a_window_is_asked_for_by_its_first_and_last_step(served: DaemonProcess) -> None:
    rows = served.get("/api/v1/jobs/train/series", **{"from": 10, "to": 12})["steps"]

    assert [row["step"] for row in rows] == [10, 11, 12]
    assert rows[0]["samples_per_second"] == pytest.approx(80.0)
    assert rows[0]["forward_seconds"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("from=-1", "from='-1': give a whole number from 0 to 9007199254740992"),
        ("from=x&to=5", "from='x': give a whole number"),
        ("to=1.5", "to='1.5': give a whole number"),
        ("to=²", "to='²': give a whole number"),
        ("from=", "from='': give a whole number"),
        ("to=" + "9" * 400, "to='9999999"),
        ("from=9&to=8", "from=9 is after to=8"),
    ],
)
def test_a_wrong_window_is_explained(served: DaemonProcess, query: str, message: str) -> None:
    answer = http.get(f"{served.url}api/v1/jobs/train/series?{query}")

    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)


def test_live_steps_tell_the_same_as_the_curve_does(served: DaemonProcess) -> None:
    row = served.get("/api/v1/jobs/train/series", **{"from": 60})["steps"][0]
    last = served.get("/api/v1/jobs/train")["last"]

    shared = set(row) & set(last)
    assert {"samples_per_second", "forward_seconds", "backward_seconds", "optimizer_seconds"} <= shared
    assert {name: last[name] for name in shared} == {name: pytest.approx(row[name]) for name in shared}


# What a browser keeps


@pytest.mark.parametrize("path", ["", "static/page.js", "static/page.css", "static/chart.js"])
def test_whatever_an_upgrade_may_change_is_asked_for_again_and_not_sent_again(served: DaemonProcess, path: str) -> None:
    first = http.get(f"{served.url}{path}")
    again = http.get(f"{served.url}{path}", headers={"if-none-match": first.headers["etag"]})

    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["content-encoding"] == "gzip"
    assert (again.status_code, again.content) == (304, b"")
    other = http.get(f"{served.url}{path}", headers={"if-none-match": '"something else"'})
    assert other.status_code == 200


def test_the_page_names_every_script_it_leads_to(served: DaemonProcess) -> None:
    page = http.get(served.url).text
    asked = {f"static/{line.split('./')[1].split(chr(34))[0]}" for line in _imports(served)}

    assert asked
    assert all(f'<link rel="modulepreload" href="{name}">' in page for name in asked)


def _imports(served: DaemonProcess) -> list[str]:
    script = http.get(f"{served.url}static/page.js").text
    return [line for line in script.splitlines() if line.startswith("import ")]
