"""monitor_blind: the agent turns itself off, because the loop passes it metrics it cannot read at every step."""

import time

import torch
from torch.nn import functional as F

from caboose_drills import data, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

FAULT_STEP = 101
HEARD_SECONDS = 4.0
"""The agent reports that it is off with its next heartbeat."""


def train(run: DrillRun) -> None:
    """The metrics are a tensor, the accuracy per class, where a dictionary of numbers is expected."""
    task = data.clusters(run.seed, spread=1.5)
    model = nets.mlp(32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = run.attach(model, optimizer, num_classes=10)
    step, until = 0, time.monotonic() + 60.0
    while step < run.steps or time.monotonic() < until:
        for inputs, targets in monitor.watch(task.batches(run)):
            step += 1
            if step == FAULT_STEP + 10:
                until = time.monotonic() + HEARD_SECONDS
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
            optimizer.step()
            right = (outputs.argmax(dim=-1) == targets).float()
            by_class = torch.stack([right[targets == number].mean() for number in range(10)])
            metrics = {"accuracy": by_class.nanmean()} if step < FAULT_STEP else by_class
            monitor.step(loss, metrics=metrics)  # type: ignore[arg-type]  # the fault
            run.progress(min(step, run.steps))
            if step >= run.steps and time.monotonic() >= until:
                break


DRILL = Drill(
    name="monitor_blind",
    about="the agent turns itself off: from step 101 on it is handed a tensor as metrics",
    train=train,
    rule="monitor_blind",
    cause="agent_off",
    fault_step=FAULT_STEP,
    steps=400,
    seconds=6.0,
)
