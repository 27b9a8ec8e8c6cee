"""DistributedDataParallel, with a schedule, clipping, validation, checkpoints, and a rollback if the loss breaks.

    caboose daemon --rollback auto &
    torchrun --nproc-per-node 2 examples/ddp.py --checkpoints /tmp/checkpoints

Started again, it goes on from the last good checkpoint.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import caboose


def main() -> None:
    """Trains on all ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoints", default="checkpoints", help="a directory that all ranks share")
    options = parser.parse_args()

    dist.init_process_group("gloo")  # "nccl" on GPUs
    torch.manual_seed(0)
    inputs = torch.randn(20_000, 16)
    data = TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
    held_out = torch.randn(512, 16)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)

    plan = caboose.resume_plan(options.checkpoints)  # the same on every rank
    loaded = caboose.load_checkpoint(plan, model, optimizer, scheduler=scheduler)
    step = loaded.step if loaded else 0
    monitor = caboose.attach(
        model,
        optimizer,
        scheduler=scheduler,
        rollback="auto",
        checkpoints=options.checkpoints,
        start_step=step,
        config={"total_steps": options.steps},
    )
    while step < options.steps:
        sampler.set_epoch(step)
        for batch, targets in monitor.watch(loader):
            loss = nn.functional.mse_loss(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            monitor.step(loss, num_samples=len(batch))
            step += 1
            if step % 100 == 0:
                monitor.checkpoint()
                with torch.no_grad():
                    monitor.validation(nn.functional.mse_loss(model(held_out), held_out.sin().sum(dim=1, keepdim=True)))
            if step == options.steps:
                break
    if dist.get_rank() == 0:
        print(f"step {step}  loss {loss.item():.4f}  rollbacks {monitor.num_rollbacks}")
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
