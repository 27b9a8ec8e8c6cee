"""What a report costs the daemon, beside a bare ROUTER that drops it, and how late verdicts are.

    python bench/ingest.py                       64, 512 and 2,048 ranks (about three minutes)
    python bench/ingest.py --ranks 8192 --step-seconds 4 --steps 20
    python bench/ingest.py --quick               64 and 512 ranks, few steps

Design
------
A real daemon process and swarms of ranks on real sockets (`ingest_swarm`), frames as agents make them: 200 layers whose
norms are divided among the ranks, every n-th step sampled. CPU time is read from the kernel, per thread: ZeroMQ's own
threads are counted apart. Before that, the same reports go to a process that receives and drops them: the floor.
The lag of a step is from the time in its newest report to its verdict, as the daemon measures it.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.processes import DaemonProcess, clean_environment, running_daemon, wait_until

JOB = "swarm"
PER_PROCESS = 1024
LOOP = 2
"""The threads of a daemon in the order of their start: the main thread, the retention, the receiving loop, HTTP's."""
SWARM = Path(__file__).with_name("ingest_swarm.py")
TICK = os.sysconf("SC_CLK_TCK")
HEADINGS = (
    "ranks",
    "us per report",
    "of it the loop",
    "x floor",
    "floor, us",
    "ZeroMQ's threads, us (floor)",
    "busy, one core",
    "lag p50 / max, ms",
    "Hellos: s of CPU / s",
    "KiB per rank",
    "lost, incomplete",
)
FLOOR = """
import sys, zmq
context = zmq.Context()
context.set(zmq.MAX_SOCKETS, 4096)
router = context.socket(zmq.ROUTER)
router.setsockopt(zmq.BACKLOG, 4096)
router.rcvhwm = 0
router.bind("tcp://127.0.0.1:0")
print(router.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
while True:
    router.poll()
    try:
        while True:
            router.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        pass
"""


@dataclass(frozen=True)
class Cpu:
    """CPU seconds of a process so far: its own threads, of them the receiving loop, and those of ZeroMQ."""

    own: float
    io: float
    loop: float = 0.0

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.own - other.own, self.io - other.io, self.loop - other.loop)


def cpu_of(pid: int) -> Cpu:
    """Of the process as the kernel counts it."""
    own, io = [], 0.0
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name)):
        text = (task / "stat").read_text()
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        seconds = (int(fields[11]) + int(fields[12])) / TICK
        if name.startswith("ZMQ"):
            io += seconds
        else:
            own.append(seconds)
    return Cpu(sum(own), io, own[LOOP] if len(own) > LOOP else 0.0)


def memory_of(pid: int) -> int:
    """Resident bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found.group(1)) * 1024 if found else 0


@contextmanager
def swarm(endpoint: str, num_ranks: int, plan: dict[str, Any]) -> Iterator[list["subprocess.Popen[str]"]]:
    """The processes of the ranks, introduced."""
    processes = []
    try:
        for first in range(0, num_ranks, PER_PROCESS):
            count = min(PER_PROCESS, num_ranks - first)
            command = [sys.executable, str(SWARM), endpoint, str(first), str(count), json.dumps(plan)]
            process = subprocess.Popen(  # noqa: S603 - our own script
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment()
            )
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "introduced":
                raise SystemExit("a swarm did not start")
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def play(processes: Sequence["subprocess.Popen[str]"], start: float) -> int:
    """Runs all steps; the number of reports that ranks could not send."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{start}\n")
        process.stdin.flush()
    lost = 0
    for process in processes:
        assert process.stdout is not None
        lost += int(json.loads(process.stdout.readline())["num_dropped"])
    return lost


def floor(num_ranks: int, plan: dict[str, Any]) -> Cpu:
    """What a ROUTER costs that receives the same and drops it."""
    command = [sys.executable, "-c", FLOOR]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own script
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        with swarm(endpoint, num_ranks, plan) as processes:
            time.sleep(1.0)
            before = cpu_of(process.pid)
            play(processes, time.time())
            time.sleep(0.5)
            return cpu_of(process.pid) - before
    finally:
        process.kill()
        process.wait()


def number(text: str, metric: str) -> float:
    """The largest value of a metric in a scrape."""
    return max((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(metric)), default=0.0)


