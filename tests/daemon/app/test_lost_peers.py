"""A peer that sends more than is read, and then is gone, does not end the process.

libzmq stops to read a connection whose queue is full. If the peer is gone by then, its next heartbeat, ours or the
peer's, fails an assertion in libzmq 4.3.5, which aborts the process: the daemon, or a rank of a training run.
"""

import subprocess
import sys

import pytest

from support.processes import clean_environment

SOCKETS = {
    "daemon": """
from caboose_daemon.app.report_port import configure
reader = zmq.Context().socket(zmq.ROUTER)
configure(reader)
reader.bind("tcp://127.0.0.1:0")
endpoint = reader.getsockopt_string(zmq.LAST_ENDPOINT)
""",
    "agent": """
from caboose.report.connection import configure
reader = zmq.Context().socket(zmq.DEALER)
configure(reader, "tcp://127.0.0.1:0", None)
reader.bind("tcp://127.0.0.1:0")  # which end listens makes no difference to the assertion
endpoint = reader.getsockopt_string(zmq.LAST_ENDPOINT)
""",
}
PEERS = {
    "it is gone": """
peer = zmq.Context().socket(zmq.DEALER)
peer.setsockopt(zmq.SNDHWM, 0)
peer.connect(endpoint)
for _ in range(5000):
    peer.send(b"x")
time.sleep(0.5)
peer.close(linger=0)
""",
    "its ping is still in the queue": """
host, port = endpoint.removeprefix("tcp://").split(":")
peer = socket.create_connection((host, int(port)))
peer.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(16 + 32))
ready = b"\\x05READY\\x0bSocket-Type\\x00\\x00\\x00\\x06DEALER"
peer.sendall(bytes((4, len(ready))) + ready)
time.sleep(0.3)
ping = b"\\x04PING\\x00\\x00"
for _ in range(300):
    peer.sendall(b"\\x00\\x01x" * 20 + bytes((4, len(ping))) + ping)
time.sleep(0.5)
peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
peer.close()
""",
}
READ = """
time.sleep(3.0)
num = 0
try:
    while True:
        reader.recv_multipart(zmq.NOBLOCK)
        num += 1
        time.sleep(0.0002)
except zmq.Again:
    print(num)
time.sleep(0.5)
import os; os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("reader", SOCKETS)
def test_a_peer_that_is_gone_with_a_full_queue_does_not_abort_the_process(reader: str, peer: str) -> None:
    script = "import socket, struct, time, zmq" + SOCKETS[reader] + PEERS[peer] + READ
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 1000, "what had come was read"
