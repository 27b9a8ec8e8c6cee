"""Reinforcement learning: losses that are not meant to fall."""

from cases.case import DRIVERS, Case, words

CASES = (
    *(
        Case(
            f"cleanrl-{name.split('_')[0]}{'-c' if 'continuous' in name else ''}",
            "vwxyzjn/cleanrl",
            f"cleanrl/{name}.py",
            words(f"cleanrl/{name}.py --no-cuda {flags}"),
            paths=(".",),
            watched=watched,
        )
        for name, flags, watched in (
            ("dqn", "--total-timesteps 4000 --learning-starts 1000 --buffer-size 2000", (0,)),
            ("ppo", "--total-timesteps 4096", (0,)),
            ("c51", "--total-timesteps 2500 --learning-starts 1000 --buffer-size 2000", (0,)),
            ("pqn", "--total-timesteps 4096", (0,)),
            (
                "sac_continuous_action",
                "--total-timesteps 700 --learning-starts 500 --env-id Pendulum-v1 --buffer-size 2000",
                (0, 1, 2),
            ),
            (
                "td3_continuous_action",
                "--total-timesteps 800 --learning-starts 500 --env-id Pendulum-v1 --buffer-size 2000",
                (0, 1),
            ),
            (
                "ddpg_continuous_action",
                "--total-timesteps 800 --learning-starts 500 --env-id Pendulum-v1 --buffer-size 2000",
                (0, 1),
            ),
        )
    ),
    *(
        Case(
            f"sb3-{algorithm.lower()}",
            "DLR-RM/stable-baselines3",
            "stable_baselines3/ppo/ppo.py",
            (f"{DRIVERS}/sb3.py", algorithm, environment, steps),
            paths=(".",),
            watched=(0, 1, 2) if algorithm == "SAC" else (0,),
        )
        for algorithm, environment, steps in (
            ("PPO", "CartPole-v1", "4096"),
            ("A2C", "CartPole-v1", "1500"),
            ("DQN", "CartPole-v1", "1500"),
            ("SAC", "Pendulum-v1", "250"),
        )
    ),
)
