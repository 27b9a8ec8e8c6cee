"""loss_scale_collapse: half precision cannot represent the model's targets, and every step is skipped."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from caboose_drills import data, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

UNIT = 50_000.0


class Prices(nn.Module):
    """Predicts prices without scaling."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nets.mlp(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """In the precision of the net, which autocast makes float16: its largest number is 65504."""
        prices: Tensor = UNIT * self.net(x)
        return prices


def train(run: DrillRun) -> None:
    """Prices are about 200,000; as the model learns that, more and more of its outputs are infinite."""
    task = data.regression(run.seed)
    model = Prices()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    monitor = run.attach(model, optimizer, scaler=scaler)
    step = 0
    while step < run.steps:
        for inputs, targets in monitor.watch(task.batches(run)):
            step += 1
            with torch.autocast("cpu", dtype=torch.float16):
                outputs = model(inputs)
            loss = F.mse_loss(outputs.float() / UNIT, 4.0 + targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch gives no types
            scaler.step(optimizer)
            scaler.update()
            monitor.step(loss, num_samples=len(inputs))
            run.progress(step)
            if step >= run.steps:
                break


DRILL = Drill(
    name="loss_scale_collapse",
    about="the loss scale sinks to nothing: the model is to put out more than float16 can hold",
    train=train,
    rule="loss_scale_collapse",
    cause="fp16_overflow",
    companions=("non_finite",),
    steps=400,
    seconds=4.0,
)
