"""A small DCGAN in plain torch, after the tutorial's loop: the discriminator's loss has two backward passes.

    python gan.py STEPS [NAN_AT]

Prints a line of JSON: both losses of every step as the script knows them, and a checksum of all weights. With NAN_AT
the generator's loss is NaN in that step, and its update is left out, so that nothing else breaks.
"""

import json
import sys
import zlib

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 4, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.main(noise))


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.main(images)).view(-1)


def main() -> None:
    steps, nan_at = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net_g, net_d = Generator(), Discriminator()
    criterion = nn.BCELoss()
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=1e-3, betas=(0.5, 0.999))
    losses: dict[str, list[float]] = {"discriminator": [], "generator": []}
    for step in range(1, steps + 1):
        net_d.zero_grad()
        real = torch.randn(8, 1, 8, 8)
        error_real = criterion(net_d(real), torch.ones(8))
        error_real.backward()
        fake = net_g(torch.randn(8, 8, 1, 1))
        error_fake = criterion(net_d(fake.detach()), torch.zeros(8))
        error_fake.backward()
        optimizer_d.step()
        net_g.zero_grad()
        error_g = criterion(net_d(fake), torch.ones(8))
        if step == nan_at:
            error_g = error_g * float("nan")
        error_g.backward()
        if step == nan_at:
            net_g.zero_grad()
        optimizer_g.step()
        losses["discriminator"].append((error_real + error_fake).item())
        losses["generator"].append(error_g.item())
    weights = zlib.crc32(b"".join(p.detach().numpy().tobytes() for net in (net_g, net_d) for p in net.parameters()))
    print(json.dumps({"losses": losses, "weights": weights}))


if __name__ == "__main__":
    main()
