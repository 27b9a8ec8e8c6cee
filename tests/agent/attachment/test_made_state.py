"""A step that torch takes to make an optimizer's state, for a distributed checkpoint, is no training step."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from caboose_wire import Bye, StepReport
from support.collector import Collector
from support.norms import grad_norm
from support.processes import clean_environment

SCRIPT = """
import json, sys
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

def begin():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)

def train(model, optimizer, steps, monitor=None):
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        seen.append([loss.item(), torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()])
        optimizer.step()
        if monitor is not None:
            monitor.step(loss)
    return seen

torch.manual_seed(1)
model, optimizer = begin()
monitor = None
if "--attach" in sys.argv:
    import caboose
    monitor = caboose.attach(model, optimizer)
state = get_optimizer_state_dict(model, optimizer)
if "--resume" in sys.argv:
    for each in state["state"].values():
        each["step"] = torch.tensor(5.0)
    set_optimizer_state_dict(model, optimizer, state)
print(json.dumps(train(model, optimizer, 4, monitor)))
"""


def reports(directory: Path, listening: Collector, *arguments: str) -> tuple[list[StepReport], list[list[float]]]:
    (directory / "train.py").write_text(SCRIPT)
    watched = [] if "--attach" in arguments else ["-m", "caboose"]
    env = clean_environment(
        CABOOSE_ENDPOINT=listening.endpoint, CABOOSE_JOB="made", CABOOSE_OVERHEAD_BUDGET="1", CABOOSE_SAMPLE_EVERY="2"
    )
    command = [sys.executable, *watched, "train.py", *arguments]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye)
    return list(listening.reports), json.loads(done.stdout)


@pytest.mark.parametrize(("arguments", "start"), [((), 0), (("--resume",), 5)])
def test_without_code_it_is_neither_counted_nor_where_the_run_begins(
    tmp_path: Path, listening: Collector, arguments: tuple[str, ...], start: int
) -> None:
    seen, truth = reports(tmp_path, listening, *arguments)
    assert [report.step for report in seen] == [start + number for number in range(1, 5)]
    assert [report.loss for report in seen] == pytest.approx([loss for loss, _ in truth])
    assert [report.lr for report in seen] == [(0.01,)] * 4
    assert [grad_norm(report) for report in seen][1:] == pytest.approx([norm for _, norm in truth][1:], rel=1e-5)


def test_with_code_the_first_step_has_its_own_norm_and_rate(tmp_path: Path, listening: Collector) -> None:
    seen, truth = reports(tmp_path, listening, "--attach")
    assert [report.step for report in seen] == [1, 2, 3, 4]
    assert [report.lr for report in seen] == [(0.01,)] * 4
    assert [grad_norm(report) for report in seen] == pytest.approx([norm for _, norm in truth], rel=1e-5)
