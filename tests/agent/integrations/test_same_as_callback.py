"""`python -m caboose` on a Trainer gives, row by row, what the callback gives: real runs of both, compared."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caboose_wire import Bye, Event
from support.collector import Collector, collector
from support.processes import clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.long]

HUGGING_FACE = """
import sys
import torch, transformers

case, how = sys.argv[1:]

class Texts(torch.utils.data.Dataset):
    ids = torch.randint(1, 50, (22, 6), generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return len(self.ids)
    def __getitem__(self, index):
        labels = self.ids[index].clone()
        if index % 3 == 0:
            labels[: index % 5] = -100
        return {"input_ids": self.ids[index], "labels": labels}

def summed(outputs, labels, num_items_in_batch=None):
    logits = outputs["logits"][:, :-1].reshape(-1, 50)
    loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum")
    return loss * 3 / num_items_in_batch

torch.manual_seed(0)
sizes = dict(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
often = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
special = {
    "max_steps": dict(max_steps=5),
    "label_smoothing": dict(label_smoothing_factor=0.2),
    "bf16": dict(bf16=True),
    "evaluation": often,
    "early_stopping": {**often, "load_best_model_at_end": True, "metric_for_best_model": "loss"},
    "resume": dict(save_strategy="steps", save_steps=2),
    "unclipped": dict(max_grad_norm=0.0),
}.get(case, {})
arguments = dict(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=4, num_train_epochs=2, logging_steps=1,
    eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=0.01,
)
more, callbacks = {}, []
if how == "callback":
    from caboose.huggingface import CabooseCallback
    callbacks.append(CabooseCallback())
if case == "early_stopping":
    callbacks.append(transformers.EarlyStoppingCallback(early_stopping_threshold=100.0))
if case == "loss_func":
    more["compute_loss_func"] = summed
if case == "groups":
    inside = [p for n, p in model.named_parameters() if "wte" not in n]
    groups = [{"params": [model.transformer.wte.weight], "lr": 0.5}, {"params": inside, "lr": 0.01}]
    more["optimizers"] = (torch.optim.SGD(groups, lr=0.1, momentum=0.9), None)

def trainer(**other):
    settings = transformers.TrainingArguments(**{**arguments, **special, **other})
    return transformers.Trainer(
        model, settings, train_dataset=Texts(), eval_dataset=Texts(), callbacks=list(callbacks), **more
    )

first = trainer()
first.train()
if case == "resume":
    trainer(num_train_epochs=3).train(resume_from_checkpoint="out/checkpoint-4")
if case == "predict":
    first.predict(Texts())
    first.evaluate()
"""
LIGHTNING = """
import sys
import torch
import lightning.pytorch as lightning

case, how = sys.argv[1:]

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    def training_step(self, batch, index):
        return self.net(batch[0]).pow(2).mean()
    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch[0]).pow(2).mean())
    def predict_step(self, batch, index):
        return self.net(batch[0])
    def configure_optimizers(self):
        if case != "groups":
            return torch.optim.SGD(self.parameters(), lr=0.01)
        groups = [{"params": self.net[0].parameters(), "lr": 0.1}, {"params": self.net[2].parameters()}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]

def loader(size):
    inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4)

torch.manual_seed(0)
special = {
    "max_steps": dict(max_steps=5),
    "bf16": dict(precision="bf16-mixed"),
    "clipped": dict(gradient_clip_val=0.01),
    "evaluation": dict(val_check_interval=4),
}.get(case, {})
callbacks = []
if how == "callback":
    from caboose.lightning import CabooseCallback
    callbacks.append(CabooseCallback())
if case == "early_stopping":
    callbacks.append(lightning.callbacks.EarlyStopping("val_loss", patience=0, min_delta=100.0))
saving = case in ("resume", "evaluation")
if saving:
    callbacks.append(lightning.callbacks.ModelCheckpoint(dirpath="saved", save_top_k=-1, every_n_train_steps=2))

def trainer(**other):
    return lightning.Trainer(
        **{
            **dict(accelerator="cpu", devices=1, max_epochs=2, accumulate_grad_batches=4, logger=False),
            **dict(enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=saving),
            **special, **other,
        },
        callbacks=list(callbacks),
    )

net, first = Net(), trainer()
first.fit(net, loader(44), loader(8))
if case == "resume":
    trainer(max_epochs=3).fit(net, loader(44), loader(8), ckpt_path="saved/epoch=1-step=4.ckpt")
if case == "predict":
    first.predict(net, loader(8))
    first.validate(net, loader(8))
"""
TIMINGS = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")


def rows(script: str, case: str, how: str, directory: Path) -> dict[str, list[Any]]:
    """One run; what it reported, without what no two runs have in common."""
    directory.mkdir()
    (directory / "train.py").write_text(script)
    command = [sys.executable, *(["-m", "caboose"] if how == "no-code" else []), "train.py", case, how]
    with collector() as listening:
        env = clean_environment(CABOOSE_ENDPOINT=listening.endpoint)
        done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        listening.wait_for(Bye, 2 if case == "resume" else 1)
        return {
            "hello": [
                (h.start_step, h.wrapper, h.blind, h.visible, h.config, _lasting(h.facts)) for h in _firsts(listening)
            ],
            "loss": [r.loss for r in listening.reports],
            "step": [(r.step, r.mode, r.batch and (r.batch.index, r.batch.epoch)) for r in listening.reports],
            "lr": [rate for r in listening.reports for rate in r.lr],
            "norm": [r.clipping and r.clipping.total_norm for r in listening.reports],
            "waits": [math.isnan(r.phases.data) if r.phases else None for r in listening.reports],
            "events": [_event(e, directory) for e in listening.messages if isinstance(e, Event)],
        }


def _firsts(listening: Collector) -> list[Any]:
    """The last Hello of each connection: it may be sent again when more is known."""
    last = {hello.incarnation: hello for hello in listening.hellos}
    return list(last.values())


def _lasting(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if not name.endswith("memory_bytes")}


def _event(event: Event, directory: Path) -> Any:
    fields = {name: value for name, value in event.fields.items() if name not in TIMINGS}
    if "path" in fields:
        fields["path"] = str(fields["path"]).removeprefix(str(directory))
    return event.kind, event.step, fields


def compare(script: str, case: str, directory: Path) -> dict[str, list[Any]]:
    without, by_hand = (rows(script, case, how, directory / how) for how in ("no-code", "callback"))
    assert without == by_hand
    return without


@pytest.mark.parametrize(
    "case",
    [
        "max_steps",
        "label_smoothing",
        "loss_func",
        "bf16",
        "evaluation",
        "early_stopping",
        "groups",
        "resume",
        "unclipped",
        "predict",
    ],
)
def test_hugging_face(case: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = compare(HUGGING_FACE, case, tmp_path)
    assert not any(found["waits"]), "the wait for data is timed in every step"
    num = {"max_steps": 5, "early_stopping": 4, "resume": 11}.get(case, 6)
    assert len(found["loss"]) == num
    assert None not in found["loss"]
    if case == "resume":
        assert [epoch for _, _, (_, epoch) in found["step"]] == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    "case", ["max_steps", "bf16", "clipped", "evaluation", "early_stopping", "groups", "resume", "predict"]
)
def test_lightning(case: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    found = compare(LIGHTNING, case, tmp_path)
    assert not any(found["waits"]), "the wait for data is timed in every step"
    assert None not in found["loss"]
