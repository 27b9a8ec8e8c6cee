"""Language models: single-file trainers and small frameworks."""

import data

from cases.case import DRIVERS, Case, words

CASES = (
    Case(
        "nanogpt",
        "karpathy/nanoGPT",
        "train.py",
        words(
            "train.py --device=cpu --compile=False --dataset=field --n_layer=2 --n_head=2 --n_embd=32 --block_size=64"
            " --batch_size=8 --gradient_accumulation_steps=2 --max_iters=100 --eval_interval=50 --eval_iters=4"
            " --log_interval=1 --dtype=float32 --backend=gloo --warmup_iters=10 --lr_decay_iters=100 --dropout=0.1"
            " --learning_rate=1e-3 --out_dir={data}"
        ),
        ranks=2,
        prepare=lambda code: data.char_bins(code / "data" / "field"),
        env={"FIELD_CUDA": "1"},
        note="DDP, accumulation, clipping",
        edits="device by the recorder",
    ),
    Case(
        "nanogpt-resume-shape",
        "karpathy/nanoGPT",
        "train.py",
        words(
            "train.py --device=cpu --compile=False --dataset=field --n_layer=2 --n_head=2 --n_embd=32 --block_size=64"
            " --batch_size=8 --gradient_accumulation_steps=1 --max_iters=60 --eval_interval=1000 --eval_iters=2"
            " --log_interval=1 --dtype=bfloat16 --out_dir={data} --decay_lr=False --grad_clip=0.0"
        ),
        prepare=lambda code: data.char_bins(code / "data" / "field"),
        note="one process, autocast bf16, no clipping",
    ),
    Case(
        "x-transformers-copy",
        "lucidrains/x-transformers",
        "train_copy.py",
        words("train_copy.py"),
        paths=(".",),
        env={"FIELD_STEPS": "110"},
    ),
    Case(
        "mingpt-adder",
        "karpathy/minGPT",
        "projects/adder/adder.py",
        words("projects/adder/adder.py --trainer.max_iters=150 --trainer.num_workers=0 --trainer.device=cpu"),
        paths=(".",),
    ),
    Case("mamba-minimal", "johnma2006/mamba-minimal", "model.py", (f"{DRIVERS}/mamba_minimal.py",), paths=(".",)),
    Case(
        "litgpt-pretrain",
        "Lightning-AI/litgpt",
        "litgpt/__main__.py",
        words(
            "-m litgpt pretrain --model_config {data}/model.yaml --tokenizer_dir {data} --data TextFiles"
            " --data.train_data_path {data}/text --data.num_workers 1 --train.max_tokens 20000"
            " --train.global_batch_size 8"
            " --train.micro_batch_size 4 --train.lr_warmup_steps 5 --train.max_seq_length 64 --train.log_interval 1"
            " --eval.interval 1000 --eval.max_iters 2 --eval.initial_validation False --out_dir {data}/out --devices 1"
        ),
        paths=(".",),
        data=lambda directory: data.litgpt(directory),
        note="Fabric",
    ),
    Case(
        "litgpt-finetune-lora",
        "Lightning-AI/litgpt",
        "litgpt/__main__.py",
        words(
            "-m litgpt finetune_lora {data}/checkpoint --data JSON --data.json_path {data}/rows.json"
            " --data.val_split_fraction 0.1 --train.epochs 1 --train.max_steps 30 --train.global_batch_size 4"
            " --train.micro_batch_size 2 --train.log_interval 1 --train.max_seq_length 96 --train.lr_warmup_steps 5"
            " --eval.interval 10 --eval.max_iters 2 --out_dir {data}/out --devices 1 --precision 32-true"
        ),
        paths=(".",),
        data=lambda directory: data.litgpt(directory),
        note="Fabric, LoRA",
    ),
    Case(
        "nanochat",
        "karpathy/nanochat",
        "scripts/base_train.py",
        words(
            "-m scripts.base_train --device-type cpu --depth 2 --aspect-ratio 16 --head-dim 16 --max-seq-len 64"
            " --device-batch-size 2 --total-batch-size 512 --num-iterations 60 --eval-every -1 --core-metric-every -1"
            " --sample-every -1"
        ),
        paths=(".",),
        data=lambda directory: data.nanochat(directory),
        env={"NANOCHAT_BASE_DIR": "{data}"},
        note="Muon and AdamW in one optimizer",
    ),
)
