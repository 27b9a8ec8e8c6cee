"""The agent's cost per rank of a DDP job, at several world sizes: real gloo ranks under torchrun, a real daemon.

Design
------
`run` starts this file under torchrun once per world size. Each rank trains the benchmark's transformer under DDP with
Caboose at its defaults (except the governor, which would thin the norms to be measured), and records what the
agent's guard measured on the training thread, summed over the steps of whole sampling periods, and how
many elements of gradients it took norms of. The guard is given the thread's CPU clock: with more ranks than cores, wall
time is mostly waiting. Bytes are those the daemon received between the ranks' Hellos and their last messages, divided
by ranks and steps; the Hello, sent once, is listed separately.

Work that each rank does for itself does not shrink with the world size: its loss and phases on every step, and on
sampled steps its local gradients, activations and the fingerprint.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # its `support` starts daemons and torchrun jobs, and ends them

TIMEOUT_SECONDS = 300


def run(sizes: Sequence[int], steps: int, progress: Callable[[str], None]) -> str:
    """The table over world sizes."""
    from support.processes import clean_environment, end, running_daemon, torchrun

    lines = [
        "## per rank, at several world sizes (transformer, DDP over gloo, defaults)",
        "",
        "| ranks | step, ms (wall) | elements normed per rank and step | agent on the training thread, ms of CPU per "
        "step, median of the plain steps | the same, mean with sampled steps: each rank | bytes per rank and step | "
        "bytes of a Hello |",
        "| ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for world in sizes:
        progress(f"transformer on {world} ranks")
        with tempfile.TemporaryDirectory(prefix="bench-world-") as name:
            out = Path(name)
            with running_daemon(out / "daemon") as daemon, (out / "job.log").open("w") as log:
                command = torchrun(
                    Path(__file__), "--out", str(out), "--url", daemon.url, "--steps", str(steps), ranks=world
                )
                env = clean_environment(CABOOSE_ENDPOINT=daemon.endpoint, CABOOSE_JOB="bench")
                job = subprocess.Popen(command, stdout=log, stderr=log, env=env)  # noqa: S603 - our own command
                try:
                    code = job.wait(TIMEOUT_SECONDS)
                finally:
                    end(job)
                if code:
                    raise RuntimeError(f"the job on {world} ranks failed:\n{(out / 'job.log').read_text()[-2000:]}")
                received = received_bytes(daemon.url)
            lines.append(_row([json.loads((out / f"rank{r}.json").read_text()) for r in range(world)], received, steps))
    return "\n".join(lines)


def _row(ranks: Sequence[dict[str, float]], received: float, steps: int) -> str:
    world = len(ranks)
    step = sum(rank["step_seconds"] for rank in ranks) / world * 1e3
    agent = [rank["agent_seconds"] * 1e3 for rank in ranks]
    hello = ranks[0]["received_before"]
    cells = [
        str(world),
        f"{step:.1f}",
        f"{sum(rank['elements'] for rank in ranks) / world:,.0f}",
        f"{statistics.median(rank['plain_seconds'] for rank in ranks) * 1e3:.2f}",
        ", ".join(f"{value:.2f}" for value in agent),
        f"{(received - hello) / world / (steps + ranks[0]['warm_steps']):.0f}",
        f"{hello / world:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def received_bytes(url: str) -> float:
    """Bytes received by the daemon so far, from its metrics."""
    with urllib.request.urlopen(f"{url.rstrip('/')}/metrics", timeout=10) as response:  # noqa: S310 - our own daemon
        for line in response.read().decode().splitlines():
            if line.startswith("caboose_received_bytes_total"):
                return float(line.rsplit(" ", 1)[1])
    raise RuntimeError("the daemon's metrics have no caboose_received_bytes_total")


def rank_main(out: Path, url: str, steps: int) -> None:
    """One rank: trains, and writes its measurements to a file."""
    import torch
    import torch.distributed as dist
    from models import Calls, build
    from peers import NO_GOVERNOR, SETTLE_SECONDS, OwnSeconds
    from timing import WARM_STEPS
    from torch.nn.parallel import DistributedDataParallel

    import caboose
    import caboose.guard

    caboose.guard.time = SimpleNamespace(perf_counter=time.thread_time)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workload = build("transformer")
    workload.model = DistributedDataParallel(workload.model)
    monitor = caboose.attach(workload.model, workload.optimizer, sampling=caboose.Sampling(overhead_budget=NO_GOVERNOR))
    own = OwnSeconds(monitor)
    time.sleep(2 * SETTLE_SECONDS)
    dist.barrier()
    before = received_bytes(url) if dist.get_rank() == 0 else 0.0
    calls = Calls(after_step=monitor.step)
    loader = iter(monitor.watch(workload.stream()))
    for _ in range(WARM_STEPS):
        workload.step(next(loader), calls)
    dist.barrier()
    sizes = [layer.numel for layer in monitor._observer.table.layers]
    each, num_elements = [], 0
    seconds, began = own(), time.perf_counter()
    for _ in range(steps):
        before_step = own()
        first, last = monitor._observer.part
        num_elements += sum(sizes[first:last])
        workload.step(next(loader), calls)
        each.append(own() - before_step)
    result = {
        "agent_seconds": (own() - seconds) / steps,
        "step_seconds": (time.perf_counter() - began) / steps,
        "plain_seconds": statistics.median(each),
        "elements": num_elements / steps,
        "received_before": before,
        "warm_steps": WARM_STEPS,
    }
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(result))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="One rank of the world benchmark; started by bench/overhead.py --world."
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    rank_main(options.out, options.url, options.steps)
