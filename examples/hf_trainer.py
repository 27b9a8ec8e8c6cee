"""The Hugging Face Trainer: one callback.

    pip install 'transformers[torch]'
    caboose daemon &
    python examples/hf_trainer.py

Under torchrun it is the same, on as many ranks as you like.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from caboose.huggingface import CabooseCallback


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards: easy to learn."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (index + torch.arange(16)) % 50
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    """Trains a tiny GPT-2 with random weights: nothing is downloaded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rollback", choices=("off", "advise", "auto"), default="advise")
    options = parser.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            max_steps=options.steps,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        )
        trainer = Trainer(
            GPT2LMHeadModel(config),
            arguments,
            train_dataset=Counting(),
            callbacks=[CabooseCallback(rollback=options.rollback)],  # <- all there is to add
        )
        trainer.train()


if __name__ == "__main__":
    main()
