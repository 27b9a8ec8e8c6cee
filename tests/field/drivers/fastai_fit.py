"""Trains with fastai's Learner, whose optimizers are not torch's."""

import torch
from fastai.callback import schedule  # noqa: F401 - gives the Learner fit_one_cycle
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy

torch.manual_seed(0)
inputs = torch.randn(512, 16)
rows = torch.utils.data.TensorDataset(inputs, inputs[:, :4].argmax(-1))
loaders = [torch.utils.data.DataLoader(rows, batch_size=32, shuffle=shuffle) for shuffle in (True, False)]
module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
learner = Learner(DataLoaders(*loaders), model=module, loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy)
learner.fit_one_cycle(5, 1e-2)
