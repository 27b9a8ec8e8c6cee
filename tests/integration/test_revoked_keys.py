"""A key is authorised and revoked while the daemon runs; only the connections of that key are closed."""

import contextlib
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
import zmq.utils.monitor

from caboose_daemon.app.keys import make
from caboose_wire import Hello, StepReport, encode
from support.processes import DaemonProcess, caboose_command, clean_environment, running_daemon, wait_until
from support.ranks import a_hello, a_report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Reporter:
    """One rank that reports with a key."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, keys: dict[str, str]) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.curve_serverkey = keys["CABOOSE_SERVER_KEY"].encode()
        self._socket.curve_secretkey = keys["CABOOSE_AGENT_KEY"].encode()
        self._socket.curve_publickey = zmq.curve_public(keys["CABOOSE_AGENT_KEY"].encode())
        self._events = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        self.step = 0

    def send(self, message: Hello | StepReport) -> None:
        with contextlib.suppress(zmq.Again):  # a connection that is closed for good takes nothing, for ever
            self._socket.send_multipart(encode(message), zmq.NOBLOCK)

    def report(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.step += 1
            self.send(a_report(step=self.step, seq=self.step))

    @property
    def is_closed(self) -> bool:
        """Whether the daemon has closed its connection since the last look."""
        return bool(self._events.poll(0)) and bool(zmq.utils.monitor.recv_monitor_message(self._events))

    def close(self) -> None:
        self._socket.disable_monitor()
        self._events.close()
        self._socket.close()


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """`caboose keys`; returns the variables that it prints."""
    make(tmp_path / "keys")

    def run(command: str, *arguments: str) -> dict[str, str]:
        ended = subprocess.run(
            caboose_command("keys", command, str(tmp_path / "keys"), *arguments),
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return dict(re.findall(r"export (\w+)='([^']+)'", ended.stdout))

    return run


@pytest.fixture
def keyed(tmp_path: Path, keys: Callable[..., dict[str, str]]) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path / "daemon", "--keys", str(tmp_path / "keys")) as daemon:
        yield daemon


@pytest.fixture
def reporter(keyed: DaemonProcess) -> Iterator[Callable[[dict[str, str], str], Reporter]]:
    context = zmq.Context()
    made: list[Reporter] = []

    def connect(variables: dict[str, str], job: str) -> Reporter:
        made.append(Reporter(context, keyed.endpoint, variables))
        made[-1].send(a_hello(job=job, world=1))
        return made[-1]

    yield connect
    for one in made:
        one.close()
    context.term()


def test_a_revoked_key_is_closed_out_and_the_others_lose_nothing(
    keyed: DaemonProcess,
    keys: Callable[..., dict[str, str]],
    reporter: Callable[[dict[str, str], str], Reporter],
) -> None:
    first, second = (reporter(keys("authorize", name), name) for name in ("alice", "bob"))
    first.report(3)
    second.report(3)
    assert wait_until(lambda: keyed.step("alice") == keyed.step("bob") == 3, 10), "authorised while the daemon runs"

    keys("revoke", "alice")
    assert wait_until(lambda: first.is_closed, 10), "also a connection that is silent"
    first.report(5)
    second.report(5)
    assert wait_until(lambda: keyed.step("bob") == 8, 10)
    assert keyed.step("alice") == 3
    assert not second.is_closed
    (bob,) = (row for row in keyed.get("/api/v1/jobs/bob")["ranks"])
    assert bob["num_missed"] == 0
    assert "revoked: alice; 1 of their connections closed" in keyed.log.read_text()


def test_a_file_that_cannot_be_read_authorises_nobody_and_sighup_reads_again(
    keyed: DaemonProcess,
    keys: Callable[..., dict[str, str]],
    reporter: Callable[[dict[str, str], str], Reporter],
    tmp_path: Path,
) -> None:
    alice = reporter(keys("authorize", "alice"), "alice")
    alice.report()
    assert wait_until(lambda: keyed.step("alice") == 1, 10)
    broken = tmp_path / "keys" / "agents" / "broken.key"
    broken.write_text("no key")
    assert wait_until(lambda: "this key is not authorised" in keyed.log.read_text(), 10)
    keyed.process.send_signal(signal.SIGHUP)
    assert wait_until(lambda: keyed.log.read_text().count("this key is not authorised") == 2, 10)
    alice.report()
    assert wait_until(lambda: keyed.step("alice") == 2, 10)
    (tmp_path / "keys" / "agents" / "alice.key").unlink()
    assert wait_until(lambda: alice.is_closed, 10), "a bad file beside it does not keep a key"


def test_a_live_job_belongs_to_the_key_that_reports_it(
    keyed: DaemonProcess,
    keys: Callable[..., dict[str, str]],
    reporter: Callable[[dict[str, str], str], Reporter],
) -> None:
    alice = reporter(keys("authorize", "alice"), "shared")
    alice.report(2)
    assert wait_until(lambda: keyed.step("shared") == 2, 10)
    mallory = reporter(keys("authorize", "mallory"), "shared")
    mallory.report(9)
    assert wait_until(lambda: keyed.get("/api/v1/daemon")["num_refused"].get("identity"), 10)
    alice.report(2)
    assert wait_until(lambda: keyed.step("shared") == 4, 10), "its own reports go on"
