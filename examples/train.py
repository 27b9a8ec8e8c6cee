"""A training script without Caboose.

examples/no_code.sh                         watched, unchanged
python -m caboose examples/train.py         the same without the script
"""

import argparse

import torch
from torch import nn


def main() -> None:
    """Trains a small network to separate points inside a ball from points outside."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()

    torch.manual_seed(0)
    points = torch.randn(20_000, 8)
    labels = (points.norm(dim=1) > 2.7).long()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points, labels), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for step, (inputs, targets) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.3f}")
        if step == options.steps:
            break


if __name__ == "__main__":
    main()
