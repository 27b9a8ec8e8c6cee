"""Replicas that step on their own gradients, and whose weights are averaged every few steps (local SGD).

torchrun --nproc-per-node 2 averaged.py OUT BY    BY: accelerate, or torch's averager
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEPS, PERIOD = 60, 7


def main(out: Path, by: str) -> None:
    norms: list[float] = []
    if by == "accelerate":
        from accelerate import Accelerator
        from accelerate.local_sgd import LocalSGD

        accelerator = Accelerator(cpu=True)
        model, optimizer = parts()
        model, optimizer = accelerator.prepare(model, optimizer)
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=PERIOD) as averaging:
            for _ in range(STEPS):
                norms.append(train(model, optimizer))
                averaging.step()
    else:
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        dist.init_process_group("gloo")
        model, optimizer = parts()
        model = torch.nn.parallel.DistributedDataParallel(model)
        alone, _ = dist.new_subgroups(group_size=1)
        state = hooks.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=0)
        model.register_comm_hook(state, hooks.post_localSGD_hook)
        averager = PeriodicModelAverager(period=PERIOD, warmup_steps=0)
        for _ in range(STEPS):
            norms.append(train(model, optimizer))
            averager.average_parameters(model.parameters())
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(norms))
    dist.barrier()
    dist.destroy_process_group()


def parts() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def train(model: Any, optimizer: Any) -> float:
    rows = torch.randn(8, 16) + dist.get_rank()
    loss = torch.nn.functional.cross_entropy(model(rows), rows[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))


if __name__ == "__main__":
    main(Path(sys.argv[-2]), sys.argv[-1])
