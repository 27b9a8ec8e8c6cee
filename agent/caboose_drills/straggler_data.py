"""straggler_data: one rank reads its shard from slow storage, and its peers wait for it in the all-reduce."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

SLOW_RANK = 0
SECONDS = 0.02
"""What a batch takes to read there."""


class SlowReads:
    """A loader that waits for its disk before every batch."""

    def __init__(self, batches: data.DrillBatches) -> None:
        self.dataset, self.batch_size = batches.dataset, batches.batch_size
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._batches:
            time.sleep(SECONDS)
            yield batch


def train(run: DrillRun) -> None:
    """Only one rank's storage is slow."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    batches = task.batches(run, 32)
    loader = SlowReads(batches) if run.rank == SLOW_RANK else batches
    loop.fit(run, model, torch.optim.Adam(model.parameters(), lr=1e-3), task, loader=loader)


DRILL = Drill(
    name="straggler_data",
    about="two of three ranks wait for the third, which reads its data from slow storage",
    train=train,
    rule="straggler",
    cause="slow_rank",
    origin_ranks=(SLOW_RANK,),
    steps=150,
    ranks=3,
    seconds=9.0,
)
