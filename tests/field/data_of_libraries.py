"""Generates what the libraries' own formats need: engine configurations, boxes, masks, a diffusion pipeline."""

import json
import os
import pickle  # noqa: TID251 - the format of CIFAR-10
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

import data


def deepspeed(directory: Path, stage: int) -> None:
    """An engine's configuration of one ZeRO stage."""
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
    }
    (directory / "config.json").write_text(json.dumps(config))


def boxes(directory: Path) -> None:
    """Images with one bright box each, in the layout of YOLO."""
    from PIL import Image

    draw = random.Random(0)
    for split, count in (("train", 64), ("val", 16)):
        (directory / "images" / split).mkdir(parents=True)
        (directory / "labels" / split).mkdir(parents=True)
        for number in range(count):
            kind, size = number % 2, draw.randrange(16, 32)
            image = Image.new("RGB", (64, 64), (draw.randrange(60),) * 3)
            left, top = draw.randrange(64 - size), draw.randrange(64 - size)
            image.paste((220, 40, 40) if kind else (40, 40, 220), (left, top, left + size, top + size))
            image.save(directory / "images" / split / f"{number}.png")
            middle = [(left + size / 2) / 64, (top + size / 2) / 64, size / 64, size / 64]
            line = " ".join(f"{value:.4f}" for value in middle)
            (directory / "labels" / split / f"{number}.txt").write_text(f"{kind} {line}\n")
    layout = f"path: {directory}\ntrain: images/train\nval: images/val\nnames: {{0: blue, 1: red}}\n"
    (directory / "boxes.yaml").write_text(layout)


def segmentation(code: Path) -> None:
    """Images with a bright box, and the box as mask."""
    from PIL import Image

    draw = random.Random(0)
    for folder in ("imgs", "masks"):
        (code / "data" / folder).mkdir(parents=True, exist_ok=True)
    for number in range(60):
        left, top = draw.randrange(16), draw.randrange(16)
        image = Image.new("RGB", (32, 32), (draw.randrange(60), 30, 30))
        image.paste((220, 200, 40), (left, top, left + 16, top + 16))
        image.save(code / "data" / "imgs" / f"{number:03}.png")
        mask = Image.new("L", (32, 32), 0)
        mask.paste(1, (left, top, left + 16, top + 16))
        mask.save(code / "data" / "masks" / f"{number:03}.png")


def accuracy(code: Path, name: str = "accuracy") -> None:
    """The metric that scripts ask a hub for under this name, as a module beside the script."""
    (code / name).mkdir()
    (code / name / f"{name}.py").write_text(
        "import datasets\nimport evaluate\n\n\nclass Accuracy(evaluate.Metric):\n    def _info(self):\n"
        "        features = datasets.Features({k: datasets.Value('int32') for k in ('predictions', 'references')})\n"
        "        return evaluate.MetricInfo(description='', citation='', features=features)\n\n"
        "    def _compute(self, predictions, references):\n"
        "        same = sum(int(a == b) for a, b in zip(predictions, references))\n"
        "        return {'accuracy': same / max(1, len(references))}\n"
    )


def stable_diffusion(directory: Path) -> None:
    """Captioned images, and the five parts of a random text-to-image pipeline."""
    import torch
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    data.images(directory / "images", 48, 32)
    rows = [
        {"file_name": str(path.relative_to(directory / "images")), "text": data.words(4, number)}
        for number, path in enumerate(sorted((directory / "images").rglob("*.png")))
    ]
    data.json_lines(directory / "images" / "metadata.jsonl", rows)
    torch.manual_seed(0)
    model = directory / "model"
    UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
        attention_head_dim=4,
    ).save_pretrained(model / "unet")
    AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    ).save_pretrained(model / "vae")
    text = CLIPTextConfig(
        vocab_size=600,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
        bos_token_id=512,
        eos_token_id=513,
        pad_token_id=513,
    )
    CLIPTextModel(text).save_pretrained(model / "text_encoder")
    DDPMScheduler(num_train_timesteps=50).save_pretrained(model / "scheduler")
    _clip_tokenizer(model / "tokenizer")
    parts = {
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "DDPMScheduler"],
        **{name: [None, None] for name in ("safety_checker", "feature_extractor", "image_encoder")},
    }
    index = {"_class_name": "StableDiffusionPipeline", "requires_safety_checker": False, **parts}
    (model / "model_index.json").write_text(json.dumps(index))


