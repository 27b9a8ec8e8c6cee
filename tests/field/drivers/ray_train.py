"""Ray Train's linear example with Caboose's three lines in the workers: `ray_train.py STORAGE`."""

import os
import sys

import ray
import torch
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

KEPT = ("CABOOSE_", "FIELD_", "PYTHONPATH", "OMP_")


def work() -> None:
    import caboose

    torch.manual_seed(1)
    model = train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = caboose.attach(model, optimizer)
    centers = torch.randn(4, 1)
    for _ in range(100):
        inputs = torch.randn(16, 4)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ centers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    monitor.close()


if __name__ == "__main__":
    variables = {key: value for key, value in os.environ.items() if key.startswith(KEPT)}
    ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": variables})
    TorchTrainer(
        work, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=sys.argv[1])
    ).fit()
