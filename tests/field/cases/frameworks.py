"""Trainers and launchers of other libraries: Lightning, Fabric, DeepSpeed, Ray, and Hugging Face on two ranks."""

import data
import data_of_libraries as made

from cases.case import DRIVERS, Case, words

_LIGHTNING = "Lightning-AI/pytorch-lightning"
_FABRIC_CLI = {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp", "LT_DEVICES": "2"}
_DEEPSPEED_CPU = {"DS_ACCELERATOR": "cpu", "FIELD_GLOO": "1", "FIELD_CUDA": "1", "DS_SKIP_CUDA_CHECK": "1"}

_RUN_CLM = (
    "run_clm.py --config_name {data} --tokenizer_name {data} --train_file {data}/train.txt --validation_file"
    " {data}/valid.txt --do_train --do_eval --output_dir {data}/out --max_steps 60 --block_size 64 --use_cpu"
    " --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --logging_steps 1 --report_to none"
    " --eval_strategy steps --eval_steps 20 --learning_rate 1e-3 --max_eval_samples 16"
)

CASES = (
    Case(
        "transformers-run-clm-ranks",
        "huggingface/transformers",
        "examples/pytorch/language-modeling/run_clm.py",
        words(_RUN_CLM),
        part="examples/pytorch/language-modeling",
        ranks=2,
        prepare=made.accuracy,
        data=lambda directory: (
            data.tiny_llama(directory),
            data.text_file(directory / "train.txt", 20_000),
            data.text_file(directory / "valid.txt", 2_000, seed=1),
        ),
        note="Trainer, accumulation 4, validation, DDP",
    ),
    Case(
        "accelerate-nlp-simple",
        "huggingface/accelerate",
        "examples/nlp_example.py",
        words("nlp_example.py --cpu"),
        part="examples",
        prepare=lambda code: (data.glue(code), made.accuracy(code, "glue")),
        env={"FIELD_STEPS": "60"},
        note="one process",
    ),
    *(
        Case(
            f"lightning-ddp-{name}",
            _LIGHTNING,
            "examples/pytorch/basics/autoencoder.py",
            (f"{DRIVERS}/lightning_ddp.py", "{data}"),
            part="examples/pytorch/bug_report",
            ranks=ranks,
            note=f"Lightning's Trainer, DDP of 2 ranks by {starter}, accumulation, validation; installed package",
        )
        for name, ranks, starter in (("own", 1, "Lightning"), ("torchrun", 2, "torchrun"))
    ),
    Case(
        "lightning-qnet",
        _LIGHTNING,
        "examples/pytorch/domain_templates/reinforce_learn_Qnet.py",
        words("reinforce_learn_Qnet.py"),
        directory="examples/pytorch/domain_templates",
        env={"FIELD_STEPS": "150"},
        note="DQN, target network",
    ),
    Case(
        "lightning-ppo",
        _LIGHTNING,
        "examples/pytorch/domain_templates/reinforce_learn_ppo.py",
        words("reinforce_learn_ppo.py --env CartPole-v1 --batch_size 64 --steps_per_epoch 512"),
        directory="examples/pytorch/domain_templates",
        env={"FIELD_STEPS": "200"},
        watched=(0, 1),
        note="PPO, manual optimization, two optimizers",
    ),
    Case(
        "fabric-image",
        _LIGHTNING,
        "examples/fabric/image_classifier/train_fabric.py",
        words("train_fabric.py --epochs 2 --batch-size 32"),
        directory="examples/fabric/image_classifier",
        prepare=lambda code: data.mnist(code / "Datasets"),
        ranks=2,
        env=_FABRIC_CLI,
        note="Fabric under torchrun",
    ),
    Case(
        "fabric-kfold",
        _LIGHTNING,
        "examples/fabric/kfold_cv/train_fabric.py",
        words("train_fabric.py --epochs 2 --folds 3 --batch-size 64"),
        directory="examples/fabric/kfold_cv",
        prepare=lambda code: data.mnist(code / "Datasets"),
        env={**_FABRIC_CLI, "LT_DEVICES": "1", "LT_STRATEGY": "auto"},
        watched=(0, 1, 2),
        note="a model and an optimizer per fold",
    ),
    Case(
        "fabric-ppo",
        _LIGHTNING,
        "examples/fabric/reinforcement_learning/train_fabric.py",
        words("train_fabric.py --total-timesteps 4096 --num-envs 2"),
        directory="examples/fabric/reinforcement_learning",
        ranks=2,
        env=_FABRIC_CLI,
        note="PPO on 2 ranks",
    ),
    *(
        Case(
            f"deepspeed-zero{stage}",
            "deepspeedai/DeepSpeedExamples",
            "training/bf16_master_weight/train.py",
            words(
                "train.py --hidden_dim 64 --num_layers 2 --num_heads 4 --vocab_size 256 --seq_length 32 --num_steps 60"
                " --log_interval 1 --learning_rate 1e-3 --deepspeed_config {data}/config.json"
            ),
            directory="training/bf16_master_weight",
            data=lambda directory, stage=stage: made.deepspeed(directory, stage),
            ranks=2,
            env=_DEEPSPEED_CPU,
            note=f"DeepSpeed engine, ZeRO {stage}, clipping",
        )
        for stage in (0, 1, 2, 3)
    ),
    Case(
        "ray-linear",
        "ray-project/ray",
        "python/ray/train/examples/pytorch/torch_linear_example.py",
        words("torch_linear_example.py --epochs 2"),
        directory="python/ray/train/examples/pytorch",
        note="the ranks are Ray's workers: no-code mode does not reach them",
    ),
    Case(
        "ray-three-lines",
        "ray-project/ray",
        "python/ray/train/examples/pytorch/torch_linear_example.py",
        (f"{DRIVERS}/ray_train.py", "{data}"),
        directory="python/ray/train/examples/pytorch",
        note="three lines in the workers",
    ),
    Case(
        "ultralytics-detect",
        "ultralytics/ultralytics",
        "ultralytics/engine/trainer.py",
        (f"{DRIVERS}/ultralytics_train.py", "{data}"),
        part="tests",
        data=made.boxes,
        env={"YOLO_CONFIG_DIR": "{data}", "YOLO_OFFLINE": "true"},
        note="EMA, warm-up per batch, validation; installed package",
    ),
)
