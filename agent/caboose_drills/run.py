"""The argument of a drill's `train`: one seed of one drill on one rank, under its own job name.

Design
------
Drills step faster than real jobs, hundreds of times a second. `progress` holds the training thread back when the
agent's queue fills, so that no report is dropped on a busy machine, and `close` empties the queue before it detaches.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import caboose

PROGRESS_SECONDS = 0.25
MAX_QUEUED = 400
"""Reports that may wait in the agent; it drops the oldest at 1000."""
DRAIN_SECONDS = 20.0


class DrillRun:
    """One training run; `seed` determines all random numbers."""

    def __init__(self, *, drill: str, job: str, seed: int, steps: int, rank: int = 0, world: int = 1) -> None:
        self.drill = drill
        self.job = job
        self.seed = seed
        self.steps = steps
        self.rank = rank
        self.world = world
        self._monitors: list[caboose.Monitor] = []
        self._next_line = 0.0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model under DDP, where there are several ranks."""
        return DistributedDataParallel(model) if self.world > 1 else model

    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        sample_every: int = 20,
        **options: Any,
    ) -> caboose.Monitor:
        """`caboose.attach` under this run's job name, without a limit on its cost.

        Attaching again continues the job as a new attempt, like a restarted run.
        """
        for before in self._monitors:
            _wait_for(before, 0)  # attaching lets it go
        monitor = caboose.attach(
            model, optimizer, job=self.job, sampling=caboose.Sampling(sample_every, overhead_budget=1.0), **options
        )
        self._monitors.append(monitor)
        return monitor

    def progress(self, step: int) -> None:
        """Reports progress to the process that started the drill; call it on every step."""
        if self._monitors:
            _wait_for(self._monitors[-1], MAX_QUEUED)
        now = time.monotonic()
        if self.rank == 0 and (now >= self._next_line or step >= self.steps):
            self._next_line = now + PROGRESS_SECONDS
            self.tell(step=step, of=self.steps)

    def tell(self, **fields: Any) -> None:
        """One line of JSON on standard output."""
        sys.stdout.write(json.dumps({"drill": self.drill, "seed": self.seed, **fields}) + "\n")
        sys.stdout.flush()

    @contextmanager
    def closing(self) -> Iterator["DrillRun"]:
        """Detaches at the end, with the error if there was one."""
        error: BaseException | None = None
        try:
            yield self
        except BaseException as raised:
            error = raised
            raise
        finally:
            for monitor in self._monitors:
                if error is None:
                    _wait_for(monitor, 0)  # with an error, whoever launched this may end it any moment
                monitor.close(error)
            self._monitors.clear()


def _wait_for(monitor: caboose.Monitor, most: int) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while monitor.is_active and monitor.num_queued > most and time.monotonic() < deadline:
        time.sleep(0.01)
