"""DeepSpeed engines on gloo ranks: their own loss, norm, rate and step; what is partitioned is stated, not guessed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caboose_wire import Bye, Event, Hello
from support.collector import Collector
from support.norms import grad_norm
from support.processes import clean_environment

pytest.importorskip("deepspeed", reason="its engine is the subject; it is no development dependency")

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCRIPT = """
import json, sys
import torch, deepspeed
deepspeed.ops.__compatible_ops__.clear()  # no C++ is compiled for gloo

stage, attach = int(sys.argv[1]), "--attach" in sys.argv
deepspeed.init_distributed("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
groups = [{"params": list(net[0].parameters()), "lr": 0.01}, {"params": list(net[2].parameters()), "lr": 0.02}]
config = {
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": stage},
    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 0.5,
}
if "--bf16" in sys.argv:
    config["bf16"] = {"enabled": True}
if "--unclipped" in sys.argv:
    del config["gradient_clipping"]
engine, optimizer, _, _ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(groups), config=config)
if attach:
    import caboose
    monitor = caboose.attach(engine, optimizer)
data = torch.Generator().manual_seed(rank)
truth = []
for step in range(4):
    losses = []
    for _ in range(2):
        inputs, targets = torch.randn(4, 8, generator=data), torch.randint(0, 4, (4,), generator=data)
        loss = torch.nn.functional.cross_entropy(engine(inputs.to(next(net.parameters()).dtype)).float(), targets)
        losses.append(loss.item())
        engine.backward(loss)
        lr = engine.get_lr()
        is_boundary = engine.is_gradient_accumulation_boundary()
        plain = [p.grad for p in net.parameters() if p.grad is not None]
        total = float(torch.nn.utils.get_total_norm(plain)) if plain else None
        engine.step()
        if attach and is_boundary:
            monitor.step(sum(losses) / 2)
    norm = engine.get_global_grad_norm() if stage else total
    truth.append({"loss": sum(losses) / 2, "norm": None if norm is None else float(norm), "lr": lr})
engine.save_checkpoint("saved")
json.dump(truth, open(f"truth.{rank}.json", "w"))
engine.destroy()
torch.distributed.destroy_process_group()
"""
NUM_PARAMETERS = 8 * 16 + 16 + 16 * 4 + 4


def run(listening: Collector, directory: Path, *arguments: str) -> list[list[dict[str, Any]]]:
    """Two ranks; returns what each of them measured."""
    (directory / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [*([] if "--attach" in arguments else ["-m", "caboose"]), "train.py", *arguments]
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint, DS_ACCELERATOR="cpu")
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye, 2)
    return [json.loads((directory / f"truth.{rank}.json").read_text()) for rank in (0, 1)]


def check_hello(hello: Hello, stage: int) -> None:
    assert [layer.name for layer in hello.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [layer.numel for layer in hello.layers] == [128, 16, 64, 4]
    assert hello.facts["num_parameters"] == NUM_PARAMETERS
    assert [(group.optimizer, group.num_parameters) for group in hello.groups] == [("AdamW", 144), ("AdamW", 68)]
    assert f"stage {stage}" in hello.blind["gradients"]
    assert "gradients" not in hello.visible
    assert "weights" not in hello.visible


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("how", [(), ("--attach",), ("--bf16",)])
def test_numbers_are_the_engines(stage: int, how: tuple[str, ...], tmp_path: Path, listening: Collector) -> None:
    truths = run(listening, tmp_path, str(stage), *how)
    assert sorted(hello.rank for hello in listening.hellos) == [0, 1]
    for hello in listening.hellos:
        check_hello(hello, stage)
    assert len(listening.reports) == 8
    for number in range(4):
        reports = [report for report in listening.reports if report.step == number + 1]
        losses = sorted(truth[number]["loss"] for truth in truths)
        assert sorted(report.loss or 0.0 for report in reports) == pytest.approx(losses, rel=1e-4)
        for report in reports:
            assert report.clipping is not None
            assert report.clipping.max_norm == 0.5
            assert report.clipping.total_norm == pytest.approx(truths[0][number]["norm"], rel=1e-4)
            assert report.lr == pytest.approx(truths[0][number]["lr"])
            assert "grad_norm" not in report.arrays
    if "--attach" not in how:
        (saved,) = [event for event in listening.wait_for(Event) if event.kind == "checkpoint"]
        assert saved.fields == {"step": 4, "path": str(tmp_path / "saved" / "global_step4")}


def test_the_norm_is_known_where_nothing_is_clipped(tmp_path: Path, listening: Collector) -> None:
    truths = run(listening, tmp_path, "2", "--unclipped")
    reports = sorted(listening.reports, key=lambda report: report.step)[::2]
    norms = [report.clipping.total_norm for report in reports if report.clipping]
    assert norms == pytest.approx([row["norm"] for row in truths[0]], rel=1e-4)
    assert {report.clipping.max_norm for report in listening.reports if report.clipping} == {None}


def test_without_zero_every_layer_is_seen_before_the_engine_clips(tmp_path: Path, listening: Collector) -> None:
    truths = run(listening, tmp_path, "0", "--attach")
    assert "gradients" in listening.hellos[0].visible
    for number in range(4):
        reports = [report for report in listening.reports if report.step == number + 1]
        assert [grad_norm(report) for report in reports] == pytest.approx([truths[0][number]["norm"]] * 2, rel=1e-4)
        assert [report.clipping.max_norm for report in reports if report.clipping] == [0.5, 0.5]
