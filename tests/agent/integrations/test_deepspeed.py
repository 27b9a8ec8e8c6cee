"""DeepSpeed engines on gloo ranks: their own loss, norm, rate and step; what is partitioned is stated, not guessed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from caboose_wire import Bye, Event, Hello
from support.collector import Collector
from support.norms import grad_norm
from support.processes import clean_environment, torchrun

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
    is_attached = "--attach" in arguments
    command = torchrun(Path("train.py"), *arguments) if is_attached else torchrun("caboose", "train.py", *arguments)
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
    assert "gradient_norm" in hello.visible
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


TRAINER = """
import json
import deepspeed, torch, transformers

deepspeed.ops.__compatible_ops__.clear()  # no C++ is compiled for gloo

class Texts(torch.utils.data.Dataset):
    ids = torch.randint(1, 50, (22, 6), generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return len(self.ids)
    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}

torch.manual_seed(0)
sizes = dict(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
settings = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
arguments = transformers.TrainingArguments(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=4, num_train_epochs=2, logging_steps=1,
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=0.01,
    deepspeed={**dict.fromkeys(auto, "auto"), "zero_optimization": {"stage": 2}, **settings},
)
trainer = transformers.Trainer(
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), arguments, train_dataset=Texts()
)
trainer.train()
if trainer.is_world_process_zero():
    json.dump([entry for entry in trainer.state.log_history if "loss" in entry], open("log.json", "w"))
torch.distributed.destroy_process_group()
"""


def test_under_the_hugging_face_trainer_the_numbers_are_those_of_its_log(tmp_path: Path, listening: Collector) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint, DS_ACCELERATOR="cpu")
    command = torchrun("caboose", "train.py")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    listening.wait_for(Bye, 2)
    entries = json.loads((tmp_path / "log.json").read_text())
    assert len(entries) == 4
    for entry in entries:
        reports = [report for report in listening.reports if report.step == entry["step"]]
        assert sum(report.loss or 0.0 for report in reports) / 2 == pytest.approx(entry["loss"], rel=1e-3)
        for report in reports:
            assert report.clipping is not None
            assert report.clipping.total_norm == pytest.approx(entry["grad_norm"], rel=1e-3)
            assert report.lr[0] == pytest.approx(entry["learning_rate"])