def _clip_tokenizer(directory: Path) -> None:
    """The bytes as vocabulary, without merges."""
    from tokenizers import pre_tokenizers

    directory.mkdir(parents=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (directory / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def titan(code: Path) -> None:
    """The documents that the debug configurations read."""
    rows: list[dict[str, object]] = [{"text": data.words(80, number)} for number in range(400)]
    data.json_lines(code / "tests" / "assets" / "c4_test" / "data.json", rows)


def megatron(code: Path) -> None:
    """Its helpers, compiled for this interpreter: its own Makefile asks for the one that is named python3."""
    folder = code / "megatron" / "core" / "datasets"
    command = ["make", "-s", "-C", str(folder), f"LIBEXT={sysconfig.get_config_var('EXT_SUFFIX')}"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})


def cifar(directory: Path) -> None:
    """The batches of CIFAR-10: colours that depend on the class, with noise; not with the published checksums."""
    import numpy

    folder = directory / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    draw = numpy.random.default_rng(0)
    for name, count in (*((f"data_batch_{number}", 200) for number in range(1, 6)), ("test_batch", 100)):
        labels = draw.integers(0, 10, count)
        images = draw.integers(0, 60, (count, 3, 1024)) + 18 * (
            (labels[:, None, None] + numpy.array([0, 3, 7])[:, None]) % 10
        )
        rows = {"data": images.reshape(count, 3072).astype(numpy.uint8), "labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(rows))
    meta = {"label_names": [str(number) for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta))


def olmo(directory: Path) -> None:
    """Numbers of tokens, as the example's files have them."""
    import numpy

    draw = numpy.random.default_rng(0)
    for name, count in (("c4-train.00000-00099.npy", 200_000), ("c4-validation.00000-00008.npy", 10_000)):
        tokens = (numpy.cumsum(draw.integers(1, 4, count)) * 7 % 500).astype(numpy.uint16)
        tokens[::200] = 50256
        tokens.tofile(directory / name)


def torchtune(directory: Path, *, is_in_backward: bool) -> None:
    """A recipe's configuration, a tokenizer of SentencePiece, and a random checkpoint of a two-layer model."""
    import sentencepiece
    import torch
    import yaml
    from torchtune.models.llama2 import llama2

    data.text_file(directory / "text.txt", 6000)
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "text.txt"),
        model_prefix=str(directory / "tokenizer"),
        vocab_size=120,
        hard_vocab_limit=False,
        pad_id=3,
        minloglevel=2,
    )
    sizes = {"vocab_size": 128, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 32, "max_seq_len": 64}
    torch.manual_seed(0)
    (directory / "checkpoint").mkdir()
    torch.save(llama2(**sizes).state_dict(), directory / "checkpoint" / "model.pt")
    config = {
        "output_dir": str(directory / "out"),
        "tokenizer": {
            "_component_": "torchtune.models.llama2.llama2_tokenizer",
            "path": str(directory / "tokenizer.model"),
            "max_seq_len": 64,
        },
        "dataset": {
            "_component_": "torchtune.datasets.text_completion_dataset",
            "source": "text",
            "data_files": str(directory / "text.txt"),
            "column": "text",
            "split": "train",
        },
        "seed": 1,
        "shuffle": True,
        "model": {"_component_": "torchtune.models.llama2.llama2", **sizes},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelTorchTuneCheckpointer",
            "checkpoint_dir": str(directory / "checkpoint"),
            "checkpoint_files": ["model.pt"],
            "recipe_checkpoint": None,
            "output_dir": str(directory / "out"),
            "model_type": "LLAMA2",
        },
        "resume_from_checkpoint": False,
        "batch_size": 4,
        "epochs": 1,
        "max_steps_per_epoch": 40,
        "gradient_accumulation_steps": 1 if is_in_backward else 2,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-3},
        "optimizer_in_bwd": is_in_backward,
        "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
        "clip_grad_norm": None if is_in_backward else 1.0,
        "compile": False,
        "device": "cpu",
        "dtype": "fp32",
        "enable_activation_checkpointing": False,
        "enable_activation_offloading": False,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": str(directory)},
        "log_every_n_steps": 1,
        "log_peak_memory_stats": False,
        "log_level": "INFO",
        "profiler": {"_component_": "torchtune.training.setup_torch_profiler", "enabled": False},
    }
    (directory / "config.yaml").write_text(yaml.dump(config))
