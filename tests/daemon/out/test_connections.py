"""A client can hold neither the server's sockets nor its time: slow, idle and many connections are dropped."""

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from caboose_daemon.app.app import Daemon
from caboose_daemon.out.web import connections, files
from support.processes import running_daemon, wait_until
from support.ranks import a_report, simulated_ranks
from support.served import served

LIMIT = 0.3
"""Seconds that stand for the ten of a running daemon."""
LARGE, LARGE_BYTES = "large.js", 5_000_000
"""A file that no socket buffer holds."""
Connect = Callable[..., socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens connections that are closed afterwards."""
    with contextlib.ExitStack() as stack:

        def connect(url: str, start: bytes = b"", source: str = "") -> socket.socket:
            host, _, port = url.partition("://")[2].rstrip("/").rpartition(":")
            address = (source, 0) if source else None
            opened = socket.create_connection((host, int(port)), timeout=10, source_address=address)
            opened.sendall(start)
            return stack.enter_context(opened)

        yield connect


@pytest.fixture
def hasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon with little patience."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "READ_SECONDS"):
        monkeypatch.setattr(connections, name, LIMIT)
    page = tmp_path / "page"
    page.mkdir()
    (page / LARGE).write_bytes(b"x" * LARGE_BYTES)
    monkeypatch.setattr(files, "PAGE", page)
    with served(tmp_path) as daemon:
        yield daemon


def trickle(connection: socket.socket, content: bytes, every: float = LIMIT / 8) -> float:
    """Sends a byte now and then; the seconds until the other end has closed."""
    began = time.monotonic()
    connection.settimeout(every)
    for byte in content:
        try:
            connection.sendall(bytes([byte]))
            if connection.recv(100) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end closes it, after what it still has to say."""
    connection.settimeout(10)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def dropped(daemon: Daemon) -> dict[str, int]:
    return dict(daemon.state.http_dropped)


# Slowness


def test_a_head_that_trickles_in_is_cut_off(hasty: Daemon, connect: Connect) -> None:
    seconds = trickle(connect(hasty.url), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"x" * 1000)

    assert LIMIT * 0.9 < seconds < 20 * LIMIT
    assert wait_until(lambda: dropped(hasty) == {"slow_head": 1}, 5)


def test_a_body_that_trickles_in_is_cut_off_and_leaves_no_traceback(
    hasty: Daemon, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    token = (Path(hasty._data_dir) / "token").read_text().strip()
    head = (
        "POST /api/v1/config HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: 60000\r\n\r\n"
    )
    seconds = trickle(connect(hasty.url, head.encode()), b"x" * 1000)

    assert LIMIT * 0.9 < seconds < 20 * LIMIT
    assert wait_until(lambda: dropped(hasty) == {"slow_body": 1}, 5)
    assert [record for record in caplog.records if record.exc_info] == []


def test_the_body_of_a_refused_write_is_not_waited_for(hasty: Daemon, connect: Connect) -> None:
    head = b"POST /api/v1/config HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
    connection = connect(hasty.url, head)
    assert b"401" in connection.recv(4096)

    assert trickle(connection, b"x" * 1000) < 20 * LIMIT


def test_a_connection_without_a_word_is_closed(hasty: Daemon, connect: Connect) -> None:
    assert is_closed(connect(hasty.url))
    assert wait_until(lambda: dropped(hasty) == {"slow_head": 1}, 5)


def test_an_idle_connection_is_closed_and_not_counted(hasty: Daemon, connect: Connect) -> None:
    connection = connect(hasty.url, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"200 OK" in connection.recv(4096)

    assert is_closed(connection)
    assert dropped(hasty) == {}


def test_a_second_head_that_trickles_in_is_cut_off_too(hasty: Daemon, connect: Connect) -> None:
    connection = connect(hasty.url, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"200 OK" in connection.recv(4096)

    assert trickle(connection, b"GET /healthz HTTP/1.1\r\n" + b"x" * 1000) < 20 * LIMIT
    assert wait_until(lambda: dropped(hasty) == {"slow_head": 1}, 5)


def test_a_stream_lasts_longer_than_any_limit(hasty: Daemon, connect: Connect) -> None:
    connection = connect(hasty.url, b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.settimeout(5)
    began, seen = time.monotonic(), b""
    while time.monotonic() - began < 4 * LIMIT or seen.count(b"event: status") < 2:
        content = connection.recv(4096)
        assert content, "it was closed"
        seen += content


def test_a_reader_that_takes_nothing_is_dropped(hasty: Daemon, connect: Connect) -> None:
    connection = connect(hasty.url)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(b"GET /static/large.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4)

    assert wait_until(lambda: dropped(hasty) == {"slow_reader": 1}, 10)


def test_a_slow_reader_that_goes_on_reading_gets_everything(hasty: Daemon, connect: Connect) -> None:
    connection = connect(hasty.url)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.sendall(b"GET /static/large.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    connection.settimeout(5)
    size = 0
    while content := connection.recv(16384):
        size += len(content)
        time.sleep(0.002)
    assert size > LARGE_BYTES
    assert dropped(hasty) == {}


# Numbers


def test_connections_beyond_the_limit_are_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    with served(tmp_path) as daemon:
        ours = [connect(daemon.url) for _ in range(6)]
        assert [is_closed(each) for each in ours[4:]] == [True, True], "half of them for one address"
        others = [connect(daemon.url, source="127.0.0.2") for _ in range(4)]
        third = connect(daemon.url, source="127.0.0.3")
        assert is_closed(third)
        assert dropped(daemon) == {"too_many_of_peer": 2, "too_many": 1}

        for each in (*ours, *others):
            each.close()
        assert wait_until(lambda: _answers(daemon.url), 5)


def _answers(url: str, source: str = "127.0.0.1") -> bool:
    transport = httpx.HTTPTransport(local_address=source)
    try:
        with httpx.Client(transport=transport, timeout=5) as client:
            return client.get(f"{url}healthz").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.slow
def test_idle_connections_leave_descriptors_for_reports_and_other_clients(tmp_path: Path, connect: Connect) -> None:
    with running_daemon(tmp_path) as daemon:
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (700, 700))
        for _ in range(800):
            with contextlib.suppress(OSError):
                connect(daemon.url)
        num = len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))
        assert num < 600, "the limit of the process is not reached"
        assert _answers(daemon.url, "127.0.0.2")
        with simulated_ranks(daemon.endpoint, 1) as (rank,):
            rank.send(a_report(1))
            with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as client:
                url = f"{daemon.url}api/v1/jobs"
                assert wait_until(lambda: [job["step"] for job in client.get(url).json()["jobs"]] == [1], 10)


# What every answer has


@pytest.mark.parametrize(
    "request_",
    [
        *("GET /", "GET /healthz", "GET /readyz", "GET /metrics", "GET /static/icon.svg", "GET /static/nothing"),
        *("GET /api/v1/jobs", "GET /api/v1/jobs/nothing", "GET /nothing", "GET /runbooks/CabooseLossSpike"),
        *("POST /api/v1/config", "PUT /api/v1/config", "DELETE /", "HEAD /", "GET /api/v1/stream", "GET /favicon.ico"),
        *("GET /static/page.js", "NONSENSE"),
    ],
)
def test_no_answer_may_be_sniffed(shared: Daemon, connect: Connect, request_: str) -> None:
    connection = connect(shared.url, f"{request_} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    head = connection.recv(8192).partition(b"\r\n\r\n")[0].lower()

    assert head.count(b"\r\nx-content-type-options: nosniff") == 1, head


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with served(tmp_path_factory.mktemp("shared")) as daemon:
        yield daemon


@pytest.mark.slow
def test_without_free_descriptors_connections_are_closed_and_the_log_stays_short(
    tmp_path: Path, connect: Connect
) -> None:
    with running_daemon(tmp_path) as daemon:
        pid = daemon.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        highest = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        assert all(is_closed(connect(daemon.url, b"GET /healthz HTTP/1.1\r\n\r\n")) for _ in range(3))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

        assert daemon.text("/healthz"), "it answers again at once"
        assert 'caboose_http_connections_dropped_total{reason="no_descriptors"} 3.0' in daemon.text("/metrics")
        log = daemon.log.read_text()
    assert "Traceback" not in log
    assert log.count("closed: no_descriptors") == 1
