"""replica_desync_skip: one rank skips an update that the others make, by a test on its own numbers."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

ODD_RANK = 2
FAULT_STEP = 110


class SkippingAdam(torch.optim.Adam):
    """Adam that can skip an update on this rank only, as self-written spike guards do."""

    is_skipping = False

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without a closure
        if not self.is_skipping:
            super().step(closure)


def train(run: DrillRun) -> None:
    """The guard of one rank rejects a batch: it tests the rank's own loss, not that of all ranks."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    optimizer = SkippingAdam(model.parameters(), lr=1e-3)

    def guard(step: int) -> None:
        optimizer.is_skipping = run.rank == ODD_RANK and step == FAULT_STEP

    loop.fit(run, model, optimizer, task, batch=32, before_update=guard)


DRILL = Drill(
    name="replica_desync_skip",
    about="the replica of one of three ranks differs from the others: its own guard skipped an update",
    train=train,
    rule="replica_desync",
    cause="uneven_update",
    origin_ranks=(ODD_RANK,),
    fault_step=FAULT_STEP,
    steps=190,
    ranks=3,
    seconds=8.0,
)
