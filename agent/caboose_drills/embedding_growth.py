"""embedding_growth: the output layer has a learning rate a hundred times too high, and nothing holds its scale."""

import torch

from caboose_drills import data, loop
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun
from caboose_drills.transformer import Transformer, apart


def train(run: DrillRun) -> None:
    """The group of the output layer kept a rate that was meant for SGD."""
    task = data.text(run.seed)
    model = Transformer(vocabulary=32, length=24, width=32, heads=2, depth=2)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    optimizer = torch.optim.AdamW(apart(model, "head", lr=0.2, weight_decay=0.0), lr=2e-3)
    loop.fit(run, model, optimizer, task, batch=16, clip=1.0)


DRILL = Drill(
    name="embedding_growth",
    about="the output layer grows away from the rest of the model: its learning rate is far too high",
    train=train,
    rule="embedding_growth",
    cause=("logits_drift", "lr_too_high"),
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
    origin_layers=("head",),
    steps=1000,
    seconds=10.0,
)
