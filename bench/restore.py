"""Seconds from a rollback's boundary to the state restored and compared on all ranks, for a model of real size.

    python bench/restore.py                     100 million parameters, AdamW in fp32, 2 ranks (about two minutes)
    python bench/restore.py --check             exit code 1 if it takes a second or more

Design
------
Each rank does what `Brake` and `Coordinator` do once all ranks have agreed: the copy back of a snapshot that was
pinned and verified before, the fingerprint of its parameters, and the all-reduce that compares ranks. What comes before
the boundary, from the command to it, is not part of this: see `tests/integration/test_rollback_latency.py`.
"""

import argparse
import os
import statistics
import sys
import time
from datetime import timedelta
from itertools import pairwise

import torch
from torch import distributed as dist
from torch import multiprocessing, nn

from caboose.rollback.agreement import agree
from caboose.rollback.ring import Ring
from caboose.rollback.training_state import TrainingState

GOAL = 1.0
WIDTH = 2048
PORT = "29871"


def main() -> None:
    """Measures, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=100, help="parameters (default: %(default)s million)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--check", action="store_true", help=f"exit code 1 if it takes {GOAL:g} s or more")
    options = parser.parse_args()
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(_rank, (options.ranks, options.millions, options.rounds, results), nprocs=options.ranks)
    rounds = [results.get() for _ in range(options.rounds)]
    print(f"{options.millions} million parameters, AdamW in fp32, {options.ranks} ranks, {len(rounds)} rounds\n")
    print("| | median | longest | processor, median |")
    print("|---|---|---|---|")
    for place, name in enumerate(("copy back", "fingerprint", "all ranks compared", "all")):
        seconds = [wall[place] for wall, _ in rounds]
        own = statistics.median(used[place] for _, used in rounds)
        print(f"| {name} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s | {own:.2f} s |")
    whole = statistics.median(wall[-1] for wall, _ in rounds)
    if options.check and whole >= GOAL:
        sys.exit(1)


def _rank(rank: int, world: int, millions: int, rounds: int, results: "multiprocessing.SimpleQueue") -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(minutes=5))
    depth = max(1, round(millions * 1e6 / WIDTH**2))
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model(torch.randn(1, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ring = Ring(TrainingState(model, [optimizer]), every=1, keep=1, history_seconds=0.0)
    for step in range(1, rounds + 2):  # the first round touches memory for the first time
        ring.take(step, step)
        while ring.why_not(step) or ring.pin(step):
            time.sleep(0.01)
        time.sleep(1.0)  # the pinned snapshot is summed again meanwhile, as it is before a boundary
        dist.barrier()
        times = [_now()]
        ring.restore(step)
        times.append(_now())
        fingerprint = ring.fingerprint()
        times.append(_now())
        problem = agree(step, is_done=True, fingerprint=fingerprint)
        times.append(_now())
        ring.unpin()
        assert not problem, problem
        if rank == 0 and step > 1:
            results.put(tuple(_parts([each[clock] for each in times]) for clock in (0, 1)))
    ring.close()
    dist.destroy_process_group()


def _now() -> tuple[float, float]:
    """Of the wall and of this thread's processor: on a host that others use, the first is longer."""
    return time.perf_counter(), time.thread_time()


def _parts(times: list[float]) -> list[float]:
    return [*(after - before for before, after in pairwise(times)), times[-1] - times[0]]


if __name__ == "__main__":
    main()
