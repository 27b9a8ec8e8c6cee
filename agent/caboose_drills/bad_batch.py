"""bad_batch: a file of the dataset is not normalised, and the steps that read it break."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 300
NUM_BAD = 10
"""Batches that come from the bad file."""


def train(run: DrillRun) -> None:
    """For a few steps the loader returns raw values up to 255; the others are scaled."""

    def spoil(number: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        is_raw = FAULT_STEP <= number < FAULT_STEP + NUM_BAD
        return (255.0 * inputs if is_raw else inputs), targets

    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    loader = data.Spoiled(task.batches(run), spoil)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, loader=loader, sample_every=5)


DRILL = Drill(
    name="bad_batch",
    about="the loss jumps with its batches: one file of the data set was not normalised",
    train=train,
    rule="bad_batch",
    cause=("unnormalised_input", "outlier_batch"),
    companions=("loss_spike", "gradient_explosion", "activation_collapse", "divergence"),
    fault_step=FAULT_STEP,
    steps=450,
    seconds=3.0,
)
