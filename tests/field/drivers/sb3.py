"""Trains an agent of Stable-Baselines3: `sb3.py PPO CartPole-v1 4000`."""

import sys

import stable_baselines3

algorithm, environment, steps = sys.argv[1:]
model = getattr(stable_baselines3, algorithm)("MlpPolicy", environment, seed=1, device="cpu", verbose=1)
model.learn(int(steps))
