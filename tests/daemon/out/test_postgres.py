"""Several daemons, one PostgreSQL: what they wrote is read as one history, and a server that is away costs nothing."""

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from caboose_daemon.cli import caboose
from caboose_daemon.config import ConfigError, StoreConfig, load
from caboose_daemon.offline.runs.common_store import CommonStore
from caboose_daemon.offline.runs.run import RunError
from caboose_daemon.offline.runs.source import HistorySource, JournalSource
from caboose_wire import Bye, Event
from support import postgres
from support.postgres import PostgresServer, running_postgres
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not() or "can run"),
]
ODD = "fix\0 of \N{SNOWMAN}"
"""A NUL, which PostgreSQL does not store, and texts outside ASCII."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_postgres() as started:
        yield started


def configuration(directory: Path, server: PostgresServer) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "caboose.toml"
    file.write_text(f'[store]\npostgres = "{server.url}"\npassword_file = "{server.password_file}"\n')
    return file


@contextlib.contextmanager
def daemon_of(directory: Path, server: PostgresServer, **more: Any) -> Iterator[DaemonProcess]:
    with running_daemon(directory, "--config", str(configuration(directory, server)), **more) as daemon:
        yield daemon


def broken_job(daemon: DaemonProcess, job: str, *, note: str = "fix") -> None:
    """A job whose loss becomes NaN, with a change that both ranks declare; it ends."""
    with simulated_ranks(daemon.endpoint, 2, {"job": job}) as ranks:
        send_steps(ranks, 1, 40)
        send_steps(ranks, 41, 44, loss=math.nan)
        for rank in ranks:
            fields = {"text": note, "lr": 1e-4}
            rank.send(Event(attempt=0, step=44, time=time.time(), kind="fix", fields=fields))
        assert wait_until(lambda: daemon.get(f"/api/v1/jobs/{job}/incidents")["incidents"], 20)
        assert wait_until(lambda: daemon.get(f"/api/v1/jobs/{job}/events")["events"], 20)
        for rank in ranks:
            rank.send(Bye(step=44))
        assert wait_until(lambda: not daemon.get(f"/api/v1/jobs/{job}/incidents")["incidents"][0]["is_open"], 20)


def value(daemon: DaemonProcess, metric: str) -> float:
    (line,) = [line for line in daemon.text("/metrics").splitlines() if line.startswith(f"{metric} ")]
    return float(line.split()[1])


def history(config: Path, *arguments: str, **env: str) -> Result:
    return CliRunner().invoke(caboose, ("history", *arguments), env={"CABOOSE_CONFIG": str(config), **env})


def past(where: HistorySource, jobs: list[str]) -> dict[str, Any]:
    """Everything that a source answers about these jobs."""
    found = {job: [where.incidents(job), where.decisions(job), where.events(job)] for job in jobs}
    return dict(json.loads(json.dumps(found)))


def both(daemon: DaemonProcess, config: Path, jobs: tuple[str, ...]) -> tuple[Any, Any]:
    """What the database answers about these jobs, and what the daemon's journal does."""
    journal = JournalSource(daemon.data_dir / "journal.sqlite")
    try:
        with contextlib.closing(CommonStore(load(config).store)) as store:
            return past(store, list(jobs)), past(journal, list(jobs))
    except RunError as error:  # it has no such job yet
        return str(error), ""


def must_be_stored(daemon: DaemonProcess, config: Path, *jobs: str) -> None:
    """The database answers about these jobs as the daemon's journal does, within a while."""

    def agree() -> bool:
        stored, kept = both(daemon, config, jobs)
        return bool(stored == kept)

    wait_until(agree, 20, every=0.1)
    stored, kept = both(daemon, config, jobs)
    assert stored == kept


