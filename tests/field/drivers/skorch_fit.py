"""Trains with skorch's NeuralNetClassifier, which gives the optimizer a closure."""

import numpy
import torch
from skorch import NeuralNetClassifier

torch.manual_seed(0)
inputs = torch.randn(512, 16)
module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4), torch.nn.Softmax(-1))
network = NeuralNetClassifier(module, optimizer=torch.optim.Adam, lr=1e-2, batch_size=32, max_epochs=5)
network.fit(inputs.numpy(), inputs[:, :4].argmax(-1).numpy().astype(numpy.int64))
