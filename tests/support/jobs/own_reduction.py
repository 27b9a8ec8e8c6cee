"""Plain replicas whose optimizer reduces and scatters the gradients itself, as distributed Muon and ZeRO do.

    torchrun --nproc-per-node 2 own_reduction.py OUT NUM_EQUAL

In the first `NUM_EQUAL` steps all ranks have the same batch.
"""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import caboose

STEPS = 60


class Scattered(torch.optim.Optimizer):
    """Momentum SGD: each rank gets the mean gradient of its rows, updates them, and the rows are gathered again."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        world = dist.get_world_size()
        for group in self.param_groups:
            for p in group["params"]:
                rows = torch.zeros(-(-p.numel() // world) * world)
                rows[: p.numel()] = p.grad.flatten()
                parts = list(rows.chunk(world))
                mean = torch.empty_like(parts[0])
                work = dist.reduce_scatter_tensor(mean, rows, op=dist.ReduceOp.SUM, async_op=True)
                work.wait()
                state = self.state[p]
                state["momentum"] = 0.9 * state.get("momentum", 0.0) + mean / world
                whole = torch.empty_like(rows)
                dist.all_gather_into_tensor(whole, state["momentum"])
                p.sub_(group["lr"] * whole[: p.numel()].view_as(p))
        return None


def main() -> None:
    num_equal = int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = Scattered(model.parameters(), lr=1e-3)
    same, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2 + dist.get_rank())
    monitor = caboose.attach(model, optimizer, sampling=10)
    for step in range(STEPS):
        loss = model(torch.randn(8, 16, generator=same if step < num_equal else own)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss, num_samples=8)
        time.sleep(0.02)
    dist.barrier()
    time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
