"""Accelerate: what `prepare` returns can be attached to as it is, and its loop is seen without code."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import caboose
from caboose_wire import Bye, Event, StepReport
from support.collector import Collector
from support.norms import grad_norm
from support.processes import clean_environment

accelerate = pytest.importorskip("accelerate", reason="its wrappers are the subject")

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, mixed_precision=os.environ.get("PRECISION", "no"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(44, 8), torch.randint(0, 4, (44,)))
loader = torch.utils.data.DataLoader(data, batch_size=4 // accelerator.num_processes)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
if "--attach" in sys.argv:
    import caboose
    monitor = caboose.attach(model, optimizer, scheduler=scheduler)
truth, losses = [], []
for epoch in range(2):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
            lr = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            mean = sum(losses) / len(losses)
            truth.append({"loss": mean, "norm": float(norm), "lr": lr})
            if "--attach" in sys.argv:
                monitor.step(mean)
            losses = []
    accelerator.save_state("state")
json.dump(truth, open(f"{sys.argv[1]}.{accelerator.process_index}.json", "w"))
"""
"""Eleven micro-batches an epoch in steps of four: the last step of each epoch has three."""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCH = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no"]
NO_CODE = ["-m", "caboose"]


def truth_of(directory: Path, rank: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((directory / f"truth.{rank}.json").read_text())
    return found


def run(listening: Collector, directory: Path, launcher: Sequence[str], *arguments: str, **env: str) -> None:
    (directory / "train.py").write_text(SCRIPT)
    command = [sys.executable, *launcher, "train.py", "truth", *arguments]
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint, **env)
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """One that keeps no state beyond the test."""
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def test_what_prepare_returns_is_attached_to_as_it_is(accelerator: Any, listening: Collector) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    data = torch.utils.data.TensorDataset(torch.randn(12, 4))
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(data, batch_size=2), scheduler
    )
    norms = []
    with caboose.attach(model, optimizer, scheduler=scheduler, endpoint=listening.endpoint, job="train") as monitor:
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                loss = model(inputs).pow(2).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.01)))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                monitor.step(loss)
    reports = listening.wait_for(StepReport, 3)
    assert [report.step for report in reports] == [1, 2, 3]
    assert [grad_norm(report) for report in reports] == pytest.approx(norms, rel=1e-4)
    assert [report.lr for report in reports] == [(0.1,), (0.05,), (0.025,)]
    assert listening.hellos[0].groups[0].optimizer == "AdamW"


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "arguments", "env"),
    [
        (NO_CODE, [], {}),
        (NO_CODE, [], {"PRECISION": "bf16"}),
        ([], ["--attach"], {}),
        ([*TORCHRUN, *NO_CODE], [], {}),
        ([*TORCHRUN], ["--attach"], {}),
        ([*LAUNCH, *NO_CODE], [], {}),
    ],
)
def test_loss_norm_and_rate_are_those_of_the_loop(
    launcher: list[str], arguments: list[str], env: dict[str, str], tmp_path: Path, listening: Collector
) -> None:
    run(listening, tmp_path, launcher, *arguments, **env)
    world = 2 if TORCHRUN[1] in launcher else 1
    listening.wait_for(Bye, world)
    assert sorted((hello.rank, hello.world) for hello in listening.hellos) == [(rank, world) for rank in range(world)]
    truths = [truth_of(tmp_path, rank) for rank in range(world)]
    for number, rows in enumerate(zip(*truths, strict=True)):
        reports = [report for report in listening.reports if report.step == number + 1]
        assert sorted(report.loss or 0.0 for report in reports) == pytest.approx(
            sorted(row["loss"] for row in rows), rel=1e-4
        )
        for report in reports:
            assert report.lr == pytest.approx((rows[0]["lr"],))
            if number or "--attach" in arguments:  # at its first step, no code attaches after the clipping
                assert report.clipping is not None
                assert report.clipping.total_norm == pytest.approx(rows[0]["norm"], rel=1e-3)
    assert len(listening.reports) == 6 * world


@pytest.mark.long
def test_a_saved_state_is_a_checkpoint(tmp_path: Path, listening: Collector) -> None:
    run(listening, tmp_path, NO_CODE)
    saved = [event for event in listening.wait_for(Event, 2) if event.kind == "checkpoint"]
    assert [event.fields for event in saved] == [
        {"step": 3, "path": str(tmp_path / "state")},
        {"step": 6, "path": str(tmp_path / "state")},
    ]
