"""Lightning: one callback.

    pip install lightning
    caboose daemon &
    python examples/lightning_module.py

With rollback="auto" it lets itself be taken back.
"""

import argparse

import lightning
import torch
from torch import nn

from caboose.lightning import CabooseCallback


class Sines(lightning.LightningModule):
    """Learns a sum of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss; Caboose sees what is returned."""
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """What is logged as val_loss becomes a validation."""
        self.log("val_loss", nn.functional.mse_loss(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def loader(size: int, seed: int) -> torch.utils.data.DataLoader:
    """Points and their sums of sines."""
    inputs = torch.randn(size, 16, generator=torch.Generator().manual_seed(seed))
    data = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=32)


def main() -> None:
    """Trains and validates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rollback", choices=("off", "advise", "auto"), default="advise")
    options = parser.parse_args()

    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        callbacks=[CabooseCallback(rollback=options.rollback)],  # <- all there is to add
    )
    trainer.fit(Sines(), loader(8192, seed=1), loader(512, seed=2))


if __name__ == "__main__":
    main()
