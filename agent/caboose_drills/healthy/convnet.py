"""convnet: a small convolutional net with BatchNorm, SGD with momentum, and a learning rate that falls in two steps."""

import torch
from torch import nn

from caboose_drills import loop
from caboose_drills.data import HELD_OUT, Task
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun

SIZE, CLASSES = 10, 6


def images(seed: int, *, size: int = 6000, noise: float = 1.0) -> Task:
    """Which pattern is in a picture, at any position: smooth patterns, shifted around the edges, with noise."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.randn(CLASSES, 1, 5, 5, generator=draw)
    patterns = nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")
    which = torch.randint(CLASSES, (size + HELD_OUT,), generator=draw)
    shifts = torch.randint(-2, 3, (len(which), 2), generator=draw).tolist()
    pictures = torch.stack(
        [patterns[kind].roll((down, right), (1, 2)) for kind, (down, right) in zip(which.tolist(), shifts, strict=True)]
    )
    pictures = pictures + noise * torch.randn(pictures.shape, generator=draw)
    held_out = pictures[size:], which[size:]
    return Task(pictures[:size], which[:size], held_out, CLASSES)


def conv(channels: int, wide: int) -> nn.Sequential:
    """Convolution, norm and ReLU at half the size."""
    return nn.Sequential(
        nn.Conv2d(channels, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)
    )


def train(run: DrillRun) -> None:
    task = images(run.seed)
    model = nn.Sequential(conv(1, 8), conv(8, 16), nn.Flatten(), nn.Linear(16 * (SIZE // 4) ** 2, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, milestones=[run.steps // 2, run.steps * 3 // 4], gamma=0.1
    )
    loop.fit(run, model, optimizer, task, batch=32, scheduler=scheduler)


DRILL = Drill(
    name="convnet",
    about="healthy: a small convolutional net with BatchNorm, SGD with momentum and a step schedule",
    train=train,
    steps=1000,
    seconds=6.0,
)