@dataclass
class Watching:
    """Samples the lag while a swarm runs."""

    daemon: DaemonProcess
    lags: list[float]

    def look(self) -> None:
        self.lags.append(number(self.daemon.text("/metrics"), "caboose_loop_lag_seconds"))


def measure(num_ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """One size: the daemon's cost, beside the floor's."""
    plan = {
        "job": JOB,
        "world": num_ranks,
        "layers": options.layers,
        "steps": options.steps,
        "step_seconds": options.step_seconds,
        "spread": min(0.5, options.step_seconds / 2),
        "sample_every": options.sample_every,
    }
    bare = floor(num_ranks, plan)
    num_reports = num_ranks * options.steps
    with tempfile.TemporaryDirectory() as home, running_daemon(Path(home)) as daemon:
        pid = daemon.process.pid
        idle_bytes, before = memory_of(pid), cpu_of(pid)
        began = time.monotonic()
        with swarm(daemon.endpoint, num_ranks, plan) as processes:
            if not wait_until(lambda: _num_ranks(daemon) == num_ranks, 60):
                raise SystemExit(f"{num_ranks} ranks: only {_num_ranks(daemon)} were admitted")
            admitted, storm = time.monotonic() - began, cpu_of(pid) - before
            before, start = cpu_of(pid), time.time()
            lags = _play_and_watch(daemon, processes, start, options)
            wait_until(lambda: daemon.step(JOB) >= options.steps, 30)
            used, step = cpu_of(pid) - before, daemon.step(JOB)
            text = daemon.text("/metrics")
            if step != options.steps:
                raise SystemExit(f"the last step judged is {step} of {options.steps}")
            return {
                "ranks": num_ranks,
                "own": used.own / num_reports * 1e6,
                "loop": used.loop / num_reports * 1e6,
                "io": used.io / num_reports * 1e6,
                "floor": bare.own / num_reports * 1e6,
                "floor_io": bare.io / num_reports * 1e6,
                "busy": used.own / (options.steps * options.step_seconds),
                "lag": lags,
                "incomplete": number(text, "caboose_steps_incomplete_total"),
                "lost": lags and options.lost,
                "storm": storm.own,
                "admitted": admitted,
                "bytes": (memory_of(pid) - idle_bytes) / num_ranks,
            }


def _num_ranks(daemon: DaemonProcess) -> int:
    return int(number(daemon.text("/metrics"), "caboose_peers_connected"))


def _play_and_watch(
    daemon: DaemonProcess, processes: Sequence["subprocess.Popen[str]"], start: float, options: argparse.Namespace
) -> list[float]:
    """Plays, and asks for the lag once after each step."""
    watching, is_over = Watching(daemon, []), threading.Event()

    def watch() -> None:
        step = 1
        while not is_over.is_set():
            due = start + step * options.step_seconds + 0.9 * options.step_seconds
            if is_over.wait(max(0.0, due - time.time())):
                return
            watching.look()
            step += 1

    thread = threading.Thread(target=watch)
    thread.start()
    options.lost = play(processes, start)
    is_over.set()
    thread.join()
    return sorted(watching.lags)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,512,2048", help="sizes of jobs (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--sample-every", type=int, default=20, help="steps between samples (agents: 100)")
    parser.add_argument("--quick", action="store_true", help="64 and 512 ranks, 15 steps")
    options = parser.parse_args(arguments)
    if options.quick:
        options.ranks, options.steps, options.sample_every = "64,512", 15, 10
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"| {' | '.join(HEADINGS)} |\n|{'---:|' * len(HEADINGS)}")
    for num_ranks in map(int, options.ranks.split(",")):
        row = measure(num_ranks, options)
        lag = row["lag"] or [0.0]
        print(
            f"| {num_ranks:,} | {row['own']:.1f} | {row['loop']:.1f} "
            f"| {row['own'] / row['floor']:.2f} | {row['floor']:.1f} "
            f"| {row['io']:.1f} ({row['floor_io']:.1f}) | {100 * row['busy']:.1f} % "
            f"| {1e3 * lag[len(lag) // 2]:.0f} / {1e3 * lag[-1]:.0f} | {row['storm']:.2f} / {row['admitted']:.1f} "
            f"| {row['bytes'] / 1024:.0f} | {row['lost']}, {row['incomplete']:.0f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
