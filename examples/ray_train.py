"""Ray Train: three lines in the function that runs on each worker.

    pip install 'ray[train]'
    caboose daemon &
    python examples/ray_train.py --workers 2

The driver's environment does not reach the workers, so the daemon's address is passed on.
"""

import argparse
import os
import tempfile
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

import caboose


def train_on_worker(config: dict[str, Any]) -> None:
    """One rank."""
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    monitor = caboose.attach(model, optimizer, job=config["job"])  # 1: after prepare_model
    torch.manual_seed(1 + ray.train.get_context().get_world_rank())
    for _ in range(config["steps"]):
        batch = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(batch), batch.sin().sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)  # 2: after each step of the optimizer
    monitor.close()  # 3: a worker may be ended without running its exit handlers


def main() -> None:
    """Starts the workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    passed_on = {name: os.environ[name] for name in ("CABOOSE_ENDPOINT", "CABOOSE_QUIET") if name in os.environ}
    ray.init(num_cpus=options.workers, include_dashboard=False, runtime_env={"env_vars": passed_on})
    with tempfile.TemporaryDirectory() as directory:
        TorchTrainer(
            train_on_worker,
            train_loop_config={"steps": options.steps, "job": os.environ.get("CABOOSE_JOB", "ray-example")},
            scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
            torch_config=TorchConfig(backend="gloo"),
            run_config=ray.train.RunConfig(name="example", storage_path=directory),
        ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
