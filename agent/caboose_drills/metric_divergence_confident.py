"""metric_divergence_confident: the validation loss rises while its accuracy stays."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Enough samples to learn the classes, and so many epochs that every answer becomes certain."""
    task = data.clusters(run.seed, size=1500 + 100 * (run.seed % 3), spread=1.6)
    model = nets.mlp(32, 10, hidden=(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loop.fit(run, model, optimizer, task, validate_every=50)


DRILL = Drill(
    name="metric_divergence_confident",
    about="validation loss rises while accuracy holds: trained on until every answer is certain",
    train=train,
    rule="metric_divergence",
    cause=("overconfident", "memorising"),  # the second is how it comes about
    companions=("overfitting",),
    steps=1200,
    seconds=4.0,
)
