"""divergence_data: from one step on the labels are noise, as after a broken shard; the loss rises and stays high."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 500


def train(run: DrillRun) -> None:
    """From the fault on, the labels of every batch are in another order than its inputs."""
    draw = torch.Generator().manual_seed(run.seed)

    def spoil(step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if step < FAULT_STEP:
            return inputs, targets
        return inputs, targets[torch.randperm(len(targets), generator=draw)]

    task = data.clusters(run.seed, spread=1.2 + 0.1 * (run.seed % 4))
    model = nets.mlp(32, 10)
    loop.fit(run, model, torch.optim.AdamW(model.parameters(), lr=1e-3), task, spoil=spoil)


DRILL = Drill(
    name="divergence_data",
    about="the loss jumps and stays up: from one step on the labels do not belong to the inputs",
    train=train,
    rule="divergence",
    cause="data_changed",
    companions=("loss_spike", "gradient_explosion", "overfitting", "metric_divergence"),
    fault_step=FAULT_STEP,
    steps=800,
    seconds=4.0,
)
