"""A Lightning module with accumulation, clipping and validation: `lightning_fit.py DIRECTORY`."""

import sys

import lightning as L
import torch
import torch.nn.functional as F


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, number):  # type: ignore[no-untyped-def]
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):  # type: ignore[no-untyped-def]
        self.log("val_loss", F.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)}


L.seed_everything(1)
inputs = torch.randn(640, 16)
data = torch.utils.data.TensorDataset(inputs, inputs[:, :1] * 2 + 0.1 * torch.randn(640, 1))
train, valid = (torch.utils.data.DataLoader(data, batch_size=16) for _ in range(2))
L.Trainer(
    max_epochs=5,
    accelerator="cpu",
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    default_root_dir=sys.argv[1],
    enable_progress_bar=False,
    log_every_n_steps=5,
    logger=False,
).fit(Net(), train, valid)
