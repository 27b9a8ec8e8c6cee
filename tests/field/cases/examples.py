"""pytorch/examples: one case per example."""

import data

from cases.case import Case, words

_EXAMPLES = "pytorch/examples"

CASES = (
    Case(
        "examples-ddp-tutorial",
        _EXAMPLES,
        "distributed/ddp-tutorial-series/multigpu_torchrun.py",
        words("multigpu_torchrun.py 3 5 --batch_size 32"),
        directory="distributed/ddp-tutorial-series",
        ranks=2,
        env={"FIELD_GLOO": "1", "FIELD_CUDA": "1"},
        edits="device and backend by the recorder",
    ),
    Case(
        "examples-mnist",
        _EXAMPLES,
        "mnist/main.py",
        words("main.py --no-accel --epochs 2 --batch-size 32 --test-batch-size 64"),
        directory="mnist",
        prepare=lambda code: data.mnist(code / "data"),
    ),
    Case(
        "examples-vae",
        _EXAMPLES,
        "vae/main.py",
        words("main.py --no-accel --epochs 2 --batch-size 32"),
        directory="vae",
        prepare=lambda code: (data.mnist(code / "data"), (code / "vae" / "results").mkdir(exist_ok=True)),
    ),
    Case(
        "examples-mnist-rnn",
        _EXAMPLES,
        "mnist_rnn/main.py",
        words("main.py --epochs 2 --batch-size 32 --test-batch-size 64"),
        directory="mnist_rnn",
        prepare=lambda code: data.mnist(code / "data"),
    ),
    Case(
        "examples-siamese",
        _EXAMPLES,
        "siamese_network/main.py",
        words("main.py --no-accel --epochs 2 --batch-size 32 --test-batch-size 64"),
        directory="siamese_network",
        prepare=lambda code: data.mnist(code / "data", 640, 128),
    ),
    Case(
        "examples-forward-forward",
        _EXAMPLES,
        "mnist_forward_forward/main.py",
        words("main.py --no_accel --epochs 30 --train_size 200 --test_size 50"),
        directory="mnist_forward_forward",
        prepare=lambda code: data.mnist(code / "mnist_forward_forward" / "data"),
        note="one optimizer per layer",
    ),
    Case(
        "examples-dcgan",
        _EXAMPLES,
        "dcgan/main.py",
        words(
            "main.py --dataset fake --batchSize 8 --imageSize 64 --ngf 8 --ndf 8 --niter 1 --workers 0 --manualSeed 1"
            " --outf {data}"
        ),
        directory="dcgan",
        env={"FIELD_STEPS": "60"},
        watched=(0, 1),
        note="GAN",
    ),
    Case(
        "examples-word-lm",
        _EXAMPLES,
        "word_language_model/main.py",
        words(
            "main.py --data {data} --model LSTM --emsize 32 --nhid 32 --nlayers 1 --epochs 2 --batch_size 10 --bptt 20"
            " --log-interval 10 --use-optimizer --lr 0.01"
        ),
        directory="word_language_model",
        data=lambda directory: [data.text_file(directory / f"{n}.txt", 8000) for n in ("train", "valid", "test")],
        note="AdamW with pickled model",
    ),
    Case(
        "examples-word-lm-sgd",
        _EXAMPLES,
        "word_language_model/main.py",
        words(
            "main.py --data {data} --model Transformer --emsize 32 --nhid 32 --nlayers 1 --nhead 2 --epochs 1"
            " --batch_size 10 --bptt 20 --lr 1"
        ),
        directory="word_language_model",
        data=lambda directory: [data.text_file(directory / f"{n}.txt", 8000) for n in ("train", "valid", "test")],
        note="hand-written SGD: no optimizer",
    ),
    Case(
        "examples-time-sequence",
        _EXAMPLES,
        "time_sequence_prediction/train.py",
        words("train.py --steps 3"),
        directory="time_sequence_prediction",
        note="LBFGS, double precision",
    ),
    Case(
        "examples-actor-critic",
        _EXAMPLES,
        "reinforcement_learning/actor_critic.py",
        words("actor_critic.py --log-interval 10"),
        directory="reinforcement_learning",
        env={"FIELD_STEPS": "150"},
    ),
    Case(
        "examples-reinforce",
        _EXAMPLES,
        "reinforcement_learning/reinforce.py",
        words("reinforce.py --log-interval 10"),
        directory="reinforcement_learning",
        env={"FIELD_STEPS": "150"},
    ),
    Case(
        "examples-gcn-cora",
        _EXAMPLES,
        "gcn/main.py",
        words("main.py --no-accel --epochs 60"),
        directory="gcn",
        prepare=lambda code: data.cora(code / "gcn"),
        note="graph of 2,708 nodes",
    ),
    Case(
        "examples-gat-cora",
        _EXAMPLES,
        "gat/main.py",
        words("main.py --no-accel --epochs 60"),
        directory="gat",
        prepare=lambda code: data.cora(code / "gat"),
        note="graph of 2,708 nodes, full adjacency matrix",
    ),
    Case(
        "examples-mingpt-ddp",
        _EXAMPLES,
        "distributed/minGPT-ddp/mingpt/main.py",
        words(
            "main.py data_config.path={data}/text.txt data_config.block_size=32 gpt_config.n_layer=2"
            " gpt_config.n_head=2 gpt_config.n_embd=32 trainer_config.max_epochs=1 trainer_config.batch_size=32"
            " trainer_config.data_loader_workers=0 trainer_config.use_amp=False"
        ),
        directory="distributed/minGPT-ddp/mingpt",
        ranks=2,
        data=lambda directory: data.text_file(directory / "text.txt", 16000),
        env={"FIELD_GLOO": "1", "FIELD_ACCELERATOR": "1", "FIELD_CUDA": "1"},
    ),
    Case(
        "examples-mingpt-ddp-amp",
        _EXAMPLES,
        "distributed/minGPT-ddp/mingpt/main.py",
        words(
            "main.py data_config.path={data}/text.txt data_config.block_size=32 gpt_config.n_layer=2"
            " gpt_config.n_head=2 gpt_config.n_embd=32 trainer_config.max_epochs=1 trainer_config.batch_size=32"
            " trainer_config.data_loader_workers=0 trainer_config.use_amp=True"
        ),
        directory="distributed/minGPT-ddp/mingpt",
        ranks=2,
        data=lambda directory: data.text_file(directory / "text.txt", 16000),
        env={"FIELD_GLOO": "1", "FIELD_ACCELERATOR": "1", "FIELD_CUDA": "1"},
    ),
    Case(
        "examples-fsdp2",
        _EXAMPLES,
        "distributed/FSDP2/example.py",
        words("example.py"),
        directory="distributed/FSDP2",
        ranks=2,
        env={"FIELD_GLOO": "1", "FIELD_CUDA": "1", "FIELD_ACCELERATOR": "1"},
    ),
    Case(
        "examples-imagenet",
        _EXAMPLES,
        "imagenet/main.py",
        words("main.py {data} -a squeezenet1_1 -j 0 --epochs 4 -b 8 -p 1 --no-accel --lr 0.01 --seed 1"),
        directory="imagenet",
        data=lambda directory: (data.images(directory / "train", 96), data.images(directory / "val", 16)),
        note="torchvision model, StepLR",
    ),
)
