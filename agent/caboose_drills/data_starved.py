"""data_starved: samples are prepared one by one in the training process, which waits for them."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from caboose_drills import data, loop, nets
from caboose_drills.drill import Drill
from caboose_drills.run import DrillRun


class Prepared(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are augmented and normalised on access."""

    def __init__(self, task: data.Task) -> None:
        self._task = task

    def __len__(self) -> int:
        return len(self._task.inputs)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        sample = self._task.inputs[place]
        sample = sample + 0.02 * torch.randn(sample.shape)
        return (sample - sample.mean()) / sample.std(), self._task.targets[place]


def train(run: DrillRun) -> None:
    """The loader has no workers."""
    task = data.clusters(run.seed)
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(Prepared(task), batch_size=64, shuffle=True, num_workers=0)
    model = nets.mlp(32, 10)
    loop.fit(run, model, torch.optim.AdamW(model.parameters(), lr=1e-3), task, loader=loader, validate_every=0)


DRILL = Drill(
    name="data_starved",
    about="most of each step is spent waiting for data: samples are prepared one by one in the training process",
    train=train,
    rule="data_starved",
    cause="slow_loader",
    steps=250,
    seconds=3.0,
)