def test_a_daemons_history_is_read_from_the_database_as_from_the_daemon(server: PostgresServer, tmp_path: Path) -> None:
    config = tmp_path / "one" / "caboose.toml"
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, "gpt")
        must_be_stored(daemon, config, "gpt")
        stored = history(config, "--store", "--json")
        asked = history(config, "--daemon", daemon.url, "--json")

    assert stored.exit_code == 0, stored.output
    assert json.loads(stored.stdout) == json.loads(asked.stdout)
    assert json.loads(stored.stdout)["num_found"] >= 1
    (cause,) = server.rows("SELECT cause FROM caboose_diagnoses WHERE place = 0 AND number = 1")
    assert cause[0] == json.loads(stored.stdout)["incidents"][-1]["cause"]["id"]
    assert len(server.rows("SELECT * FROM caboose_notes")) == 1, "both ranks declared one change"


@pytest.mark.long
def test_nothing_is_lost_while_the_server_is_away_and_the_daemon_is_killed(
    server: PostgresServer, tmp_path: Path
) -> None:
    jobs = [f"job-{number}" for number in range(6)]
    config = tmp_path / "one" / "caboose.toml"
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, jobs[0])
        must_be_stored(daemon, config, jobs[0])

        server.stop()
        broken_job(daemon, jobs[1])
        broken_job(daemon, jobs[2])
        assert wait_until(lambda: value(daemon, "caboose_store_backlog_rows") >= 4, 20)
        daemon.kill()
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, jobs[3])
        assert wait_until(lambda: value(daemon, "caboose_store_backlog_rows") >= 6, 20)
        daemon.stop()
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, jobs[4])
        server.start()
        must_be_stored(daemon, config, *jobs[:5])

        server.stop()  # at rest: the next row finds the connection closed
        server.start()
        broken_job(daemon, jobs[5])
        must_be_stored(daemon, config, *jobs)

        failures = 'caboose_export_failures_total{target="postgres"}'
        assert value(daemon, failures) >= 1
        assert value(daemon, 'caboose_exports_dropped_total{target="postgres"}') == 0
    log = (tmp_path / "one" / "daemon.log").read_text()
    assert server.password not in log
    assert log.count("what is to be sent waits in the journal") <= 4, "once for each time that it is away"


@pytest.mark.long
def test_several_daemons_are_one_history_and_one_knowledge_base(server: PostgresServer, tmp_path: Path) -> None:
    config = tmp_path / "one" / "caboose.toml"
    with daemon_of(tmp_path / "one", server) as one, daemon_of(tmp_path / "two", server) as two:
        broken_job(one, "gpt", note=ODD)
        broken_job(two, "gpt", note="of the second")
        broken_job(two, "bert")
        (incident, *_) = one.get("/api/v1/jobs/gpt/incidents")["incidents"]
        fields = {"change": "lr=0.5x", "verdict": "helped", "why": "4 % lower", "rule": incident["rule"]}
        trial = {"kind": "trial", "fields": {**fields, "cause": "", "incident": incident["id"], "by": "ada"}}
        status, answer = one.post("/api/v1/jobs/gpt/events", trial)
        places = [daemon.url.removeprefix("http://").rstrip("/").rpartition(":")[2] for daemon in (one, two)]
        assert wait_until(lambda: len(server.rows("SELECT 1 FROM caboose_notes")) == 4, 20)
        found = json.loads(history(config, "--store", "--json").stdout)
        names = sorted({row["job"] for row in found["incidents"]})

        assert [name.rpartition(":")[2] for name in names if name.startswith("gpt@")] == sorted(places)
        assert "bert" in names
        assert status == 201, answer
        like = next(row["id"] for row in found["incidents"] if row["job"].endswith(places[1]))
        known = json.loads(history(config, "--store", "--json", "--like", like).stdout)
        assert [(row["change"], row["verdict"]) for row in known["tried"]] == [("lr=0.5x", "helped")]
        alone = json.loads(history(config, "--store", "--json", "bert").stdout)
        assert {row["job"] for row in alone["incidents"]} == {"bert"}
        assert history(config, "--store", "nobody").exit_code == 2
        assert history(config, "--store", "--daemon", one.url).exit_code == 2
    texts = server.rows("SELECT body -> 'fields' ->> 'text' FROM caboose_notes WHERE kind = 'fix' AND job = 'gpt'")
    assert ODD.replace("\0", "\ufffd") in [text for (text,) in texts]


