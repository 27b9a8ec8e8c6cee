"""Healthy runs of models whose loss is not meant to fall, by seed: `seeds.py` counts what is raised on them."""

import data

from cases.case import Case, words

CASES = (
    Case(
        "dqn",
        "vwxyzjn/cleanrl",
        "cleanrl/dqn.py",
        words(
            "cleanrl/dqn.py --no-cuda --seed {seed} --total-timesteps 9000 --learning-starts 2000 --buffer-size 10000"
        ),
        paths=(".",),
    ),
    Case(
        "ppo",
        "vwxyzjn/cleanrl",
        "cleanrl/ppo.py",
        words("cleanrl/ppo.py --no-cuda --seed {seed} --total-timesteps 16384"),
        paths=(".",),
    ),
    Case(
        "sac",
        "vwxyzjn/cleanrl",
        "cleanrl/sac_continuous_action.py",
        words(
            "cleanrl/sac_continuous_action.py --no-cuda --seed {seed} --total-timesteps 1000 --learning-starts 400"
            " --env-id Pendulum-v1 --buffer-size 5000"
        ),
        paths=(".",),
    ),
    Case(
        "actor-critic",
        "pytorch/examples",
        "reinforcement_learning/actor_critic.py",
        words("actor_critic.py --log-interval 50 --seed {seed}"),
        directory="reinforcement_learning",
        env={"FIELD_STEPS": "200"},
    ),
    Case(
        "reinforce",
        "pytorch/examples",
        "reinforcement_learning/reinforce.py",
        words("reinforce.py --log-interval 50 --seed {seed}"),
        directory="reinforcement_learning",
        env={"FIELD_STEPS": "200"},
    ),
    Case(
        "dcgan",
        "pytorch/examples",
        "dcgan/main.py",
        words(
            "main.py --dataset mnist --dataroot {data} --batchSize 16 --imageSize 64 --ngf 8 --ndf 8 --niter 5"
            " --workers 0 --manualSeed {seed} --outf {data}"
        ),
        directory="dcgan",
        data=data.mnist,
        env={"FIELD_STEPS": "300"},
    ),
    Case(
        "wgan-gp",
        "eriklindernoren/PyTorch-GAN",
        "implementations/wgan_gp/wgan_gp.py",
        words("wgan_gp.py --n_epochs 16 --batch_size 64 --sample_interval 100000"),
        directory="implementations/wgan_gp",
        prepare=lambda code: data.mnist(code / "data" / "mnist"),
    ),
    Case(
        "gan",
        "eriklindernoren/PyTorch-GAN",
        "implementations/gan/gan.py",
        words("gan.py --n_epochs 16 --batch_size 64 --sample_interval 100000"),
        directory="implementations/gan",
        prepare=lambda code: data.mnist(code / "data" / "mnist"),
    ),
)
