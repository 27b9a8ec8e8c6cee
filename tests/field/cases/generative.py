"""Generative models: adversarial ones, diffusion, and segmentation."""

import data
import data_of_libraries as made

from cases.case import Case, words

_GAN = "eriklindernoren/PyTorch-GAN"

CASES = (
    *(
        Case(
            f"gan-{name}",
            _GAN,
            f"implementations/{name}/{name}.py",
            words(f"{name}.py --n_epochs {epochs} --batch_size 64 --img_size {size} --sample_interval 100000"),
            directory=f"implementations/{name}",
            prepare=lambda code: data.mnist(code / "data" / "mnist"),
            watched=(0, 1),
            note=note,
        )
        for name, epochs, size, note in (
            ("wgan_gp", 10, 28, "gradient penalty, 5 critic steps to one of the generator"),
            ("wgan", 10, 28, "clipped weights, RMSprop"),
            ("gan", 6, 28, "two networks"),
            ("lsgan", 3, 32, "convolutions"),
            ("dcgan", 3, 32, "convolutions, BatchNorm"),
            ("acgan", 3, 32, "classes"),
            ("began", 3, 32, "autoencoder as critic, balance term"),
            ("infogan", 2, 32, "three optimizers over two networks"),
            ("aae", 4, 32, "adversarial autoencoder: one optimizer over two networks"),
            ("softmax_gan", 6, 28, "two networks"),
        )
    ),
    Case(
        "diffusers-text-to-image",
        "huggingface/diffusers",
        "examples/text_to_image/train_text_to_image.py",
        words(
            "train_text_to_image.py --pretrained_model_name_or_path {data}/model --train_data_dir {data}/images"
            " --resolution 32 --train_batch_size 4 --gradient_accumulation_steps 2 --max_train_steps 60 --seed 1"
            " --learning_rate 1e-3 --lr_warmup_steps 5 --output_dir {data}/out --use_ema --checkpointing_steps 1000"
        ),
        part="examples/text_to_image",
        data=made.stable_diffusion,
        env={"ACCELERATE_USE_CPU": "1"},
        note="Accelerate, frozen VAE and text encoder, EMA, accumulation",
    ),
    Case(
        "unet-segmentation",
        "milesial/Pytorch-UNet",
        "train.py",
        words("train.py --epochs 2 --batch-size 4 --learning-rate 1e-4 --scale 1 --validation 20"),
        prepare=made.segmentation,
        env={"FIELD_STEPS": "12"},
        note="RMSprop, GradScaler (off), ReduceLROnPlateau, validation inside the epoch",
    ),
)
