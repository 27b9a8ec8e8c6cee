"""What agents of earlier versions sent in a real run is still watched, judged and diagnosed by today's daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from support.processes import DaemonProcess, running_daemon, wait_until
from support.record_session import messages, sessions

by_session = pytest.mark.parametrize("session", sessions(), ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as process:
        yield process


def send(endpoint: str, session: Path) -> None:
    """Sends the session, each rank over a connection of its own."""
    context = zmq.Context()
    peers: dict[int, zmq.Socket[bytes]] = {}
    for peer, frames in messages(session):
        if peer not in peers:
            peers[peer] = context.socket(zmq.DEALER)
            peers[peer].connect(endpoint)
        peers[peer].send_multipart(frames)
    for socket in peers.values():
        socket.close(linger=5000)
    context.term()


def test_there_is_a_session_of_an_earlier_version() -> None:
    assert sessions()


@by_session
def test_a_recorded_session_is_judged_as_when_it_was_live(daemon: DaemonProcess, session: Path) -> None:
    send(daemon.endpoint, session)

    assert wait_until(lambda: daemon.get("/api/v1/jobs/train")["state"] == "ended", 30)
    job = daemon.get("/api/v1/jobs/train")
    assert (job["world"], job["num_steps"], job["num_parameters"]) == (2, 40, 16 * 32 + 32 + 32 + 1)
    assert daemon.get("/api/v1/daemon")["num_refused"] == {}
    findings = {found["rule"]: found for found in daemon.get("/api/v1/jobs/train/findings")["findings"]}
    assert findings["non_finite"]["onset_step"] == 17
    assert findings["non_finite"]["first"]["ranks"] == [1]
    (sample,) = [daemon.get("/api/v1/jobs/train/sample")["sample"]]
    assert sample is not None
