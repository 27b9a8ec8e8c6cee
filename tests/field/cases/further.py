"""Code bases of other kinds: recommenders, model parallelism, several processes without ranks, other trainers."""

import data
import data_of_libraries as made

from cases.case import DRIVERS, Case, words

_ON_CPU = {"FIELD_GLOO": "1", "FIELD_CUDA": "1"}
_BY_RECORDER = "device and backend by the recorder"
_PARALLEL = "distributed/tensor_parallelism"

CASES = (
    Case(
        "dlrm",
        "facebookresearch/dlrm",
        "dlrm_s_pytorch.py",
        words(
            "dlrm_s_pytorch.py --mini-batch-size=64 --num-batches=80 --data-generation=random --print-freq=1"
            " --arch-sparse-feature-size=16 --arch-embedding-size=1000-500-200 --arch-mlp-bot=13-32-16"
            " --arch-mlp-top=32-16-1 --loss-function=bce --round-targets=True --learning-rate=0.1"
        ),
        note="recommender: sparse gradients of embeddings",
    ),
    Case(
        "makemore",
        "karpathy/makemore",
        "makemore.py",
        words("makemore.py --max-steps 80 -n 0 --n-layer 2 --n-embd 32 -o {data}"),
        note="single-file loop",
    ),
    Case(
        "megatron-core",
        "NVIDIA/Megatron-LM",
        "examples/run_simple_mcore_train_loop.py",
        words("examples/run_simple_mcore_train_loop.py"),
        prepare=made.megatron,
        ranks=2,
        paths=(".",),
        env=_ON_CPU,
        note="tensor parallel of 2, Megatron's own DDP: gradients in main_grad",
        edits=_BY_RECORDER,
    ),
    *(
        Case(
            f"torchtitan-{name}",
            "pytorch/torchtitan",
            "torchtitan/train.py",
            words(
                "-m torchtitan.train --job.config_file torchtitan/models/llama3/train_configs/debug_model.toml"
                " --training.steps 20 --training.local_batch_size 2 --training.seq_len 64"
                f" --metrics.log_freq 1 {flags}"
            ),
            prepare=made.titan,
            ranks=2,
            paths=(".",),
            env=_ON_CPU,
            watched=(1,),  # the first one only steps the other
            note=note,
            edits=_BY_RECORDER,
        )
        for name, flags, note in (
            ("fsdp", "", "FSDP2, clipping; of version 0.2, later ones have attention for GPUs only"),
            ("tp", "--parallelism.tensor_parallel_degree 2", "DTensor: tensor parallel of 2; of version 0.2"),
        )
    ),
    Case(
        "olmo-core",
        "allenai/OLMo-core",
        "src/examples/llm/train.py",
        (
            *words(
                "src/examples/llm/train.py field --model-factory=olmo2_1M --sequence-length=64 --save-folder={data}/out"
                " --work-dir={data}/work --data_loader.global_batch_size=1024 --data_loader.num_workers=0"
                " --train_module.rank_microbatch_size=256 --train_module.compile_model=false"
                " --trainer.callbacks.lm_evaluator.enabled=false --train_module.dp_config.param_dtype=float32"
                " --trainer.callbacks.downstream_evaluator.enabled=false"
            ),
            "--trainer.max_duration={{value: 30, unit: steps}}",
            "--trainer.metrics_collect_interval=1",
        ),
        logged=("output.txt", r"train/CE loss=([\d.]+)"),
        ranks=2,
        paths=("src",),
        data=made.olmo,
        env={**_ON_CPU, "OLMO_DATA_ROOT": "{data}"},
        note="FSDP2, accumulation, clipping",
        edits=_BY_RECORDER,
    ),
    Case(
        "torchtune-full",
        "meta-pytorch/torchtune",
        "recipes/full_finetune_single_device.py",
        words("recipes/full_finetune_single_device.py --config {data}/config.yaml"),
        paths=(".",),
        data=lambda directory: made.torchtune(directory, is_in_backward=False),
        logged=("data/log_*.txt", r"loss:([\d.]+)"),
        note="a recipe, accumulation, clipping",
    ),
    Case(
        "torchtune-in-backward",
        "meta-pytorch/torchtune",
        "recipes/full_finetune_single_device.py",
        words("recipes/full_finetune_single_device.py --config {data}/config.yaml"),
        paths=(".",),
        data=lambda directory: made.torchtune(directory, is_in_backward=True),
        note="a recipe with an optimizer per parameter, which steps in the backward pass",
    ),
    *(
        Case(
            f"examples-{name.replace('_', '-')}",
            "pytorch/examples",
            f"{_PARALLEL}/{name}_example.py",
            words(f"{name}_example.py"),
            directory=_PARALLEL,
            ranks=2,
            env={**_ON_CPU, "FIELD_ACCELERATOR": "1", "FIELD_ATTENTION": "1"},
            note=note,
            edits=_BY_RECORDER,
        )
        for name, note in (
            ("tensor_parallel", "DTensor: tensor parallel of 2"),
            ("sequence_parallel", "DTensor: sequence parallel of 2"),
            ("fsdp_tp", "2-D mesh: FSDP2 and tensor parallel"),
        )
    ),
    Case(
        "examples-hogwild",
        "pytorch/examples",
        "mnist_hogwild/main.py",
        words("main.py --epochs 1 --num-processes 2 --batch-size 32"),
        directory="mnist_hogwild",
        prepare=lambda code: data.mnist(code / "data"),
        note="two processes train one model in shared memory: no two runs are alike",
    ),
    Case(
        "accelerate-local-sgd",
        "huggingface/accelerate",
        "examples/by_feature/local_sgd.py",
        words("local_sgd.py --cpu --local_sgd_steps 8"),
        part="examples/by_feature",
        prepare=lambda code: (data.glue(code), made.accuracy(code, "glue")),
        ranks=2,
        env={"FIELD_STEPS": "60"},
        note="ranks step on their own gradients, weights are averaged every 8 steps",
    ),
    Case(
        "accelerate-schedule-free",
        "huggingface/accelerate",
        "examples/by_feature/schedule_free.py",
        words("schedule_free.py --cpu"),
        part="examples/by_feature",
        prepare=lambda code: (data.glue(code), made.accuracy(code, "glue")),
        env={"FIELD_STEPS": "60"},
        note="an optimizer that has modes",
    ),
    Case(
        "mmengine",
        "open-mmlab/mmengine",
        "examples/distributed_training.py",
        words("examples/distributed_training.py --launcher pytorch"),
        ranks=2,
        paths=(".",),
        prepare=lambda code: made.cifar(code / "data" / "cifar10"),
        env={**_ON_CPU, "FIELD_STEPS": "16", "FIELD_CIFAR": "1"},
        note="MMEngine's Runner, DDP, SGD",
        edits=_BY_RECORDER,
    ),
    Case(
        "ignite-mnist",
        "pytorch/ignite",
        "examples/mnist/mnist.py",
        words("examples/mnist/mnist.py --epochs 2 --batch_size 32 --val_batch_size 64"),
        prepare=lambda code: data.mnist(code),
        paths=(".",),
        note="Ignite's engine",
    ),
    Case(
        "lightning-hydra",
        "ashleve/lightning-hydra-template",
        "src/train.py",
        words(
            "src/train.py trainer=cpu trainer.max_epochs=2 data.train_val_test_split=[1100,100,336]"
            " data.batch_size=32 seed=1 callbacks=none test=False"
        ),
        prepare=lambda code: data.mnist(code / "data"),
        note="Lightning's Trainer from a Hydra application",
    ),
    Case(
        "fastai",
        "fastai/fastai",
        "fastai/learner.py",
        (f"{DRIVERS}/fastai_fit.py",),
        paths=(".",),
        note="its own optimizers",
    ),
    Case(
        "skorch",
        "skorch-dev/skorch",
        "skorch/net.py",
        (f"{DRIVERS}/skorch_fit.py",),
        paths=(".",),
        note="step with a closure",
    ),
    Case(
        "tutorial-gan",
        "yunjey/pytorch-tutorial",
        "tutorials/03-advanced/generative_adversarial_network/main.py",
        words("main.py"),
        part="tutorials",
        directory="03-advanced/generative_adversarial_network",
        prepare=lambda code: data.mnist(code / "data", 2000),  # whole batches of 100
        env={"FIELD_STEPS": "80"},
        watched=(0, 1),
        note="single-file loop, two networks",
    ),
)
