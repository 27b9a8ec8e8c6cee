"""A long run that is already in a journal, as a daemon would have written it, and its ranks coming back to live."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from caboose_daemon.config import Config
from caboose_daemon.jobs.job import Job
from caboose_daemon.jobs.pipeline import Pipeline
from caboose_daemon.jobs.state import State
from caboose_daemon.steps.columns import StepSummary
from caboose_daemon.steps.named import NamedNumber
from caboose_daemon.store.journal import Journal
from caboose_wire import Phases
from support.ranks import SimulatedRank, a_hello, a_report, simulated_ranks

JOB, STEP_SECONDS, SPIKE = "long-run", 0.4, 20_011
HELLO = {"job": JOB, "launch": "long-run-1"}


def summary(step: int, draw: np.random.Generator, began: float, world: int) -> StepSummary:
    """A step of a run that learns; one of them spikes."""
    loss = 2.0 + 5.0 * math.exp(-step / 4_000) + 0.05 * float(draw.normal()) + (9.0 if step == SPIKE else 0.0)
    return StepSummary(
        attempt=1,
        step=step,
        time=began + step * STEP_SECONDS,
        loss=loss,
        loss_min=loss - 0.2,
        loss_max=loss + 0.2,
        grad_norm=0.6 + 0.1 * abs(float(draw.normal())),
        lr=6e-4 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 60_000))),
        step_seconds=STEP_SECONDS,
        data_seconds=0.006,
        agent_seconds=0.0012,
        num_ranks=world,
        forward_seconds=0.11,
        backward_seconds=0.25,
        optimizer_seconds=0.02,
        num_samples=8 * world,
        named=(NamedNumber("metric", "accuracy", 1.0 - loss / 20.0), NamedNumber("metric", "z_loss", 0.01 * loss)),
    )


def write_long_run(directory: Path, num_steps: int, world: int) -> None:
    """The journal of a daemon that has watched a run for so many steps, in the data directory of `running_daemon`."""
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    now = time.time()
    state = State(rule_configs=Config().rules, started=now)
    journal = Journal(data / "journal.sqlite", state, max_steps=10_000_000, retention_days=365.0)
    pipeline = Pipeline(state, journal)
    began, draw, job = now - num_steps * STEP_SECONDS, np.random.default_rng(7), Job(name=JOB, created=now)
    hellos = [_hello(rank, world) for rank in range(world)]
    pipeline.begin_attempt(job, hellos[0], began)
    for hello in hellos:
        pipeline.admit(job, hello, began)
    for step in range(1, num_steps + 1):
        journal.step_closed(job, summary(step, draw, began, world))
    journal.close(now)


def _hello(rank: int, world: int) -> Any:
    fields = {"rank": rank, "world": world, "incarnation": f"incarnation-{rank}-{JOB}"[:64], **HELLO}
    return a_hello(host=f"node{rank // 8}", **fields)


@contextlib.contextmanager
def going_on(endpoint: str, first: int, world: int) -> Iterator[list[SimulatedRank]]:
    """The run's ranks, live again and taking steps at their pace until the block ends."""
    is_over = threading.Event()

    def train(ranks: list[SimulatedRank]) -> None:
        step = first
        while not is_over.is_set():
            for simulated in ranks:
                phases = Phases(total=STEP_SECONDS, data=0.006, forward=0.11, backward=0.25, optimizer=0.02)
                simulated.send(a_report(step, time=time.time(), phases=phases, num_samples=8))
            step += 1
            is_over.wait(STEP_SECONDS)

    with simulated_ranks(endpoint, world, HELLO, per_host=8) as ranks:
        thread = threading.Thread(target=train, args=(ranks,))
        thread.start()
        try:
            yield ranks
        finally:
            is_over.set()
            thread.join()
