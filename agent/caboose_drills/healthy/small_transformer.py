"""small_transformer: a transformer learns a synthetic language, with warm-up, cosine decay and clipping."""

import torch

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun
from caboose_drills.transformer import Transformer


def train(run: DrillRun) -> None:
    task = data.text(run.seed)
    model = Transformer(vocabulary=32, length=24, width=32, heads=2, depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: loop.warm_up_then_cosine(step, run.steps, warm_up=80)
    )
    loop.fit(run, model, optimizer, task, batch=16, scheduler=scheduler, clip=1.0)


DRILL = Drill(
    name="small_transformer",
    about="healthy: a small transformer with warm-up, cosine decay and gradient clipping",
    train=train,
    steps=500,
    seconds=6.0,
)
