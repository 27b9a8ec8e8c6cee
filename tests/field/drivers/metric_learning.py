"""Trains an embedding with a loss that has weights and an optimizer of its own."""

import torch
from pytorch_metric_learning import losses, miners

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
criterion = losses.SubCenterArcFaceLoss(num_classes=5, embedding_size=8)
miner = miners.MultiSimilarityMiner()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion_optimizer = torch.optim.SGD(criterion.parameters(), lr=1e-2)
centers = 2 * torch.randn(5, 16)
for step in range(100):
    labels = torch.randint(0, 5, (32,))
    embeddings = model(centers[labels] + torch.randn(32, 16))
    loss = criterion(embeddings, labels, miner(embeddings, labels))
    optimizer.zero_grad()
    criterion_optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    criterion_optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
