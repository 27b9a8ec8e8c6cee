"""eval_mode: an evaluation calls model.eval(), and model.train() is not called after it."""

import torch
from torch import nn

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

EVALUATED_AFTER = 200


def train(run: DrillRun) -> None:
    """The first evaluation leaves batch norms and dropouts in eval mode."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10, norm=nn.BatchNorm1d, dropout=0.1)

    def evaluate(step: int) -> None:
        if step == EVALUATED_AFTER + 1:
            model.eval()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, before_step=evaluate, validate_every=EVALUATED_AFTER)


DRILL = Drill(
    name="eval_mode",
    about="batch norms and dropouts are trained in eval mode: model.train() is missing after the first evaluation",
    train=train,
    rule="eval_mode",
    cause="eval_mode_left_on",
    fault_step=EVALUATED_AFTER + 1,
    steps=500,
    seconds=3.0,
)
