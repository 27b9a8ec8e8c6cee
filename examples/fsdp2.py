"""FSDP2 (`fully_shard`): attach after sharding; norms are those of the whole model, no collective is added.

    caboose daemon &
    torchrun --nproc-per-node 2 examples/fsdp2.py

On GPUs, use nccl.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import caboose


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        return x + self.mlp(self.norm(x))


def main() -> None:
    """Trains a sharded model on a made-up regression."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rollback", choices=("off", "advise", "auto"), default="advise")
    options = parser.parse_args()

    dist.init_process_group("gloo")  # "nccl" on GPUs
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), *(Block(64) for _ in range(4)), nn.Linear(64, 1))
    for part in model:
        if isinstance(part, Block):
            fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    monitor = caboose.attach(model, optimizer, rollback=options.rollback)
    draw = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(1, options.steps + 1):
        inputs = torch.randn(64, 32, generator=draw)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        monitor.step(loss)
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
