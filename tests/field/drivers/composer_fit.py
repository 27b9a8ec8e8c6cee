"""Trains with Composer's Trainer, with two of its algorithms and microbatches."""

import torch
from composer import Trainer
from composer.algorithms import GradientClipping, LabelSmoothing
from composer.models import ComposerClassifier
from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler

torch.manual_seed(0)
inputs = torch.randn(512, 16)
targets = (inputs[:, :4].argmax(-1)).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=32, shuffle=True)
module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
model = ComposerClassifier(module, num_classes=4)
trainer = Trainer(
    model=model,
    train_dataloader=loader,
    eval_dataloader=loader,
    optimizers=DecoupledAdamW(model.parameters(), lr=1e-2),
    schedulers=LinearWithWarmupScheduler("10ba"),
    max_duration="5ep",
    device_train_microbatch_size=8,
    algorithms=[LabelSmoothing(0.1), GradientClipping("norm", 0.5)],
    device="cpu",
    seed=1,
)
trainer.fit()
