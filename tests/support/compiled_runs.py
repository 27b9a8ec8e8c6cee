"""Runs of a small network in compiled graphs, watched and not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import caboose
from caboose_wire import Hello, StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]
STEPS = 50
EVERY = 5
STATISTICS = (
    "activation_mean",
    "activation_std",
    "activation_max",
    "activation_zero_fraction",
    "activation_saturated",
    "activation_histogram",
)
ASKED = caboose.Sampling(EVERY, overhead_budget=1.0, compiled=True)


class Block(nn.Module):
    """With module and functional activations, dropout, and perhaps activation checkpointing."""

    def __init__(self, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 16)
        self.act = nn.ReLU()
        self.narrow = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)
        self.is_checkpointed = is_checkpointed

    def body(self, x: torch.Tensor) -> Any:
        return self.drop(self.narrow(F.gelu(self.act(self.wide(self.norm(x))))))

    def forward(self, x: torch.Tensor) -> Any:
        if self.is_checkpointed:
            return x + checkpoint(self.body, x, use_reentrant=False)
        return x + self.body(x).tanh()


class Net(nn.Module):
    """Two blocks between layers that are eager where only blocks are compiled."""

    def __init__(self, is_checkpointed: bool = False) -> None:
        torch.manual_seed(3)
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(is_checkpointed) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


Compile = Callable[[nn.Module], nn.Module]


def whole(net: nn.Module, **how: Any) -> nn.Module:
    compiled_net: Any = torch.compile(net, **{"backend": "aot_eager", "fullgraph": True, **how})
    return compiled_net  # type: ignore[no-any-return]


def in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="aot_eager", fullgraph=True)
    return net


def blocks_in_place(net: Any) -> nn.Module:
    for block in net.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    return net  # type: ignore[no-any-return]


def blocks(net: Any) -> nn.Module:
    for number, block in enumerate(net.blocks):
        net.blocks[number] = whole(block)
    return net  # type: ignore[no-any-return]


@dataclass
class Run:
    """What a run came to."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    reports: dict[int, dict[str, dict[str, Any]]]
    hello: Hello | None
    num_graphs: int
    num_breaks: int


def train(
    model: nn.Module,
    attach: Attach | None = None,
    listening: Collector | None = None,
    *,
    steps: int = STEPS,
    call: Callable[[torch.Tensor], torch.Tensor] | None = None,
    sampling: caboose.Sampling = ASKED,
    size: Callable[[int], int] = lambda _: 6,
    each: Callable[[int, caboose.Monitor | None], None] = lambda *_: None,
    early: int = 0,
) -> Run:
    """A run of its own weights and batches; `early` steps come before attach."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor, losses = None, []
    num_before = 0 if listening is None else len(listening.reports)
    for step in range(steps):
        if attach is not None and listening is not None and step == early:
            monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=sampling)
        x = torch.randn(size(step), 4)
        loss = model(x).pow(2).mean() if call is None else call(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        each(step, monitor)
        if monitor is not None:
            monitor.step(loss.detach())
    counters = torch._dynamo.utils.counters
    num_graphs, num_breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    reports, hello = {}, None
    if listening is not None and monitor is not None:
        assert monitor.guard.num_failures == 0
        found = listening.wait_for(StepReport, num_before + steps - early)[num_before:]
        monitor.close()
        hello = listening.hellos[-1]
        for report in found:
            if "activation_order" in report.arrays:
                reports[report.step] = by_module(hello, report)
    return Run(losses, state, reports, hello, num_graphs, num_breaks)


def by_module(hello: Hello, report: StepReport) -> dict[str, dict[str, Any]]:
    found = {}
    for row, place in enumerate(report.arrays["activation_order"]):
        if place >= 0:
            found[hello.modules[row].name] = {
                name: np.asarray(report.arrays[name][row]).tolist() for name in STATISTICS if name in report.arrays
            }
    return found


def same(one: Run, other: Run) -> bool:
    return one.losses == other.losses and all(
        torch.equal(a, b) for a, b in zip(one.state.values(), other.state.values(), strict=True)
    )


def watched(attach: Attach, listening: Collector, model: nn.Module, **options: Any) -> Run:
    run = train(model, attach, listening, **options)
    assert run.hello is not None
    return run
