"""The small real trainings of the regret benchmark: 2 ranks under torchrun that train one after the other.

Design
------
A launch takes longer than a training, so one launch has many. The disturbance belongs to the data and the step: a
rollback does not meet it again. Without a monitor, and as fast as they can, each training runs *clean*, *never*, and
the oracle's branches: the state of the newest snapshot before the onset is kept in memory, and after each step at which
the oracle acts (`ACT`) the weights go back to it and the data go on, as a rollback would do. Then it runs under a
monitor in `auto`, as a job of its own, at the pace that a larger model would have: a decision takes time.

The result is the loss on held-out data at the end: what a run is worth, however it got there. Rank 0 adds a line for
each training as soon as it ends.
"""

import argparse
import copy
import gc
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import caboose

CLASSES, BATCH, LENGTH = 16, 32, 24
HELD_OUT = 8
ONSET, EVERY, WARM_UP = 150, 10, 20
ACT = (4, 6, 10, 16, 28, 50, 80)
"""Steps after the onset at which the oracle may act."""
PACE_SECONDS = 0.03
BUDGET = 0.2
"""Of a step for the agent: models so small take longer to copy than half of its usual 1 %."""


class Muonlike(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal by a few Newton-Schulz steps; other parameters take its sign."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                is_matrix = p.ndim == 2 and not hasattr(p, "placements")  # a shard is not the whole matrix
                p.add_(_orthogonal(buffer) if is_matrix else buffer.sign(), alpha=-group["lr"])


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return 0.2 * x * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5


class Sequence(nn.Module):
    """A transformer or an LSTM over tokens, that predicts the next one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 32)
        self.kind = kind
        if kind == "lstm":
            self.body: nn.Module = nn.LSTM(32, 48, batch_first=True)
            self.head = nn.Linear(48, CLASSES)
        else:
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of every position."""
        x = self.embed(tokens)
        if self.kind == "lstm":
            x = self.body(x)[0]
        else:
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            x = self.body(x, mask=mask, is_causal=True)
        out: torch.Tensor = self.head(x)
        return out


def build(kind: str) -> nn.Module:
    """One of the four models."""
    if kind in ("transformer", "lstm"):
        return Sequence(kind)
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, CLASSES),
        )  # fmt: skip
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, CLASSES))


