"""Lightning Fabric: what `setup` returns can be attached to as it is, and its own launcher's ranks are all watched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import caboose
from caboose_wire import Bye, Event, StepReport
from support.collector import Collector
from support.norms import grad_norm
from support.processes import clean_environment

fabric_module = pytest.importorskip("lightning.fabric", reason="its wrappers are the subject")

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
import torch
from lightning.fabric import Fabric

if __name__ == "__main__":
    devices = int(os.environ["DEVICES"])
    fabric = Fabric(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto",
        precision=os.environ.get("PRECISION", "32-true"),
    )
    fabric.launch()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    if "--attach" in sys.argv:
        import caboose
        monitor = caboose.attach(model, optimizer)
    data = torch.Generator().manual_seed(fabric.global_rank)
    truth = []
    for step in range(5):
        losses = []
        for micro in range(2):
            inputs, targets = torch.randn(4, 8, generator=data), torch.randint(0, 4, (4,), generator=data)
            with fabric.no_backward_sync(model, enabled=micro == 0):
                loss = torch.nn.functional.cross_entropy(model(inputs).float(), targets)
                losses.append(loss.item())
                fabric.backward(loss / 2)
        norm = fabric.clip_gradients(model, optimizer, max_norm=0.1)
        optimizer.step()
        optimizer.zero_grad()
        truth.append({"loss": sum(losses) / 2, "norm": float(norm)})
        if "--attach" in sys.argv:
            monitor.step(sum(losses) / 2)
    fabric.save("weights.pt", {"model": model})
    fabric.save("whole.pt", {"model": model, "optimizer": optimizer})
    json.dump(truth, open(f"truth.{fabric.global_rank}.json", "w"))
"""


def test_what_setup_returns_is_attached_to_as_it_is(listening: Collector) -> None:
    fabric = fabric_module.Fabric(accelerator="cpu", devices=1)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    model, optimizer = fabric.setup(inner, torch.optim.AdamW(inner.parameters(), lr=0.1))
    norms = []
    with caboose.attach(model, optimizer, endpoint=listening.endpoint, job="train") as monitor:
        for _ in range(3):
            loss = model(torch.randn(2, 4)).pow(2).mean()
            fabric.backward(loss)
            norms.append(float(fabric.clip_gradients(model, optimizer, max_norm=0.01)))
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
    reports = listening.wait_for(StepReport, 3)
    assert [grad_norm(report) for report in reports] == pytest.approx(norms, rel=1e-4)
    assert [report.clipping.max_norm for report in reports if report.clipping] == [0.01] * 3
    hello = listening.hellos[0]
    assert [layer.name for layer in hello.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert (hello.wrapper, hello.groups[0].optimizer) == ("Sequential", "AdamW")


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("is_attached", [False, True])
def test_the_ranks_of_its_own_launcher_are_watched(
    devices: int, is_attached: bool, tmp_path: Path, listening: Collector
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, *(["train.py", "--attach"] if is_attached else ["-m", "caboose", "train.py"])]
    precision = "bf16-mixed" if devices == 1 else "32-true"
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint, DEVICES=str(devices), PRECISION=precision)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye, devices)
    wrapper = "DistributedDataParallel" if devices > 1 else "Sequential"
    assert sorted((hello.rank, hello.world, hello.wrapper) for hello in listening.hellos) == [
        (rank, devices, wrapper) for rank in range(devices)
    ]
    assert len({hello.job for hello in listening.hellos}) == 1
    truths = [json.loads((tmp_path / f"truth.{rank}.json").read_text()) for rank in range(devices)]
    for number in range(5):
        reports = [report for report in listening.reports if report.step == number + 1]
        losses = sorted(truth[number]["loss"] for truth in truths)
        assert sorted(report.loss or 0.0 for report in reports) == pytest.approx(losses, rel=1e-2)
        if number or is_attached:
            norms = {report.clipping.total_norm for report in reports if report.clipping}
            assert list(norms) == pytest.approx([truths[0][number]["norm"]], rel=1e-3)
    if not is_attached:
        saved = [event for event in listening.wait_for(Event) if event.kind == "checkpoint"]
        assert [event.fields for event in saved] == [{"step": 5, "path": str(tmp_path / "whole.pt")}], "not the weights"
