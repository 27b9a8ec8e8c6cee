"""What a job that floods the daemon costs its neighbours, and what jobs leave in memory when they are over.

    python bench/neighbours.py                   500 jobs of 8 ranks (about four minutes)
    python bench/neighbours.py --quick           64 jobs
    python bench/neighbours.py --only virtual    the lag alone, in virtual time: on a machine with other work

Design
------
A real daemon process and real sockets (`ingest_swarm`). Some of the jobs are listened to over the live stream: the lag
of a step is from the time in its newest report to the arrival of the step, so it has the receiving, the judging, the
journal and the HTTP answer in it. First the jobs run alone, then beside one that tries to send 2,000 steps a second,
more than the daemon can judge. Then they end, and as many others run and end, which must find the memory of the first.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from ingest import cpu_of, memory_of, number, play, swarm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from neighbours_virtual import FLOOD_SECONDS, measure

from support.processes import DaemonProcess, running_daemon, wait_until

RANKS = 8
LISTENED = 16
HEAD = "| | steps | lag p50 / p95 / max, ms | daemon busy, one core |\n|---|---:|---:|---:|"


class Listening:
    """Reads the steps of some jobs as they are judged."""

    def __init__(self, daemon: DaemonProcess, jobs: Sequence[str]) -> None:
        self.lags: list[tuple[float, float]] = []
        """When a step arrived, and its lag."""
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(daemon, job)) for job in jobs]
        for thread in self._threads:
            thread.start()

    def _read(self, daemon: DaemonProcess, job: str) -> None:
        place = f"{daemon.url}api/v1/stream?job={job}&kinds=step"
        with httpx.stream("GET", place, timeout=30) as response:
            is_step = False
            for line in response.iter_lines():  # a status comes every second
                now = time.time()
                if line.startswith("data: ") and is_step:
                    self.lags.append((now, now - float(json.loads(line[6:])["time"])))
                is_step = line == "event: step"
                if self._ending.is_set():
                    return

    def between(self, first: float, last: float) -> list[float]:
        """The lags of the steps that arrived then, in order of size."""
        return sorted(lag for at, lag in self.lags if first <= at < last)

    def close(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def listening(daemon: DaemonProcess, jobs: Sequence[str]) -> Iterator[Listening]:
    opened = Listening(daemon, jobs)
    try:
        yield opened
    finally:
        opened.close()


def plan_of(job: str, options: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    plan = {
        "job": job,
        "jobs": True,
        "ends": True,
        "world": RANKS,
        "layers": options.layers,
        "steps": options.steps,
        "step_seconds": options.step_seconds,
        "spread": 0.9 * options.step_seconds,
        "sample_every": 100,
    }
    return {**plan, **changes}


def num_steps(daemon: DaemonProcess) -> int:
    """Steps of all jobs that were judged."""
    return sum(int(row["step"]) for row in daemon.get("/api/v1/jobs")["jobs"])


def run_jobs(daemon: DaemonProcess, name: str, options: argparse.Namespace) -> None:
    """All jobs of one name, alone, to their end."""
    with swarm(daemon.endpoint, options.jobs * RANKS, plan_of(name, options)) as processes:
        wait_admitted(daemon, options.jobs * RANKS)
        play(processes, time.time())
        wait_until(lambda: num_live(daemon) == 0, 60, every=0.5)


def num_live(daemon: DaemonProcess) -> int:
    return sum(row["state"] == "running" for row in daemon.get("/api/v1/jobs")["jobs"])


def wait_admitted(daemon: DaemonProcess, num_ranks: int) -> None:
    if not wait_until(lambda: number(daemon.text("/metrics"), "caboose_peers_connected") >= num_ranks, 60, every=0.2):
        raise SystemExit(f"{num_ranks} ranks were not admitted")


def with_flood(daemon: DaemonProcess, options: argparse.Namespace) -> None:
    """The jobs for half of their steps alone, and for the other half beside one that floods."""
    names = [f"job-{place * options.jobs // LISTENED}" for place in range(LISTENED)]
    half = options.steps // 2 * options.step_seconds
    flood = plan_of(
        "flood", options, steps=int(half / FLOOD_SECONDS), step_seconds=FLOOD_SECONDS, spread=0.0, ends=False
    )
    with swarm(daemon.endpoint, options.jobs * RANKS, plan_of("job", options)) as processes:
        wait_admitted(daemon, options.jobs * RANKS)
        with listening(daemon, names) as heard, swarm(daemon.endpoint, RANKS, flood) as flooding:
            os.setpriority(os.PRIO_PROCESS, flooding[0].pid, 19)  # on hosts of its own it takes nothing from the daemon
            start = time.time()
            middle = start + options.step_seconds + half
            player = threading.Thread(target=play, args=(processes, start))
            player.start()
            before = cpu_of(daemon.process.pid)
            time.sleep(middle - time.time())
            alone, flooded_from = cpu_of(daemon.process.pid) - before, time.time()
            flooder = threading.Thread(target=play, args=(flooding, middle))
            flooder.start()
            player.join()
            last = time.time()
            beside = cpu_of(daemon.process.pid) - before
            throttled = number(daemon.text("/metrics"), 'caboose_job_throttled_messages_total{training_job="flood-0"}')
            others = throttled_others(daemon)
            flooder.join()
            wait_until(lambda: len(heard.between(start, time.time())) >= LISTENED * options.steps, 20, every=0.2)
            show("alone", heard.between(start + options.step_seconds, flooded_from), alone.own / (flooded_from - start))
            busy = (beside.own - alone.own) / (last - flooded_from)
            show("beside a flood", heard.between(flooded_from + 2.0, last), busy)
            print(f"\nthrottled messages: {throttled:.0f} of the flood, {others:.0f} of the others", flush=True)


def throttled_others(daemon: DaemonProcess) -> float:
    lines = [line for line in daemon.text("/metrics").splitlines() if line.startswith("caboose_job_throttled_messages")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "flood" not in line)


def show(name: str, lags: Sequence[float], busy: float) -> None:
    most = lags[int(0.95 * len(lags))]
    shown = " / ".join(f"{1e3 * lag:.0f}" for lag in (statistics.median(lags), most, lags[-1]))
    print(f"| {name} | {len(lags)} | {shown} | {100 * busy:.0f} % |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--step-seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=("lag", "virtual"), help="one part")
    parser.add_argument("--quick", action="store_true", help="64 jobs, 8 steps of 2 s")
    options = parser.parse_args(arguments)
    if options.quick:
        options.jobs, options.steps, options.step_seconds = 64, 8, 2.0
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.only == "virtual":
        print(f"{options.jobs} jobs of {RANKS} ranks, a step every {options.step_seconds:g} s, virtual time\n{HEAD}")
        for name, (lags, busy) in measure(
            options.jobs, options.step_seconds, options.steps // 2, options.layers
        ).items():
            show(name, lags, busy)
        return 0
    with tempfile.TemporaryDirectory() as home, running_daemon(Path(home)) as daemon:
        sizes = {"idle": memory_of(daemon.process.pid)}
        print(f"{options.jobs} jobs of {RANKS} ranks, a step every {options.step_seconds:g} s\n")
        print(HEAD, flush=True)
        with_flood(daemon, options)
        if options.only:
            return 0
        sizes["with all jobs"] = memory_of(daemon.process.pid)
        wait_until(lambda: num_live(daemon) <= 1, 60, every=0.5)
        time.sleep(5.0)
        sizes["after their end"] = memory_of(daemon.process.pid)
        for place in range(2):
            run_jobs(daemon, f"further-{place}", options)
            sizes[f"after {'as many more' if not place else 'as many again'}"] = memory_of(daemon.process.pid)
        known = len(daemon.get("/api/v1/jobs")["jobs"])
    print("\n| memory | MiB |\n|---|---:|")
    for name, size in sizes.items():
        print(f"| {name} | {size / 2**20:.0f} |")
    print(f"\njobs in memory: {known}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
