"""metric_divergence: accuracy is at chance while the loss is good, because it is computed on the wrong labels."""

import torch
from torch.nn import functional as F

import caboose
from caboose_drills import data, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


def train(run: DrillRun) -> None:
    """The metric compares predictions with labels in another order than the samples."""
    task = data.clusters(run.seed)
    model = nets.mlp(32, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    monitor = run.attach(model, optimizer, num_classes=10)
    step = 0
    while step < run.steps:
        for inputs, targets in monitor.watch(task.batches(run)):
            step += 1
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
            optimizer.step()
            monitor.step(loss, num_samples=len(inputs))
            if step % 50 == 0:
                _validate(monitor, model, task)
            run.progress(step)
            if step >= run.steps:
                break


@torch.no_grad()
def _validate(monitor: caboose.Monitor, model: torch.nn.Module, task: data.Task) -> None:
    inputs, targets = task.held_out
    outputs = model.eval()(inputs)
    by_name = targets[torch.argsort(inputs[:, 0])]  # the labels come from a file that is sorted in another way
    accuracy = float((outputs.argmax(dim=-1) == by_name).float().mean())
    monitor.validation(float(F.cross_entropy(outputs, targets)), accuracy=accuracy)
    model.train()


DRILL = Drill(
    name="metric_divergence",
    about="accuracy stays at chance while the loss is good: the metric reads the labels in another order",
    train=train,
    rule="metric_divergence",
    cause="metric_bug",
    steps=800,
    seconds=3.0,
)
