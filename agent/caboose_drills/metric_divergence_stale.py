"""metric_divergence_stale: validation never changes, because it evaluates a copy that is never updated."""

import copy

import torch

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """A copy of the model is made for evaluation before training, and never updated."""
    task = data.regression(run.seed)
    model = nets.mlp(16, 1, activation=torch.nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    evaluated = copy.deepcopy(model)
    monitor = run.attach(model, optimizer)
    step = 0
    while step < run.steps:
        for inputs, targets in monitor.watch(task.batches(run)):
            step += 1
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
            optimizer.step()
            monitor.step(loss, num_samples=len(inputs))
            if step % 50 == 0:
                loop.validate(monitor, evaluated, task, torch.nn.functional.mse_loss)
            run.progress(step)
            if step >= run.steps:
                break


DRILL = Drill(
    name="metric_divergence_stale",
    about="validation is exactly the same each time: it is made with a copy of the model that is never updated",
    train=train,
    rule="metric_divergence",
    cause="metric_bug",
    steps=600,
    seconds=2.0,
)
