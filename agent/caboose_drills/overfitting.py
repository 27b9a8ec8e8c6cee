"""overfitting: a net with many thousand parameters memorises a few hundred samples."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """A few hundred samples over hundreds of epochs, without regularisation."""
    task = data.clusters(run.seed, size=240 + 40 * (run.seed % 5), spread=1.8)
    model = nets.mlp(32, 10, hidden=(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loop.fit(run, model, optimizer, task, batch=32, validate_every=25)


DRILL = Drill(
    name="overfitting",
    about="validation rises while the training loss falls: a tiny data set is learned by heart",
    train=train,
    rule="overfitting",
    cause="memorising",
    # Its probabilities become over-confident before its accuracy suffers.
    companions=("metric_divergence", "generalisation_gap"),
    steps=600,
    seconds=3.0,
)
