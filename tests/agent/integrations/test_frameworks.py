"""`python -m caboose` on scripts of real frameworks: what is reported is what their callbacks report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from caboose_wire import Bye, Event
from support.collector import Collector
from support.processes import clean_environment

pytestmark = pytest.mark.slow

HUGGING_FACE = """
import json, sys
import torch, transformers

class Texts(torch.utils.data.Dataset):
    ids = torch.randint(0, 50, (20, 6), generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return len(self.ids)
    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}

torch.manual_seed(0)
sizes = dict(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
arguments = transformers.TrainingArguments(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=4, num_train_epochs=2, logging_steps=1,
    eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)
callbacks = []
if "--callback" in sys.argv:
    from caboose.huggingface import CabooseCallback
    callbacks = [CabooseCallback(job="by-hand")]
trainer = transformers.Trainer(model, arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=callbacks)
trainer.train()
json.dump([entry for entry in trainer.state.log_history if "loss" in entry], open(sys.argv[1], "w"))
"""

LIGHTNING = """
import os, sys
import torch
import lightning.pytorch as lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    def training_step(self, batch, index):
        return self.net(batch[0]).pow(2).mean()
    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch[0]).pow(2).mean(), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=4)

if __name__ == "__main__":
    callbacks = []
    if "--callback" in sys.argv:
        from caboose.lightning import CabooseCallback
        callbacks.append(CabooseCallback())
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=os.environ["STRATEGY"], callbacks=callbacks, max_epochs=2,
        accumulate_grad_batches=2, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), loader(), loader())
"""


def run(script: str, directory: Path, *arguments: str, watched: bool = True, **env: str) -> None:
    (directory / "train.py").write_text(script)
    command = [sys.executable, *(["-m", "caboose"] if watched else []), "train.py", *arguments]
    done = subprocess.run(
        command, cwd=directory, env=clean_environment(**env), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_the_loss_of_an_accumulated_step_is_the_trainers_also_in_the_short_last_one(
    tmp_path: Path, listening: Collector
) -> None:
    pytest.importorskip("transformers")
    run(HUGGING_FACE, tmp_path, "bare.json", watched=False)
    run(HUGGING_FACE, tmp_path, "watched.json", CABOOSE_ENDPOINT=listening.endpoint)
    listening.wait_for(Bye)
    bare, logged = (json.loads((tmp_path / name).read_text()) for name in ("bare.json", "watched.json"))
    assert [entry["loss"] for entry in logged] == [entry["loss"] for entry in bare], "nothing was changed"
    assert len(logged) == 6, "two epochs of two whole steps and one of two micro-batches"
    assert [report.step for report in listening.reports] == [1, 2, 3, 4, 5, 6]
    assert [report.loss for report in listening.reports] == pytest.approx([entry["loss"] for entry in logged], rel=1e-3)
    validations = [event for event in listening.wait_for(Event, 2) if event.kind == "validation"]
    assert [event.step for event in validations] == [3, 6]
    (hello,) = listening.hellos
    assert hello.job.startswith("train@")
    assert hello.config["gradient_accumulation_steps"] == 4


@pytest.mark.long
def test_a_callback_that_the_script_gives_is_the_only_one(tmp_path: Path, listening: Collector) -> None:
    pytest.importorskip("transformers")
    run(HUGGING_FACE, tmp_path, "log.json", "--callback", CABOOSE_ENDPOINT=listening.endpoint)
    listening.wait_for(Bye)
    assert {hello.job for hello in listening.hellos} == {"by-hand"}
    assert [report.step for report in listening.reports] == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_notebook"])
@pytest.mark.parametrize("arguments", [(), ("--callback",)])
def test_the_ranks_of_lightnings_own_launcher_are_all_watched(
    strategy: str, arguments: tuple[str, ...], tmp_path: Path, listening: Collector
) -> None:
    pytest.importorskip("lightning")
    env = {"CABOOSE_ENDPOINT": listening.endpoint, "STRATEGY": strategy}
    run(LIGHTNING, tmp_path, *arguments, watched=not arguments, **env)
    listening.wait_for(Bye, 2)
    assert sorted((hello.rank, hello.world, hello.wrapper) for hello in listening.hellos) == [
        (0, 2, "DistributedDataParallel"),
        (1, 2, "DistributedDataParallel"),
    ]
    assert len({hello.proof for hello in listening.hellos}) == 1
    assert all(hello.proof for hello in listening.hellos)
    assert sorted(report.step for report in listening.reports) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert all(report.mode is not None and report.mode.is_training for report in listening.reports)
    validations = [event for event in listening.wait_for(Event, 2) if event.kind == "validation"]
    assert [event.step for event in validations] == [2, 4]
