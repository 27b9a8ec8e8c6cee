"""TRL's trainers, unchanged under `python -m caboose`: what they train for, and the losses of their log."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caboose_wire import Bye
from support.collector import Collector
from support.processes import clean_environment

pytest.importorskip("trl", reason="its trainers are the subject; it is no development dependency")

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCRIPT = """
import json, sys, zlib
import torch, transformers, trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

kind = sys.argv[1]
torch.manual_seed(0)
words = {word: number for number, word in enumerate(["<pad>", "<eos>", *"abcdefgh"])}
plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
shape = dict(vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
shape |= dict(num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1)
transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained("model")
tokenizer.save_pretrained("model")
model = "model"  # the trainers load a second one as the reference
common = dict(output_dir="out", max_steps=4, logging_steps=1, per_device_train_batch_size=4, save_strategy="no")
common |= dict(use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, learning_rate=1e-2, seed=0)
rows = [" ".join("abcdefgh"[(i + j) % 8] for j in range(6)) for i in range(16)]

def reward(completions, **_):
    return [text.count("a") / (1 + len(text.split())) for text in completions]

if kind == "sft":
    data = Dataset.from_dict({"text": rows})
    trainer = trl.SFTTrainer(model, args=trl.SFTConfig(**common), train_dataset=data, processing_class=tokenizer)
elif kind == "dpo":
    data = Dataset.from_dict({"prompt": rows, "chosen": ["a b"] * 16, "rejected": ["c d"] * 16})
    trainer = trl.DPOTrainer(model, args=trl.DPOConfig(**common), train_dataset=data, processing_class=tokenizer)
else:
    name = {"grpo": "GRPO", "rloo": "RLOO"}[kind]
    args = getattr(trl, f"{name}Config")(**common, num_generations=4, max_completion_length=8)
    data = Dataset.from_dict({"prompt": rows})
    made = getattr(trl, f"{name}Trainer")
    trainer = made(model, reward, args=args, train_dataset=data, processing_class=tokenizer)
trainer.train()
log = [entry for entry in trainer.state.log_history if "loss" in entry]
weights = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters()))
print(json.dumps({"losses": [entry["loss"] for entry in log], "weights": weights}))
"""


def run(tmp_path: Path, kind: str, listening: Collector | None) -> Any:
    (tmp_path / "train.py").write_text(SCRIPT)
    watched = [] if listening is None else ["-m", "caboose"]
    env = {} if listening is None else {"CABOOSE_ENDPOINT": listening.endpoint}
    done = subprocess.run(
        [sys.executable, *watched, "train.py", kind],
        cwd=tmp_path,
        env=clean_environment(**env, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hub")),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("kind", "objective"),
    [("grpo", "reinforcement"), ("rloo", "reinforcement"), ("sft", "supervised"), ("dpo", "supervised")],
)
def test_the_objective_is_the_trainers_and_the_losses_are_those_of_its_log(
    kind: str, objective: str, tmp_path: Path, listening: Collector
) -> None:
    found = run(tmp_path, kind, listening)
    assert found == run(tmp_path, kind, None), "the run is as without Caboose"
    listening.wait_for(Bye)
    assert listening.hellos[0].facts["objective"] == objective
    assert [report.loss for report in listening.reports] == pytest.approx(found["losses"], rel=1e-3, abs=1e-4)
