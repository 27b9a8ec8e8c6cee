"""A real run of four ranks for the pictures of Ranks and Layers: `torchrun ... -m support.real_ranks`.

The blocks of a small net have ReLUs, the last ones tanh. From a third of the steps on, the biases of one block fall, so
that its units die; after a good half, one rank takes longer for its own work, and the others wait for it.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import caboose

RANKS, SLOW, DYING = 4, 2, 5
FALLING, SLOWING = 0.33, 0.55
"""Shares of the run after which the biases fall and the rank is slow."""
WIDTH, CLASSES, BATCH, NUM_RECTIFIED, NUM_TANH = 64, 10, 64, 8, 2


class Net(nn.Module):
    """Residual blocks with an activation each."""

    def __init__(self) -> None:
        super().__init__()
        kinds = [*[nn.ReLU] * NUM_RECTIFIED, *[nn.Tanh] * NUM_TANH]
        self.stem = nn.Linear(32, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), k()) for k in kinds)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        classes: torch.Tensor = self.head(x)
        return classes


def main(steps: int, step_seconds: float) -> None:
    """Trains, with both faults, at this pace."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    teacher = torch.randn(32, CLASSES, generator=torch.Generator().manual_seed(9))
    data = torch.Generator().manual_seed(1 + dist.get_rank())
    monitor = caboose.attach(model, optimizer, num_classes=CLASSES)
    dying = net.blocks[DYING]
    assert isinstance(dying, nn.Sequential)
    for step in range(1, steps + 1):
        due = time.monotonic() + step_seconds
        if dist.get_rank() == SLOW and step > SLOWING * steps:
            time.sleep(0.5 * step_seconds)
        inputs = torch.randn(BATCH, 32, generator=data)
        loss = F.cross_entropy(model(inputs), (inputs @ teacher).argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
        optimizer.step()
        if step > FALLING * steps:
            with torch.no_grad():
                dying[1].bias -= 6.0 / steps
        monitor.step(loss.detach(), num_samples=BATCH)
        time.sleep(max(0.0, due - time.monotonic()))
    monitor.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]), float(sys.argv[2]))
