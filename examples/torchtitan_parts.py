"""torchtitan: its container of optimizers is attached to as it is.

    pip install torchtitan
    caboose daemon &
    torchrun --nproc-per-node 2 examples/torchtitan_parts.py

torchtitan's own Trainer needs an accelerator; there it is subclassed, as docs/integrations.md shows. Here the loop is
written out, so that it runs on a CPU.
"""

import argparse

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.distributed.utils import clip_grad_norm_

import caboose


def main() -> None:
    """Trains a small sharded network, biases at a rate of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (world,)))
    groups = [
        ParamGroupConfig(pattern="bias", optimizer_name="AdamW", optimizer_kwargs={"lr": 6e-3}),
        ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 3e-3}),
    ]
    config = OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
    optimizers = OptimizersContainer(config, model_parts=[model])
    monitor = caboose.attach(model, optimizers)  # 1: the container
    torch.manual_seed(1 + rank)
    for _ in range(options.steps):
        batch = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(batch), batch.sin().sum(dim=1, keepdim=True))
        optimizers.zero_grad()
        loss.backward()
        clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
        optimizers.step()
        monitor.step(loss)  # 2: after each step
    if rank == 0:
        print(f"step {options.steps}  loss {loss.item():.4f}")
    monitor.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
