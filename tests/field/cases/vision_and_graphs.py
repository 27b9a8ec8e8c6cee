"""Images, embeddings, graphs, and trainers of other libraries."""

import data

from cases.case import DRIVERS, Case, words

CASES = (
    Case(
        "metric-learning",
        "KevinMusgrave/pytorch-metric-learning",
        "src/pytorch_metric_learning/losses/base_metric_loss_function.py",
        (f"{DRIVERS}/metric_learning.py",),
        paths=("src",),
        watched=(0, 1),
        note="a loss with weights and an optimizer of its own",
    ),
    Case(
        "denoising-diffusion",
        "lucidrains/denoising-diffusion-pytorch",
        "denoising_diffusion_pytorch/__init__.py",
        (f"{DRIVERS}/denoising_diffusion.py", "{data}", "{data}/../results"),
        paths=(".",),
        data=lambda directory: data.images(directory, 24, 32),
        note="Accelerate, EMA, accumulation",
    ),
    Case(
        "pytorch-geometric",
        "pyg-team/pytorch_geometric",
        "torch_geometric/__init__.py",
        (f"{DRIVERS}/graph.py",),
        part="torch_geometric/nn/conv",
        note="uses the installed package",
    ),
    Case(
        "composer",
        "mosaicml/composer",
        "composer/trainer/trainer.py",
        (f"{DRIVERS}/composer_fit.py",),
        paths=(".",),
        note="microbatches, clipping, its own optimizer",
    ),
    Case(
        "timm",
        "huggingface/pytorch-image-models",
        "train.py",
        words(
            "train.py --data-dir {data} --model resnet10t --num-classes 2 --img-size 32 --batch-size 8 --epochs 3 --opt"
            " adamw --lr 1e-3 --warmup-epochs 1 --model-ema --clip-grad 1.0 --workers 1 --device cpu"
            " --output {data}/out"
            " --mixup 0.1 --log-interval 1"
        ),
        paths=(".",),
        ranks=2,
        data=lambda directory: (
            data.images(directory / "train", 160, 40),
            data.images(directory / "validation", 32, 40),
        ),
        env={"FIELD_GLOO": "1", "FIELD_CUDA": "1"},
        note="DDP, EMA, mixup, clipping",
        edits="device_ids of DDP by the recorder",
    ),
    Case(
        "dino",
        "facebookresearch/dino",
        "main_dino.py",
        words(
            "main_dino.py --arch vit_tiny --patch_size 32 --out_dim 256 --data_path {data} --output_dir {data}"
            " --epochs 3"
            " --batch_size_per_gpu 8 --local_crops_number 2 --num_workers 0 --use_fp16 false --warmup_epochs 1"
        ),
        ranks=2,
        data=lambda directory: data.images(directory, 96, 64),
        env={"FIELD_GLOO": "1", "FIELD_CUDA": "1"},
        note="teacher and student, frozen last layer, DDP",
        edits="device and backend by the recorder",
    ),
    Case(
        "lightning",
        "Lightning-AI/litgpt",
        "litgpt/__main__.py",
        (f"{DRIVERS}/lightning_fit.py", "{data}"),
        part="litgpt/chat",
        note="Lightning's Trainer, installed package",
    ),
)