class Task:
    """Batches by step: tokens of a random chain, or noisy prototypes of classes."""

    def __init__(self, kind: str, seed: int) -> None:
        self.is_tokens = kind in ("transformer", "lstm")
        self._seed = seed
        generator = torch.Generator().manual_seed(seed)
        self._chain = torch.softmax(2.0 * torch.randn(CLASSES, CLASSES, CLASSES, generator=generator), -1)
        self._prototypes = torch.randn(CLASSES, 64, generator=generator)
        self._shape = (-1, 1, 8, 8) if kind == "cnn" else (-1, 64)

    def batch(self, number: int, *, is_bad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and targets of one batch; bad ones have targets of another task."""
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + number)
        if not self.is_tokens:
            targets = torch.randint(CLASSES, (BATCH,), generator=generator)
            inputs = self._prototypes[targets] + 1.5 * torch.randn(BATCH, 64, generator=generator)
            return inputs.view(self._shape), (targets + 1) % CLASSES if is_bad else targets
        tokens = torch.randint(CLASSES, (BATCH, 2), generator=generator)
        for _ in range(LENGTH - 1):
            chances = self._chain[tokens[:, -2], tokens[:, -1]]
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], 1)
        return tokens[:, :-1], (tokens[:, 1:] + 1) % CLASSES if is_bad else tokens[:, 1:]


@dataclass(frozen=True)
class Case:
    """One training."""

    id: str
    model: str
    optimizer: str
    sharding: str
    fault: str
    bad_steps: int
    strength: float
    """Factor on the rate at bad steps."""
    seed: int
    steps: int
    has_reference: bool = False
    """Whether clean, never and the oracle are known already."""


class Run:
    """One rank's training."""

    def __init__(self, case: Case) -> None:
        self.case = case
        torch.manual_seed(case.seed)
        self.task = Task(case.model, case.seed)
        model = build(case.model)
        if case.sharding == "fsdp2":
            fully_shard(model)
            self.model: nn.Module = model
        else:
            self.model = DistributedDataParallel(model)
        lr = {"adamw": 3e-3, "sgd": 0.1, "muon": 0.01}[case.optimizer]
        kinds = {
            "adamw": lambda ps: torch.optim.AdamW(ps, lr=lr),
            "sgd": lambda ps: torch.optim.SGD(ps, lr=lr, momentum=0.9),
            "muon": lambda ps: Muonlike(ps, lr=lr),
        }
        self.optimizer = kinds[case.optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))

    def step(self, step: int) -> torch.Tensor:
        """Trains one step; the disturbance belongs to it."""
        case = self.case
        is_bad = ONSET <= step < ONSET + case.bad_steps
        inputs, targets = self.task.batch(2 * step + dist.get_rank(), is_bad=is_bad and case.fault != "rate")
        for group in self.optimizer.param_groups:
            factor = case.strength if is_bad and case.fault != "data" else 1.0
            group["lr"] = group["initial_lr"] * min(1.0, step / WARM_UP) * factor
        loss = self.loss(inputs, targets)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives no types
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy of a batch."""
        return F.cross_entropy(self.model(inputs).reshape(-1, CLASSES), targets.reshape(-1))

    def held_out(self) -> float:
        """The loss on data that no run trains on, over both ranks."""
        self.model.eval()
        with torch.no_grad():
            found = [self.loss(*self.task.batch(10**8 + 2 * n + dist.get_rank())) for n in range(HELD_OUT)]
        self.model.train()
        mean = torch.stack(found).mean()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()

    def state(self) -> Any:
        """A copy of weights and optimizer: of this rank's shards, where they are sharded."""
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self, state: Any) -> None:
        """Puts a copy back."""
        model, optimizer = copy.deepcopy(state)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def main() -> None:
    """Runs every training that is asked for; rank 0 writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, help="trainings, as JSON")
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in [Case(**row) for row in json.loads(options.cases.read_text())]:
        result = {"id": case.id, **({} if case.has_reference else _reference(case)), **_auto(case)}
        gc.collect()  # a reducer that outlives its process group may hang
        if dist.get_rank() == 0:
            with options.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def _reference(case: Case) -> dict[str, Any]:
    """What the training comes to without a fault, if nothing is done, and if it goes back after each of some steps."""
    began = time.monotonic()
    clean = _trained(Run(replace(case, bad_steps=0)))
    run = Run(case)
    kept: Any = None
    at: dict[int, Any] = {}
    for step in range(1, case.steps + 1):
        run.step(step)
        if step == (ONSET - 1) // EVERY * EVERY:
            kept = run.state()
        if step - ONSET in ACT:
            at[step - ONSET] = run.scheduler.state_dict()
    found = {"clean": clean, "never": run.held_out()}
    for after in ACT:
        run.restore(kept)
        run.scheduler.load_state_dict(at[after])
        found[f"after_{after}"] = _trained(run, ONSET + after + 1)
    return {**found, "reference_seconds": time.monotonic() - began}


def _trained(run: Run, first: int = 1) -> float:
    """The held-out loss after the rest of the steps."""
    for step in range(first, run.case.steps + 1):
        run.step(step)
    return run.held_out()


def _auto(case: Case) -> dict[str, Any]:
    """The training under a monitor that may roll it back."""
    began = time.monotonic()
    run = Run(case)
    rollback = caboose.Rollback("auto", cooldown_steps=50, snapshots=caboose.Snapshots(every=EVERY))
    monitor = caboose.attach(
        run.model,
        run.optimizer,
        scheduler=run.scheduler,
        rollback=rollback,
        num_classes=CLASSES,
        job=case.id,
        sampling=caboose.Sampling(overhead_budget=BUDGET),
        config={"total_steps": case.steps},
    )
    rollbacks: list[tuple[int, int]] = []
    for step in range(1, case.steps + 1):
        loss = run.step(step)
        before = monitor.model_step
        monitor.step(loss)
        if monitor.num_rollbacks > len(rollbacks):
            rollbacks.append((step, step - (before + 1 - monitor.model_step)))
        time.sleep(PACE_SECONDS)
    found = run.held_out()
    monitor.close()
    return {"auto": found, "rollbacks": rollbacks, "auto_seconds": time.monotonic() - began}


if __name__ == "__main__":
    main()
