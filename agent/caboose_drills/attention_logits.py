"""attention_logits: the learning rate of queries and keys is far too high, and no norm bounds them."""

import torch

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun
from caboose_drills.transformer import Transformer, apart


def train(run: DrillRun) -> None:
    """A parameter group got its rate from another model's settings."""
    task = data.text(run.seed)
    model = Transformer(vocabulary=32, length=24, width=64, heads=2, depth=2)
    optimizer = torch.optim.AdamW(apart(model, "qkv", lr=0.06), lr=1e-3)
    loop.fit(run, model, optimizer, task, batch=16, clip=1.0)


DRILL = Drill(
    name="attention_logits",
    about="attention logits grow by orders of magnitude: the learning rate of queries and keys is far too high",
    train=train,
    rule="attention_logits",
    cause=("attention_unbounded", "lr_too_high"),
    companions=(
        "config_advice",
        "lr_too_high",
        "loss_spike",
        "oscillation",
        "plateau",
        "not_learning",
        "clipping",
        "divergence",
    ),
    origin_layers=("blocks.0", "blocks.1"),
    steps=700,
    seconds=8.0,
)
