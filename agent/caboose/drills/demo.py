"""The job of `caboose demo`: two ranks train a small transformer, and one step goes wrong for a real reason.

At `--spike-at` every rank's batch is corrupted (its targets are shuffled, as a broken shard would) and the learning
rate is raised on that step alone, as a schedule's bug would. The damaged weights make the next losses jump; then
training recovers by itself.

    torchrun --nproc-per-node 2 -m caboose.drills.demo --steps 300 --spike-at 180
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import caboose
from caboose.drills.text import TextStream
from caboose.drills.transformer import Transformer

VOCABULARY, LENGTH, BATCH = 64, 48, 16


def main() -> None:
    """Trains, with the fault, until the steps are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--spike-at", type=int, default=180, help="the step that goes wrong; 0 for none")
    parser.add_argument("--raise-lr", type=float, default=40.0, help="how many times the LR is raised on it")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="do not run faster than this")
    options = parser.parse_args()

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer(vocabulary=VOCABULARY, length=LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    stream = TextStream(vocabulary=VOCABULARY, length=LENGTH, batch=BATCH, seed=1 + dist.get_rank())
    shuffle = torch.Generator().manual_seed(3)

    monitor = caboose.attach(model, optimizer, scheduler=scheduler, num_classes=VOCABULARY)
    for step, tokens in zip(range(1, options.steps + 1), monitor.watch(stream), strict=False):
        began = time.perf_counter()
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        goes_wrong = step == options.spike_at
        if goes_wrong:
            order = torch.randperm(targets.numel(), generator=shuffle)
            targets = targets.flatten()[order].view_as(targets)
            for group in optimizer.param_groups:
                group["lr"] *= options.raise_lr
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss, num_samples=BATCH)
        scheduler.step()  # sets the LR back to the schedule's
        time.sleep(max(0.0, options.step_seconds - (time.perf_counter() - began)))
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
