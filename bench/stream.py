"""Bytes that the live stream of a job sends to one page, compared with whole statuses.

    python bench/stream.py                  the table (about a minute)
    python bench/stream.py --ranks 64,512   other fleets

Design
------
A real daemon, simulated ranks on real sockets that report a step at a steady pace, and one reader of the stream, as a
page reads it: uncompressed, as server-sent events are. Its bytes are counted after the first status, which is whole.
The size of the job's whole status is listed as well; without change detection a page would get it once a second.
"""

import argparse
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from caboose_wire import Phases
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import SimulatedRank, a_report, send_steps, simulated_ranks

JOB = "fleet"
PATIENT = "[rules.monitor_blind]\nenabled = false\n\n[rules.rank_silent]\nenabled = false\n"
"""Only sent bytes matter here; one process that simulates thousands of ranks may be late."""


@contextmanager
def training(ranks: list[SimulatedRank], step_seconds: float) -> Iterator[None]:
    """Meanwhile all ranks report a step at this pace."""
    is_over = threading.Event()

    def train() -> None:
        step, draw = 1, np.random.default_rng(3)
        while not is_over.wait(step_seconds):
            step += 1
            for simulated in ranks:  # all ranks and steps differ
                total = step_seconds * float(draw.normal(1.0, 0.01))
                phases = Phases(total=total, data=0.01, forward=0.3 * total, backward=0.6 * total, optimizer=0.01)
                loss = 2.0 + float(draw.normal(0.0, 0.05))
                simulated.send(a_report(step, loss=loss, phases=phases, time=time.time()))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def stream_rate(daemon: DaemonProcess, seconds: float) -> float:
    """Bytes per second, after the first status."""
    with httpx.stream("GET", f"{daemon.url}api/v1/stream?job={JOB}", timeout=30) as response:
        began, num_bytes = 0.0, 0
        for chunk in response.iter_raw():
            if began:
                num_bytes += len(chunk)
            elif b"event: status" in chunk:
                began = time.monotonic()
            if began and time.monotonic() - began > seconds:
                return num_bytes / (time.monotonic() - began)
    raise SystemExit("the daemon ended its stream")


def measure(num_ranks: int, step_seconds: float, seconds: float) -> tuple[int, float]:
    """The size of a whole status, and the bytes streamed per second."""
    with tempfile.TemporaryDirectory() as home:
        config = Path(home) / "caboose.toml"
        config.write_text(PATIENT)
        with (
            running_daemon(Path(home), "--config", str(config)) as daemon,
            simulated_ranks(daemon.endpoint, num_ranks, {"job": JOB}, per_host=8) as ranks,
        ):
            send_steps(ranks, 1, 1, time=time.time())
            if not wait_until(lambda: daemon.step(JOB) == 1, 60):
                raise SystemExit(f"{num_ranks} ranks: their first step was never aligned")
            with training(ranks, step_seconds):
                time.sleep(2 * step_seconds)
                whole = len(
                    httpx.get(f"{daemon.url}api/v1/jobs/{JOB}", headers={"accept-encoding": "identity"}).content
                )
                return whole, stream_rate(daemon, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", default="64,512,4096", help="sizes of fleets (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long each is read (default: %(default)s)")
    asked = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every rank has its sockets
    print("| ranks | step time | whole status | changes |\n|---:|---:|---:|---:|")
    for num_ranks in map(int, asked.ranks.split(",")):
        step_seconds = 1.0 if num_ranks <= 1024 else 4.0  # one process simulates all of them
        whole, rate = measure(num_ranks, step_seconds, asked.seconds)
        print(f"| {num_ranks:,} | {step_seconds:g} s | {whole / 1000:.1f} kB | {rate / 1000:.1f} kB/s |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
