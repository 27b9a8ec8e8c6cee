"""The largest attention logit by the norms of queries and keys: never below the real one, wherever it is computed."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import caboose
from caboose.observe.attention import AttentionLogits, of_dot_product
from caboose_wire import Hello, StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]
WIDTH, HEADS = 16, 2


class Fused(nn.Module):
    """As most code of today does it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*self.parts(x)).transpose(1, 2).flatten(2)


class OwnSoftmaxAttention(Fused):
    """As textbooks do it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return (F.softmax(logits, dim=-1) @ v).transpose(1, 2).flatten(2)


class OfTorch(nn.Module):
    """torch's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


def reported(attach: Attach, listening: Collector, model: nn.Module, x: torch.Tensor) -> dict[str, tuple[float, float]]:
    """The logit and its head, by the names of the modules that have one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sampling = caboose.Sampling(1, overhead_budget=1.0)
    monitor = attach(model, optimizer, endpoint=listening.endpoint, sampling=sampling)
    for _ in range(2):  # the first step finds the place of the call
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    report = listening.wait_for(StepReport, 2)[-1]
    modules = listening.wait_for(Hello)[-1].modules
    pairs = zip(modules, report.arrays["attention_logit"], report.arrays["attention_head"], strict=True)
    return {module.name: (float(logit), float(head)) for module, logit, head in pairs if logit >= 0}


def real_logits(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


@pytest.mark.parametrize(
    ("model", "name"),
    [(Fused, "0.attention"), (OwnSoftmaxAttention, "0.softmax"), (OfTorch, "0.attention.attention")],
    ids=["fused", "own softmax", "torch"],
)
def test_each_way_of_attention_is_read(attach: Attach, listening: Collector, model: Any, name: str) -> None:
    found = reported(attach, listening, nn.Sequential(model(), nn.Linear(WIDTH, 2)), torch.randn(2, 8, WIDTH))

    assert list(found) == [name]
    assert found[name][0] > 0


def test_the_bound_is_that_of_the_largest_norms_and_names_their_head(attach: Attach, listening: Collector) -> None:
    model = Fused()
    with torch.no_grad():
        model.qkv.weight[WIDTH // HEADS : WIDTH] *= 50.0  # queries of head 1
    x = torch.randn(2, 8, WIDTH)
    q, k, _ = model.parts(x)

    logit, head = reported(attach, listening, nn.Sequential(model, nn.Linear(WIDTH, 2)), x)["0.attention"]

    norms = q.norm(dim=-1).amax(dim=(0, 2)) * k.norm(dim=-1).amax(dim=(0, 2)) / math.sqrt(WIDTH // HEADS)
    assert (logit, head) == (pytest.approx(float(norms.detach().max()), rel=1e-5), 1.0)
    assert logit >= float(real_logits(q, k).detach().max())


def test_torchs_own_module_has_the_same_bound(attach: Attach, listening: Collector) -> None:
    model, fused = OfTorch(), Fused()
    fused.qkv.load_state_dict({"weight": model.attention.in_proj_weight, "bias": model.attention.in_proj_bias})
    x = torch.randn(2, 8, WIDTH)
    q, k, v = fused.parts(x)
    expected = of_dot_product(q, k, v)

    found = reported(attach, listening, nn.Sequential(model, nn.Linear(WIDTH, 2)), x)

    assert expected is not None
    assert found["0.attention.attention"][0] == pytest.approx(float(expected[0]), rel=1e-5)


def test_keys_that_heads_share_are_compared_with_each_of_their_queries() -> None:
    q, k = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)
    k[:, 1] *= 10.0
    q[:, 2] *= 2.0

    found = of_dot_product(q, k, k, scale=1.0)

    assert found is not None
    assert (float(found[0]), float(found[1])) == (pytest.approx(2 * 10 * 8), 2.0)


def test_tensors_that_are_distributed_are_left_alone() -> None:
    class Distributed(torch.Tensor):
        placements = ()

    x = torch.randn(1, 2, 3, 4)
    logits = AttentionLogits()
    logits.see(0, of_dot_product, (x, x.as_subclass(Distributed), x), {})
    logits.see(1, of_dot_product, (x, x, x), {})

    assert logits.take()[0] == [1]


def test_a_plain_step_reads_nothing(attach: Attach, listening: Collector) -> None:
    model = nn.Sequential(Fused(), nn.Linear(WIDTH, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = attach(
        model, optimizer, endpoint=listening.endpoint, sampling=caboose.Sampling(1000, overhead_budget=1.0)
    )
    for _ in range(4):
        loss = model(torch.randn(2, 8, WIDTH)).pow(2).mean()
        loss.backward()
        optimizer.step()
        monitor.step(loss)

    assert all("attention_logit" not in report.arrays for report in listening.wait_for(StepReport, 4)[1:])
