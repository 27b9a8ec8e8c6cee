"""Generates the small datasets of the cases: files of the right format, the same in every run."""

import gzip
import json
import pickle  # noqa: TID251 - the format that nanoGPT reads
import random
import struct
from dataclasses import fields
from pathlib import Path

TEXT = "the a river walks slowly under old bridge while seven grey birds count stones and nobody asks why it rains"
WORDS = TEXT.split()


def words(count: int, seed: int = 0) -> str:
    """Text whose next word depends on the last one, so that there is something to learn."""
    draw = random.Random(seed)
    current, text = 0, []
    for number in range(count):
        text.append(WORDS[current])
        current = (current * 7 + draw.choice((1, 2, 2, 3))) % len(WORDS)
        if number % 12 == 11:
            text.append("\n")
    return " ".join(text)


def text_file(path: Path, count: int = 20_000, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words(count, seed))


def char_bins(directory: Path) -> None:
    """train.bin, val.bin and meta.pkl of characters, as 16-bit numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, seed in (("train", 0), ("val", 1)):
        text = words(20_000, seed)
        (directory / f"{name}.bin").write_bytes(b"".join(struct.pack("<H", ord(letter)) for letter in text))
    meta = {"vocab_size": 128, "itos": {i: chr(i) for i in range(128)}, "stoi": {chr(i): i for i in range(128)}}
    (directory / "meta.pkl").write_bytes(pickle.dumps(meta))


def mnist(directory: Path, train: int = 1280, test: int = 256) -> None:
    """The four gzipped files of MNIST: a bright square whose place is the digit."""
    raw = directory / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for name, count in (("train", train), ("t10k", test)):
        labels = bytes(draw.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            image = bytearray(draw.randrange(40) for _ in range(784))
            top, left = 2 + 12 * (label // 5), 1 + 5 * (label % 5)
            for row in range(top, top + 8):
                for column in range(left, left + 5):
                    image[row * 28 + column] = 180 + draw.randrange(60)
            images += image
        for kind, head, body in (
            ("images-idx3", struct.pack(">IIII", 2051, count, 28, 28), bytes(images)),
            ("labels-idx1", struct.pack(">II", 2049, count), labels),
        ):
            (raw / f"{name}-{kind}-ubyte").write_bytes(head + body)
            with gzip.open(raw / f"{name}-{kind}-ubyte.gz", "wb", compresslevel=1) as packed:
                packed.write(head + body)


def images(directory: Path, count: int = 64, size: int = 64, classes: int = 2) -> None:
    """A folder of images by class: plain colours with noise."""
    from PIL import Image

    draw = random.Random(0)
    for number in range(count):
        kind = number % classes
        folder = directory / f"class{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        base = [40 + 150 * ((kind >> channel) & 1) for channel in range(3)]
        noise = bytes(min(255, base[i % 3] + draw.randrange(60)) for i in range(size * size * 3))
        Image.frombytes("RGB", (size, size), noise).save(folder / f"{number:04}.png")


def json_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def byte_tokenizer(directory: Path, *, chat: bool = False) -> None:
    """A tokenizer of bytes in the format of the tokenizers library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)} | {"<pad>": 256, "<s>": 257, "</s>": 258}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", model_max_length=128
    )
    if chat:
        fast.chat_template = (
            "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}"
        )
    fast.save_pretrained(directory)


