"""A Lightning module on two ranks, with accumulation, clipping and validation: `lightning_ddp.py DIRECTORY`."""

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
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, number):  # type: ignore[no-untyped-def]
        self.log("val_loss", F.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    L.seed_everything(1)
    inputs = torch.randn(1280, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :1] * 2 + 0.1 * torch.randn(1280, 1))
    train, valid = (torch.utils.data.DataLoader(data, batch_size=16, shuffle=is_train) for is_train in (True, False))
    L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        default_root_dir=sys.argv[1],
        enable_progress_bar=False,
        log_every_n_steps=5,
        logger=False,
    ).fit(Net(), train, valid)
