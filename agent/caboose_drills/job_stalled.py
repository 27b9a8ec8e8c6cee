"""job_stalled: one rank waits for a batch that does not arrive, its peer waits for it, and both processes are alive."""

import queue
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

STUCK_RANK = 1
FAULT_STEP = 100
SECONDS = 150.0
PATIENCE_SECONDS = 20.0


class Prefetched:
    """A loader with a thread that reads ahead; before one batch the thread hangs for a while."""

    def __init__(self, batches: data.DrillBatches, run: DrillRun, *, hangs: bool) -> None:
        self.dataset, self.batch_size = batches.dataset, batches.batch_size
        self._batches = batches
        self._run = run
        self._hangs = hangs
        self._num_read = 0
        self._never = threading.Event()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        ready: queue.Queue[tuple[Tensor, Tensor]] = queue.Queue(maxsize=2)
        threading.Thread(target=self._read, args=(ready,), name="reader", daemon=True).start()
        for _ in range(len(self)):
            yield self._next(ready)

    def _next(self, ready: "queue.Queue[tuple[Tensor, Tensor]]") -> tuple[Tensor, Tensor]:
        while True:
            try:
                return ready.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                self._run.tell(step=FAULT_STEP, of=self._run.steps)  # whoever started the drill knows that it lives

    def _read(self, ready: "queue.Queue[tuple[Tensor, Tensor]]") -> None:
        for batch in self._batches:
            self._num_read += 1
            if self._hangs and self._num_read == FAULT_STEP:
                self._never.wait(SECONDS)  # as a read from a file server that is gone
            ready.put(batch)


def train(run: DrillRun) -> None:
    """One rank's file server does not answer; in the all-reduce all ranks wait for it."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    loader = Prefetched(task.batches(run, 32), run, hangs=run.rank == STUCK_RANK)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, loader=loader, validate_every=0)


DRILL = Drill(
    name="job_stalled",
    about="two ranks live and do not get on: one waits for a batch that does not come",
    train=train,
    rule="job_stalled",
    cause="rank_hung",
    origin_ranks=(STUCK_RANK,),
    fault_step=FAULT_STEP - 2,
    steps=150,
    ranks=2,
    seconds=35.0,
    is_launched_per_seed=True,
    is_side_by_side=True,
)