@pytest.mark.long
def test_an_empty_database_gets_what_the_journal_has(server: PostgresServer, tmp_path: Path) -> None:
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, "gpt")
        assert wait_until(lambda: jobs_of(server), 20)
    with running_daemon(tmp_path / "one") as daemon:  # without the database for a while
        broken_job(daemon, "bert")
    with server.connect() as connection:
        connection.execute("DROP TABLE caboose_diagnoses, caboose_incidents, caboose_decisions, caboose_notes")
        connection.execute("DROP TABLE caboose_journals, caboose_store")
    with daemon_of(tmp_path / "one", server) as daemon:
        assert wait_until(lambda: {name for (name,) in jobs_of(server)} == {"gpt", "bert"}, 20)


def jobs_of(server: PostgresServer) -> list[tuple[Any, ...]]:
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        return server.rows("SELECT DISTINCT job FROM caboose_incidents")
    return []


@pytest.mark.long
def test_a_server_that_hangs_holds_nothing_up(server: PostgresServer, tmp_path: Path) -> None:
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, "gpt")
        assert wait_until(lambda: jobs_of(server), 20)
        server.signal_all(signal.SIGSTOP)
        broken_job(daemon, "bert")  # waits for its incident, its end and several answers of the API
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 10
    server.signal_all(signal.SIGCONT)
    with daemon_of(tmp_path / "one", server):
        assert wait_until(lambda: {name for (name,) in jobs_of(server)} == {"gpt", "bert"}, 20)


@pytest.mark.long
def test_a_row_that_the_database_refuses_keeps_none_back(server: PostgresServer, tmp_path: Path) -> None:
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, "gpt")
        assert wait_until(lambda: jobs_of(server), 20)
        with server.connect() as connection:
            check = "CASE WHEN job = 'bert' THEN ('x' || rule)::integer > 0 ELSE true END"
            connection.execute(f"ALTER TABLE caboose_incidents ADD CHECK ({check})")  # a text that is no number
        broken_job(daemon, "bert")
        broken_job(daemon, "t5")
        assert wait_until(lambda: len(jobs_of(server)) == 2, 20)
        assert wait_until(lambda: value(daemon, "caboose_store_backlog_rows") == 0, 20)
        assert value(daemon, 'caboose_exports_dropped_total{target="postgres"}') >= 1

    assert {name for (name,) in jobs_of(server)} == {"gpt", "t5"}


@pytest.mark.long
def test_tables_of_another_version_are_left_alone(server: PostgresServer, tmp_path: Path) -> None:
    with server.connect() as connection:
        connection.execute("CREATE TABLE caboose_store (id text, version integer)")
        connection.execute("INSERT INTO caboose_store VALUES ('x', 99)")
    with daemon_of(tmp_path / "one", server) as daemon:
        broken_job(daemon, "gpt")
        assert wait_until(lambda: "its tables are of version 99" in daemon.log.read_text(), 20)

    tables = server.rows("SELECT tablename FROM pg_tables WHERE tablename LIKE 'caboose%'")
    assert tables == [("caboose_store",)]


def test_a_database_that_cannot_be_read_is_one_line(server: PostgresServer, tmp_path: Path) -> None:
    config = configuration(tmp_path, server)
    assert history(config, "--store").exit_code == 0  # no daemon has written yet

    server.stop()
    ended = history(config, "--store")

    assert ended.exit_code == 2
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("caboose: the database of [store]: ")


def test_a_password_in_the_address_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    for address in ("postgresql://ada:hunter2@db/x", "postgresql://ada@db/x?password=hunter2"):
        file.write_text(f'[store]\npostgres = "{address}"\n')
        with pytest.raises(ConfigError, match="put that into a file") as caught:
            load(file)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match="expected postgresql://"):
        StoreConfig(postgres="mysql://db/x")


def test_a_missing_password_file_stops_the_start(refused_start: Any, tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text('[store]\npostgres = "postgresql://db/x"\npassword_file = "/nonexistent"\n')

    assert refused_start("--config", str(file)) == (f"[store] password_file /nonexistent: {os.strerror(2)}")
