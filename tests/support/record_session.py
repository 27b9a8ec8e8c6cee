"""A session on the wire: what two ranks of a real run sent, kept so that every later daemon still understands it.

    PYTHONPATH=tests python -m support.record_session DIRECTORY FILE

runs the training of `support/jobs/train.py` in DIRECTORY, a checkout of an earlier version with `agent` and `tests`,
and writes what its agents send to FILE. Record one when a version is released, and keep it as long as that version may
run.

The format: for each message the peer in 2 bytes and the size in 4, big-endian, then its frames as in `record_frames`.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import zmq

from support.processes import clean_environment, end, torchrun
from support.record_frames import pack, unpack

SESSIONS = Path(__file__).parents[1] / "golden" / "wire" / "sessions"
ARGUMENTS = ("--steps", "40", "--nan-rank", "1", "--nan-at", "17", "--sample-every", "10")
QUIET_SECONDS = 5.0


def sessions() -> list[Path]:
    return sorted(SESSIONS.glob("*.bin"))


def messages(file: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Each message with the peer that sent it, in the order of their arrival."""
    data = file.read_bytes()
    while data:
        peer, size = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:6], "big")
        yield peer, unpack(data[6 : 6 + size])
        data = data[6 + size :]


def record(version: Path, file: Path) -> int:
    """The number of messages that were recorded."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    out = file.with_suffix(".out")
    out.mkdir(parents=True, exist_ok=True)
    environment = clean_environment(CABOOSE_ENDPOINT=f"tcp://127.0.0.1:{port}", CABOOSE_JOB="train")
    environment["PYTHONPATH"] = f"{version / 'agent'}:{version / 'tests'}"
    script = version / "tests" / "support" / "jobs" / "train.py"
    process = subprocess.Popen(torchrun(script, str(out), *ARGUMENTS), env=environment)
    peers: list[bytes] = []
    recorded: list[bytes] = []
    try:
        while socket.poll(int(1000 * QUIET_SECONDS)) or process.poll() is None:
            if not socket.poll(0):
                continue
            identity, *frames = socket.recv_multipart()
            if identity not in peers:
                peers.append(identity)
            packed = pack(frames)
            recorded.append(peers.index(identity).to_bytes(2, "big") + len(packed).to_bytes(4, "big") + packed)
    finally:
        end(process)
        socket.close(linger=0)
        context.term()
    file.write_bytes(b"".join(recorded))
    return len(recorded)


if __name__ == "__main__":
    print(record(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()), "messages")
