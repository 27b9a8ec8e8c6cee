"""One rank of the run under test: trains with Caboose, and writes each step to a file as it happens.

    torchrun --nproc-per-node 2 job.py SETTINGS.json

The settings are written by `stage`. Each life of a rank (torchrun may restart it) writes its own file of JSON lines,
one write per line, so that a SIGKILL loses nothing. The run ends when the file `stop` appears beside them: rank 0 looks
every `STOP_EVERY` steps and tells the others, by a collective of the script's own.

Some of the agent's waiting times are made shorter, so that a snapshot can be used, a short resource is tried again and
a dead socket is replaced within the seconds that a run takes.
"""

import atexit
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from chaos import clock

clock.install()

import torch  # noqa: E402 - the clock comes first
import torch.distributed as dist  # noqa: E402

import caboose  # noqa: E402
from caboose.report import connection, resources, sender  # noqa: E402
from caboose.rollback import brake, enable  # noqa: E402
from caboose_wire import Ack  # noqa: E402
from chaos.training import BATCH, Batches, Training  # noqa: E402
from support.jobs.starved import Starved  # noqa: E402

STOP_EVERY = 5


class Log:
    """The file of this life."""

    def __init__(self, out: Path) -> None:
        name = f"rank{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.jsonl"
        self._file = (out / name).open("wb", buffering=0)

    def __call__(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "at": time.monotonic(), **fields}
        self._file.write(json.dumps(line).encode() + b"\n")


def log_answers(log: Log) -> None:
    """Every answer of this rank to a command also goes to the file."""
    original = brake.Brake.answer

    def answer(self: brake.Brake, ack: Ack) -> None:
        log("answer", command=ack.command, outcome=ack.outcome, detail=ack.detail, step=ack.step)
        original(self, ack)

    brake.Brake.answer = answer  # type: ignore[method-assign]  # to see it, not to change it


class ThreadShortage:
    """No thread can be started while the file `starved` is there, on one rank."""

    def __init__(self, out: Path, is_victim: bool) -> None:
        self._file = out / "starved"
        self._is_victim = is_victim
        self._starved: Starved | None = None
        self.look()

    def look(self) -> None:
        if not self._is_victim or self._file.exists() == (self._starved is not None):
            return
        if self._starved is None:
            self._starved = Starved("threads")
        else:
            self._starved.relieve()
            self._starved = None


def main(settings_file: str) -> None:
    """One rank's whole life."""
    out = Path(settings_file).parent
    settings: dict[str, Any] = json.loads(Path(settings_file).read_text())
    clock.follow(Path(settings["clock"]))
    enable.HISTORY_SECONDS = 0.5
    resources.RETRY_SECONDS = 1.0
    sender.HEARTBEAT_SECONDS = 0.5
    connection.LOST_SECONDS = 2.0
    log = Log(out)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    log("begin", pid=os.getpid())
    log_answers(log)
    rank = dist.get_rank()
    training = Training(settings["sharding"], settings["seed"])
    shortage = ThreadShortage(out, rank == settings["victim"])
    monitor = caboose.attach(
        training.model,
        training.optimizer,
        scheduler=training.schedule,
        sampling=caboose.Sampling(20, overhead_budget=1.0),
        rollback=caboose.Rollback(
            settings["mode"], budget=20, cooldown_steps=5, snapshots=caboose.Snapshots(**settings["snapshots"])
        ),
    )
    batches = Batches(settings["seed"], rank, settings["bad_batch"])
    num_rollbacks = 0
    for step, batch in enumerate(monitor.watch(batches), start=1):
        shortage.look()
        loss = training.update(batch)
        together = time.monotonic()
        log("step", step=step, loss=loss.item().hex())
        monitor.step(loss, num_samples=BATCH)
        training.schedule.step()
        if monitor.num_rollbacks != num_rollbacks:
            num_rollbacks = monitor.num_rollbacks
            log("rollback", step=step)
        if step % STOP_EVERY == 0 and is_stopped(out, step >= settings["max_steps"]):
            break
        time.sleep(max(0.0, together + settings["step_seconds"] - time.monotonic()))
    log("end")
    if settings["closes"]:
        monitor.close()
        log("closed")
    dist.barrier()  # all leave together: gloo may abort in a rank whose peers are gone before it is done with them
    dist.destroy_process_group()
    sys.exit(settings["exit_code"])


def is_stopped(out: Path, is_last: bool) -> bool:
    """Whether the run ends here, on all ranks: rank 0 decides."""
    told = torch.tensor(int(is_last or (out / "stop").exists()))
    dist.broadcast(told, 0)
    return bool(told)


def warm_main(settings_file: str) -> None:
    """A rank that was forked: what an interpreter would do at its end is done here."""
    try:
        main(settings_file)
    finally:
        atexit._run_exitfuncs()


if __name__ == "__main__":
    main(sys.argv[1])
