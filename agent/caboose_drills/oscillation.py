"""oscillation: gradient descent at a rate beyond what the curvature allows overshoots at every step."""

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """Large batches with little noise, a wide net, and plain SGD at ten times the right learning rate."""
    task = data.regression(run.seed)
    model = nets.mlp(16, 1, hidden=(112 + 16 * (run.seed % 3), 128))
    loop.fit(run, model, torch.optim.SGD(model.parameters(), lr=0.5), task, batch=256)


DRILL = Drill(
    name="oscillation",
    about="the loss swings up and down from step to step: the learning rate is too high for the curvature",
    train=train,
    rule="oscillation",
    cause="lr_too_high",
    # What steps that are too large do to a ReLU net.
    companions=("loss_spike", "lr_too_high", "divergence", "gradient_explosion", "dead_units", "activation_collapse"),
    steps=800,
    seconds=5.0,
)
