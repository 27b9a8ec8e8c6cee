"""config_advice: the whole model is in float16 without a GradScaler, so small gradients become zero."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """`model.half()` and nothing else."""
    task = data.clusters(run.seed, spread=1.5)
    task = replace(task, inputs=task.inputs.half(), held_out=(task.held_out[0].half(), task.held_out[1]))
    model = nets.mlp(32, 10).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loop.fit(run, model, optimizer, task, loss=_loss)


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), targets)


DRILL = Drill(
    name="config_advice",
    about="a model in float16 is trained without a GradScaler",
    train=train,
    rule="config_advice",
    cause="risky_settings",
    steps=300,
    seconds=3.0,
)
