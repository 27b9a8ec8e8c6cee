"""Lightning Fabric: attach what `setup` returns. Fabric starts the ranks itself.

    pip install lightning
    caboose daemon &
    python examples/fabric_loop.py --devices 2

Without the two lines: `python -m caboose` and your script.
"""

import argparse

import torch
from lightning.fabric import Fabric
from torch import nn

import caboose


def main() -> None:
    """Trains a small network on each rank's own data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()

    strategy = "ddp" if options.devices > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=options.devices, strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = fabric.setup(model, optimizer)
    monitor = caboose.attach(model, optimizer)  # 1: what setup has returned
    torch.manual_seed(1 + fabric.global_rank)
    for step in range(1, options.steps + 1):
        batch = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(batch), batch.sin().sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        monitor.step(loss)  # 2: after each step of the optimizer
        if step % 100 == 0:
            fabric.print(f"step {step}  loss {loss.item():.4f}")
    monitor.close()


if __name__ == "__main__":
    main()
