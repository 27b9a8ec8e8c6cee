"""`python -m caboose_drills.randomised FILE PREFIX` trains the draws of a JSON file, one after the other.

One process, or one torchrun, trains many: importing torch and the frameworks takes longer than most runs. Each line of
output is JSON: where a run is, and in the end what it did.
"""

import gc
import json
import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from caboose_drills.randomised import faults, plan
from caboose_drills.randomised.batches import Record
from caboose_drills.randomised.draw import Draw
from caboose_drills.run import DrillRun


def main(file: str, prefix: str) -> int:
    """The exit code: 0. An error of a rank among several ends its process."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rank, draws = 0, [Draw(**fields) for fields in json.loads(Path(file).read_text(encoding="utf-8"))]
    if draws[0].world > 1:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    for draw in draws:
        try:
            done = one(draw, f"{prefix}-{draw.id}", rank)
        except Exception as error:
            traceback.print_exc()
            report(id=draw.id, error=f"{type(error).__name__}: {error}"[:400])
            if draw.world > 1:  # its peers would wait for it
                raise
        else:
            if rank == 0:
                report(id=draw.id, done=done)
        gc.collect()
        if draw.world > 1:
            dist.barrier()
    if draws[0].world > 1:
        dist.destroy_process_group()
    return 0


def one(draw: Draw, job: str, rank: int) -> dict[str, Any]:
    """Trains one draw on this rank."""
    began = time.monotonic()
    made = plan.of(draw, rank)
    faults.apply(made)
    run = DrillRun(drill=draw.id, job=job, seed=draw.seed, steps=made.steps, rank=rank, world=draw.world)
    torch.manual_seed(draw.seed)
    with run.closing():
        record = _trained(run, made)
    return {**record.summary(), "seconds": round(time.monotonic() - began, 2)}


def _trained(run: DrillRun, made: plan.Plan) -> Record:
    if made.draw.family == "gan":
        from caboose_drills.randomised import adversarial

        return adversarial.train(run, made)
    if made.draw.loop in ("trainer", "lightning"):
        from caboose_drills.randomised import trainers

        train = trainers.hugging_face if made.draw.loop == "trainer" else trainers.lightning
        return train(run, made)
    from caboose_drills.randomised import train as loops

    return loops.train(run, made)


def report(**fields: Any) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
