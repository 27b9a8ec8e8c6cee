"""torchtitan's optimizers and clipping. Its Trainer needs an accelerator, so the loop is written out here."""

import json
import subprocess
from pathlib import Path

import pytest

from caboose_wire import Bye
from support.collector import Collector
from support.processes import clean_environment, torchrun

pytest.importorskip("torchtitan", reason="its optimizers are the subject; it is no development dependency")

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCRIPT = """
import json, sys
import torch
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.distributed.utils import clip_grad_norm_

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
mesh = torch.distributed.init_device_mesh("cpu", (2,))
fully_shard(model, mesh=mesh)
groups = [
    ParamGroupConfig(pattern="bias", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.02}),
    ParamGroupConfig(pattern=".*", optimizer_name="Adam", optimizer_kwargs={"lr": 0.01}),
]
config = OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
optimizers = OptimizersContainer(config, model_parts=[model])
schedules = [torch.optim.lr_scheduler.StepLR(each, 1, gamma=0.5) for each in optimizers]
if "--attach" in sys.argv:
    import caboose
    monitor = caboose.attach(model, optimizers)
data = torch.Generator().manual_seed(rank)
truth = []
for step in range(4):
    optimizers.zero_grad()
    inputs, targets = torch.randn(4, 8, generator=data), torch.randint(0, 4, (4,), generator=data)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    norm = clip_grad_norm_(list(model.parameters()), 0.1, foreach=True)
    lr = [group["lr"] for each in optimizers for group in each.param_groups]
    optimizers.step()
    for schedule in schedules:
        schedule.step()
    truth.append({"loss": loss.item(), "norm": float(norm), "lr": lr})
    if "--attach" in sys.argv:
        monitor.step(loss)
json.dump(truth, open(f"truth.{rank}.json", "w"))
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("is_attached", [False, True])
def test_its_container_and_its_clipping_are_seen(is_attached: bool, tmp_path: Path, listening: Collector) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = torchrun(Path("train.py"), "--attach") if is_attached else torchrun("caboose", "train.py")
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye, 2)
    truths = [json.loads((tmp_path / f"truth.{rank}.json").read_text()) for rank in (0, 1)]
    for number in range(4):
        reports = [report for report in listening.reports if report.step == number + 1]
        assert sorted(report.loss or 0.0 for report in reports) == pytest.approx(
            sorted(truth[number]["loss"] for truth in truths), rel=1e-4
        )
        for report in reports:
            assert sorted(report.lr) == pytest.approx(sorted(truths[0][number]["lr"]))
    hello = listening.hellos[-1]
    assert {group.optimizer for group in hello.groups} == {"Adam", "AdamW"}
    assert {layer.placement for layer in hello.layers} == {"sharded"}
    assert "other_models" not in hello.blind
