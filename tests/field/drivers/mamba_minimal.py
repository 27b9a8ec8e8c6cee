"""Trains mamba-minimal on a repeated pattern."""

import torch
import torch.nn.functional as F
from model import Mamba, ModelArgs

torch.manual_seed(0)
model = Mamba(ModelArgs(d_model=32, n_layer=2, vocab_size=64))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=60)
for step in range(60):
    start = torch.randint(0, 64, (4, 1))
    tokens = (start + 3 * torch.arange(33)) % 64
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    print(f"step {step} loss {loss.item():.6f}")