def tiny_llama(directory: Path, *, chat: bool = False, classifier: bool = False) -> None:
    """A random model of 2 layers with its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
        num_labels=1,
    )
    model = (LlamaForSequenceClassification if classifier else LlamaForCausalLM)(config)
    model.save_pretrained(directory)
    byte_tokenizer(directory, chat=chat)


def cora(directory: Path) -> None:
    """A graph in the files of the Cora dataset: 2,708 papers of 7 subjects."""
    folder = directory / "cora"
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    count, features, subjects = 2708, 1433, 7
    kinds = [draw.randrange(subjects) for _ in range(count)]
    rows = []
    for number, kind in enumerate(kinds):
        bits = ["0"] * features
        for _ in range(18):
            bits[(kind * 200 + draw.randrange(260)) % features] = "1"
        rows.append("\t".join([str(number), *bits, f"Subject{kind}"]))
    (folder / "cora.content").write_text("\n".join(rows) + "\n")
    edges = ((draw.randrange(count), draw.randrange(count)) for _ in range(30_000))
    kept = [f"{one}\t{other}" for one, other in edges if kinds[one] == kinds[other] or draw.random() < 0.1]
    (folder / "cora.cites").write_text("\n".join(kept[:5429]) + "\n")


def glue(directory: Path) -> None:
    """Pairs of sentences in a dataset directory, and a random BERT, at the names under which a script asks the hub."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    draw = random.Random(0)
    for split, count in (("train", 400), ("validation", 64), ("test", 64)):
        rows: list[dict[str, object]] = []
        for number in range(count):
            first = words(8, number)
            label = draw.randrange(2)
            rows.append(
                {
                    "sentence1": first,
                    "sentence2": first if label else words(8, 9999 - number),
                    "label": label,
                    "idx": number,
                }
            )
        json_lines(directory / "nyu-mll" / "glue" / f"{split}.jsonl", rows)
    files = "".join(f"  - split: {name}\n    path: {name}.jsonl\n" for name in ("train", "validation", "test"))
    described = f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    (directory / "nyu-mll" / "glue" / "README.md").write_text(described)
    config = BertConfig(
        vocab_size=320, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    BertForSequenceClassification(config).save_pretrained(directory / "bert-base-cased")
    byte_tokenizer(directory / "bert-base-cased")


def preferences(directory: Path) -> None:
    """A tiny chat model and datasets for fine-tuning by examples, preferences and rewards."""
    tiny_llama(directory, chat=True)
    for kind in ("sft", "dpo", "kto", "grpo", "reward"):
        for split, count in (("train", 200), ("test", 20)):
            rows: list[dict[str, object]] = []
            for number in range(count):
                prompt, good, bad = words(4, number), words(6, number + 1), words(6, number + 2)[::-1]
                rows.append(
                    {
                        "sft": {"text": f"{prompt} {good}"},
                        "dpo": {"prompt": prompt, "chosen": good, "rejected": bad},
                        "kto": {"prompt": prompt, "completion": good if number % 2 else bad, "label": bool(number % 2)},
                        "grpo": {"prompt": [{"role": "user", "content": prompt}]},
                        "reward": {"chosen": f"{prompt} {good}", "rejected": f"{prompt} {bad}"},
                    }[kind]
                )
            json_lines(directory / kind / f"{split}.jsonl", rows)


def unet(directory: Path) -> None:
    """Images, and the configuration of a small UNet of diffusers."""
    images(directory / "images", 48, 16)
    (directory / "unet").mkdir()
    config = {
        "_class_name": "UNet2DModel",
        "sample_size": 16,
        "in_channels": 3,
        "out_channels": 3,
        "layers_per_block": 1,
        "block_out_channels": [16, 32],
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
        "norm_num_groups": 8,
        "attention_head_dim": 8,
    }
    (directory / "unet" / "config.json").write_text(json.dumps(config))


def litgpt(directory: Path) -> None:
    """Texts, instructions, a byte tokenizer, and a random checkpoint of a two-layer model."""
    import torch
    import yaml
    from litgpt import GPT, Config

    byte_tokenizer(directory)
    for number in range(4):
        text_file(directory / "text" / f"{number}.txt", 4000, number)
    rows = [{"instruction": words(4, n), "input": "", "output": words(6, n + 1)} for n in range(200)]
    (directory / "rows.json").write_text(json.dumps(rows))
    config = Config(name="field", block_size=128, n_layer=2, n_head=2, n_embd=32, padded_vocab_size=320, vocab_size=320)
    given = yaml.dump({field.name: getattr(config, field.name) for field in fields(config) if field.init})
    (directory / "model.yaml").write_text(given)
    checkpoint = directory / "checkpoint"
    checkpoint.mkdir()
    torch.manual_seed(0)
    torch.save(GPT(config).state_dict(), checkpoint / "lit_model.pth")
    (checkpoint / "model_config.yaml").write_text(given)
    byte_tokenizer(checkpoint)


def nanochat(directory: Path) -> None:
    """Shards of documents and a tokenizer as nanochat's own scripts leave them."""
    import pyarrow
    import pyarrow.parquet
    import tiktoken
    import torch

    folder = directory / "base_data_climbmix"
    folder.mkdir()
    for number in range(3):
        texts = [words(60, 100 * number + n) for n in range(200)]
        pyarrow.parquet.write_table(
            pyarrow.table({"text": texts}), folder / f"shard_{number:05}.parquet", row_group_size=50
        )
    specials = (
        "bos",
        *(f"{who}_{end}" for who in ("user", "assistant", "python", "output") for end in ("start", "end")),
    )
    encoding = tiktoken.Encoding(
        name="bytes",
        pat_str=r"[\s\S]",
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={f"<|{name}|>": 256 + number for number, name in enumerate(specials)},
    )
    tokenizer = directory / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    torch.save(torch.tensor([1] * 256 + [0] * len(specials), dtype=torch.int32), tokenizer / "token_bytes.pt")
