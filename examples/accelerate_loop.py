"""Accelerate: attach what `prepare` returns; a step is one in which gradients are synchronised.

    pip install accelerate
    caboose daemon &
    torchrun --nproc-per-node 2 examples/accelerate_loop.py

`accelerate launch` starts it as well. Without the three lines: `torchrun ... -m caboose` and your script.
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import caboose


def main() -> None:
    """Trains a small network, four micro-batches a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)  # without cpu=True on GPUs
    torch.manual_seed(0)
    inputs = torch.randn(8192, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps * accelerator.num_processes)

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    monitor = caboose.attach(model, optimizer, scheduler=scheduler)  # 1: what prepare has returned
    step, losses = 0, []
    while step < options.steps:
        for batch, targets in monitor.watch(loader):  # 2: times the wait for data
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch), targets)
                losses.append(loss.detach())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                monitor.step(torch.stack(losses).mean())  # 3: the mean of the micro-batches
                step, losses = step + 1, []
            if step == options.steps:
                break
    accelerator.print(f"step {step}  loss {loss.item():.4f}")
    monitor.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
