"""One process, a plain loop: three lines to add.

    caboose daemon &
    python examples/plain_loop.py

Then look at http://127.0.0.1:9757/.
"""

import argparse

import torch
from torch import nn

import caboose


def main() -> None:
    """Trains a small classifier on clusters of points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    centres = 2 * torch.randn(10, 32)
    labels = torch.randint(10, (20_000,))
    data = torch.utils.data.TensorDataset(centres[labels] + torch.randn(len(labels), 32), labels)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    monitor = caboose.attach(model, optimizer, num_classes=10)  # <- one
    for step, (inputs, targets) in enumerate(monitor.watch(loader), start=1):  # <- two
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)  # <- three
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.3f}")
        if step == steps:
            break
    monitor.close()


if __name__ == "__main__":
    main()
