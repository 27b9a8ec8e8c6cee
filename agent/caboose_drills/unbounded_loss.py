"""unbounded_loss: nothing bounds a critic's loss, and its gradients keep doubling."""

import torch
from torch import Tensor

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def apart(outputs: Tensor, targets: Tensor) -> Tensor:
    """A Wasserstein critic's loss without the bound that the critic needs."""
    scores = outputs.squeeze(-1)
    return scores[targets == 0].mean() - scores[targets == 1].mean()


def train(run: DrillRun) -> None:
    """Nothing bounds the critic, so each layer's growth makes the others grow faster."""
    task = data.clusters(run.seed, classes=2, spread=1.5)
    model = nets.mlp(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005 + 0.001 * (run.seed % 3))
    loop.fit(run, model, optimizer, task, loss=apart, validate_every=0)


DRILL = Drill(
    name="unbounded_loss",
    about="gradients double step after step: a critic's loss has no bound, and nothing clips",
    train=train,
    rule="gradient_explosion",
    cause="exploding_gradients",
    companions=("loss_spike", "divergence", "non_finite", "activation_collapse", "lr_too_high"),
    steps=500,
    seconds=3.0,
)
