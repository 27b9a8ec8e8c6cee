"""Ten thousand small steps in one process; prints, as JSON, a hash of all losses, sizes in memory and call times."""

import hashlib
import json
import resource
import time

import torch

import caboose

STEPS = 10_000


def resident() -> int:
    """Pages in memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = caboose.attach(model, optimizer, job="long")
    digest = hashlib.sha256()
    calls, sizes = [], []
    for step in range(STEPS):
        x = torch.randn(4, 8)
        loss = (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        digest.update(loss.item().hex().encode())
        start = time.thread_time()
        monitor.step(loss)
        calls.append(time.thread_time() - start)
        if step in (STEPS // 2, STEPS - 1):
            sizes.append(resident())
    calls.sort()
    monitor.close()
    print(json.dumps({"losses": digest.hexdigest(), "sizes": sizes, "p99": calls[int(STEPS * 0.99)]}))


if __name__ == "__main__":
    main()
