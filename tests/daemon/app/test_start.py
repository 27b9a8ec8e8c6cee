"""A daemon that cannot start says why in one line and exits with 2; one that is asked to end does so at once."""

import contextlib
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from caboose_daemon.app.keys import make
from caboose_wire.private_files import read_or_make
from support.http import http
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_report, simulated_ranks
from support.seeds import first_of

Refused = Callable[..., str]


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


# What keeps it from starting


def test_a_taken_report_port_is_one_line(refused_start: Refused) -> None:
    with taken_port() as port:
        line = refused_start("--listen", f"tcp://127.0.0.1:{port}")

    assert line.startswith(f"--listen tcp://127.0.0.1:{port}: Address already in use")


@pytest.mark.slow
@pytest.mark.long
def test_a_taken_http_port_is_one_line(refused_start: Refused) -> None:
    with taken_port() as port:
        line = refused_start("--http", f"127.0.0.1:{port}")

    assert line.startswith(f"--http 127.0.0.1:{port}: Address already in use; is another daemon running?")


@pytest.mark.slow
@pytest.mark.long
def test_a_host_that_is_not_ours_is_one_line(refused_start: Refused) -> None:
    line = refused_start("--http", "192.0.2.1:0", "--insecure")

    assert line.startswith("--http 192.0.2.1:0: ")


@pytest.mark.slow
@pytest.mark.long
def test_a_data_directory_another_daemon_uses_is_one_line(daemon: DaemonProcess, refused_start: Refused) -> None:
    line = refused_start("--data-dir", str(daemon.data_dir))

    assert line == f"another daemon uses {daemon.data_dir}; stop it, or choose another --data-dir"
    assert daemon.get("/healthz")["status"] == "ok"


def test_a_data_directory_that_is_a_file_is_one_line(refused_start: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert refused_start("--data-dir", "file") == f"--data-dir {tmp_path / 'file'}: File exists"


def test_a_journal_that_is_something_else_is_one_line_and_left_alone(refused_start: Refused, tmp_path: Path) -> None:
    journal = tmp_path / "data" / "journal.sqlite"
    journal.parent.mkdir()
    journal.write_bytes(b"this is not a database" * 100)

    line = refused_start("--data-dir", "data", "--strict-journal")

    assert line == (
        f"{journal}: file is not a database; move the file away, or start without --strict-journal: "
        "it is then kept aside"
    )
    assert journal.read_bytes() == b"this is not a database" * 100


@pytest.mark.slow
@pytest.mark.long
def test_a_token_too_short_to_be_one_is_one_line(refused_start: Refused, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")

    assert refused_start("--token-file", "token") == "token: token: the token is too short; use at least 16 characters"


# How it ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_it_within_two_seconds_also_with_an_open_stream(tmp_path: Path, number: int) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1) as (rank,):
        rank.send(a_report(1))
        assert wait_until(lambda: daemon.get("/api/v1/jobs")["jobs"], 10)
        streaming = threading.Event()
        reader = threading.Thread(target=_read_stream, args=(daemon.url, streaming))
        reader.start()
        assert streaming.wait(10)

        start = time.monotonic()
        code = daemon.stop(number)
        seconds = time.monotonic() - start
        reader.join(10)

    assert code == 0, daemon.log.read_text()
    assert seconds < 2.0
    assert "Traceback" not in daemon.log.read_text()


def _read_stream(url: str, streaming: threading.Event) -> None:
    with (
        contextlib.suppress(httpx.HTTPError),
        http.stream("GET", f"{url}api/v1/stream", timeout=20) as response,
    ):
        for _ in response.iter_lines():
            streaming.set()


def test_what_was_received_before_the_signal_is_in_the_journal(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1) as (rank,):
        for step in range(1, 101):
            rank.send(a_report(step))
        assert wait_until(lambda: daemon.get("/api/v1/jobs/train")["num_steps"] == 100, 10)
        assert daemon.stop() == 0

    connection = sqlite3.connect(daemon.data_dir / "journal.sqlite")
    assert connection.execute("SELECT count(*), max(step) FROM steps").fetchone() == (100, 100)
    connection.close()


def test_it_says_where_it_listens(daemon: DaemonProcess) -> None:
    assert wait_until(lambda: daemon.url in daemon.log.read_text(), 5)
    assert daemon.endpoint in daemon.log.read_text()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mode", first_of([0o644, 0o640]))
def test_a_secret_that_others_can_read_is_refused_with_the_way_out(
    refused_start: Refused, tmp_path: Path, mode: int
) -> None:
    make(tmp_path / "keys")
    key = tmp_path / "keys" / "daemon.key_secret"
    for name in ("secret", "token"):
        (tmp_path / name).write_text("0123456789abcdef0123456789abcdef\n")
    for path, arguments in (
        (key, ("--keys", "keys")),
        (tmp_path / "secret", ("--secret-file", "secret")),
        (tmp_path / "token", ("--token-file", "token")),
    ):
        path.chmod(mode)
        line = refused_start(*arguments)
        assert f"{path.name} can be read or changed by other users (mode {mode:o}): run `chmod 600 " in line


def test_nor_is_the_secret_of_this_user_trusted_then(refused_start: Refused, tmp_path: Path) -> None:
    secret = tmp_path / "state" / "caboose" / "secret"
    read_or_make(secret)
    secret.chmod(0o644)
    line = refused_start("--rollback", "auto", XDG_STATE_HOME=str(tmp_path / "state"))
    assert line == f"{secret} can be read or changed by other users (mode 644): run `chmod 600 {secret}`"
