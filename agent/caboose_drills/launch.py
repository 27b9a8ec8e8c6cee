"""Trains the seeds of a drill, one after the other: in this process, or on ranks that torchrun starts.

Design
------
Importing torch takes longer than most drills, so all seeds share one process, or one torchrun with one process group.
Only a drill whose ranks do not survive it, or mostly wait, gets a launch per seed; those that wait run side by side. A
seed that raises is reported and the next one is trained. Across ranks an error ends the launch, because the others
would wait for ever.
"""

import gc
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

STAGGER_SECONDS = 5.0
"""Between launches side by side: starting takes all cores for a while, though what is started mostly waits."""


def launch(drill: Drill, seeds: Sequence[int], prefix: str) -> int:
    """Trains every seed as the job `<prefix>-<seed>`; the exit code."""
    if drill.ranks == 1 and not drill.is_launched_per_seed:
        return here(drill, seeds, prefix)
    batches = [[seed] for seed in seeds] if drill.is_launched_per_seed else [list(seeds)]
    if drill.is_side_by_side:
        with ThreadPoolExecutor(len(batches)) as pool:
            started = []
            for batch in batches:
                started.append(pool.submit(_launched, drill, batch, prefix))
                time.sleep(STAGGER_SECONDS)
            codes = [one.result() for one in started]
    else:
        codes = [_launched(drill, batch, prefix) for batch in batches]
    return 0 if drill.may_fail else next((code for code in codes if code), 0)


def _launched(drill: Drill, seeds: Sequence[int], prefix: str) -> int:
    """Trains these seeds in separate processes; their exit code."""
    command = [sys.executable, "-m"]
    if drill.ranks > 1:
        command += ["torch.distributed.run", "--nproc-per-node", str(drill.ranks), "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", "127.0.0.1:0", "-m"]
    command += ["caboose_drills", "rank", drill.name, "--prefix", prefix]
    command += ["--seeds", ",".join(str(seed) for seed in seeds)]
    return subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode  # noqa: S603


def here(drill: Drill, seeds: Sequence[int], prefix: str) -> int:
    """Trains every seed in this process, which is one of the drill's ranks."""
    torch.set_num_threads(1)
    rank, world, worst = 0, 1, 0
    if drill.ranks > 1:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
    for seed in seeds:
        run = DrillRun(drill=drill.name, job=f"{prefix}-{seed}", seed=seed, steps=drill.steps, rank=rank, world=world)
        torch.manual_seed(seed)
        try:
            with run.closing():
                drill.train(run)
        except Exception as error:
            if world > 1:
                raise
            traceback.print_exc()
            run.tell(error=f"{type(error).__name__}: {error}"[:500])
            worst = 0 if drill.may_fail else 1
        gc.collect()
        if world > 1:
            dist.barrier()
    if world > 1:
        dist.destroy_process_group()
    return worst
