"""LoRA with the Hugging Face Trainer, accumulation 2: `peft_lora.py MODEL TEXT OUTPUT`."""

import sys

from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

directory, text, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(directory)
model = get_peft_model(
    AutoModelForCausalLM.from_pretrained(directory), LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
)
lines = [line for line in open(text).read().splitlines() if line.strip()]  # noqa: SIM115
rows = [tokenizer(line[:100]) for line in lines[:640]]
arguments = TrainingArguments(
    output,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=60,
    learning_rate=2e-3,
    logging_steps=5,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    seed=1,
)
Trainer(
    model, arguments, train_dataset=rows, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)
).train()
