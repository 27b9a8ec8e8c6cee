"""An optimizer that only steps others, as torchtitan's container: those others are what is watched."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import caboose
from caboose_wire import Bye, StepReport
from support.collector import Collector
from support.processes import clean_environment

SCRIPT = """
import torch

class Container(torch.optim.Optimizer):
    def __init__(self, parts):
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=0.1) for part in parts]
        parameters = [p for part in parts for p in part.parameters()]
        torch.optim.Optimizer.__init__(self, parameters, {"lr": 7.0})
    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()
    def zero_grad(self, set_to_none=True):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

def train(model, container, monitor=None):
    schedules = [torch.optim.lr_scheduler.StepLR(each, 1, gamma=0.5) for each in container.optimizers]
    losses = []
    for _ in range(6):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        losses.append(loss.item())
        loss.backward()
        container.step()
        container.zero_grad()
        for schedule in schedules:
            schedule.step()
        if monitor is not None:
            monitor.step(loss)
    return losses

def make():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return model, Container(model)

if __name__ == "__main__":
    print(*train(*make()))
"""
RATES = [(0.1 * 0.5**step,) * 2 for step in range(6)]


def test_the_optimizers_inside_are_attached_to(listening: Collector) -> None:
    script: dict[str, object] = {"__name__": "script"}
    exec(SCRIPT, script)
    model, container = script["make"]()  # type: ignore[operator]
    assert isinstance(container, torch.optim.Optimizer)
    with caboose.attach(model, container, endpoint=listening.endpoint, job="train") as monitor:
        script["train"](model, container, monitor)  # type: ignore[operator]
    reports = listening.wait_for(StepReport, 6)
    assert [report.lr for report in reports] == [pytest.approx(rates) for rates in RATES]


@pytest.mark.slow
@pytest.mark.long
def test_without_code_its_step_is_that_of_the_optimizers_inside(tmp_path: Path, listening: Collector) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "caboose", "train.py"]
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True)
    listening.wait_for(Bye)
    assert [report.step for report in listening.reports] == [1, 2, 3, 4, 5, 6]
    assert [report.loss for report in listening.reports] == pytest.approx(list(map(float, done.stdout.split())))
    assert [report.lr for report in listening.reports] == [pytest.approx(rates) for rates in RATES]
    assert {hello.facts["objective"] for hello in listening.hellos} == {"supervised"}
    assert "other_models" not in listening.hellos[-1].blind
