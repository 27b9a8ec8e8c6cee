"""Routers of mixture-of-experts layers: found by structure, and what they choose counted on sampled steps."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import caboose
from caboose.observe.routers import MIN_EXPECTED, WINDOW, Router, Routers, find_routers
from caboose_drills.experts import ExpertNet
from caboose_wire import Hello, StepReport
from support.collector import Collector

Attach = Callable[..., caboose.Monitor]
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
}


class OwnLayer(nn.Module):
    """Experts whose router no structure shows: it is called inside and returns what it chose."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.choose = Chooser()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        _, chosen = self.choose(x)
        return x * (1.0 + 0.0 * chosen.to(x.dtype))


class Chooser(nn.Module):
    """Sends every token to the last of four."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(dim=-1, keepdim=True) * self.scale, torch.full((*x.shape[:-1], 1), 3)


def train(model: nn.Module, monitor: caboose.Monitor, batch: Callable[[], torch.Tensor], steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        output = model(batch())
        loss = getattr(output, "logits", output).pow(2).mean()
        loss.backward()
        optimizer.zero_grad()
        monitor.step(loss)


def every_step(attach: Attach, listening: Collector, model: nn.Module) -> caboose.Monitor:
    sampling = caboose.Sampling(1, overhead_budget=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return attach(model, optimizer, endpoint=listening.endpoint, sampling=sampling)


def values(listening: Collector, name: str, report: StepReport) -> dict[str, float]:
    """Of the modules that have one."""
    modules = listening.wait_for(Hello)[-1].modules
    found = zip(modules, report.arrays.get(name, ()), strict=False)
    return {module.name: float(value) for module, value in found if value >= 0}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_routers_of_transformers_are_recognised_and_read(attach: Attach, listening: Collector, family: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **FAMILIES[family]})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    assert [router for _, router in find_routers(model)] == [Router(4, 2)] * 2

    train(model, every_step(attach, listening, model), lambda: torch.randint(64, (4, 32)), WINDOW)

    report = listening.wait_for(StepReport, WINDOW)[-1]
    entropies = values(listening, "router_entropy", report)
    assert list(entropies) == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
    assert all(0.0 < entropy <= 1.0 + 1e-6 for entropy in entropies.values())
    assert set(values(listening, "router_dead", report).values()) <= {0.0, 0.25, 0.5}


@pytest.mark.slow
def test_a_dense_model_has_none(attach: Attach, listening: Collector) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))

    assert list(find_routers(model)) == []


def test_a_gate_beside_a_list_of_experts_is_a_router() -> None:
    model = ExpertNet(4, 3, num_experts=8, depth=2)

    assert [router for _, router in find_routers(model)] == [Router(8, 1)] * 2


def test_a_gate_whose_number_of_choices_is_unknown_is_not_read() -> None:
    model = ExpertNet(4, 3)
    for layer in model.layers:
        layer.top_k = None  # type: ignore[assignment]  # as in a model that has it in its code

    assert list(find_routers(model)) == []


def test_shares_are_those_of_the_tokens(attach: Attach, listening: Collector) -> None:
    model = ExpertNet(4, 3, num_experts=4, depth=1)
    layer = model.layers[0]
    with torch.no_grad():
        layer.norm.weight.zero_()
        layer.norm.bias.copy_(torch.ones(32))
        layer.gate.weight.zero_()
        layer.gate.weight[2] = 1.0  # every sample has the same inputs here, and expert 2 the largest logit

    train(model, every_step(attach, listening, model), lambda: torch.randn(64, 4), WINDOW)

    name = "blocks.0.gate"
    report = listening.wait_for(StepReport, WINDOW)[-1]
    found = {
        each: values(listening, f"router_{each}", report)[name] for each in ("entropy", "share", "busiest", "dead")
    }
    assert found == {"entropy": 0.0, "share": 1.0, "busiest": 2.0, "dead": 0.75}
    assert listening.wait_for(Hello)[-1].modules[[m.name for m in listening.wait_for(Hello)[-1].modules].index(name)]


def test_a_named_router_is_read(attach: Attach, listening: Collector) -> None:
    model = nn.Sequential(OwnLayer(), nn.Linear(8, 2))
    monitor = every_step(attach, listening, model)
    monitor.watch_router(model[0].choose, num_experts=4, top_k=1)

    train(model, monitor, lambda: torch.randn(64, 8), WINDOW)

    report = listening.wait_for(StepReport, WINDOW)[-1]
    assert values(listening, "router_busiest", report) == {"0.choose": 3.0}
    assert values(listening, "router_dead", report) == {"0.choose": 0.75}


@pytest.mark.parametrize(
    "numbers", [{}, {"num_experts": 4}, {"num_experts": 1, "top_k": 1}, {"num_experts": 2, "top_k": 3}]
)
def test_a_router_without_its_numbers_is_refused(attach: Attach, listening: Collector, numbers: dict[str, int]) -> None:
    model = nn.Sequential(OwnLayer(), nn.Linear(8, 2))
    monitor = every_step(attach, listening, model)

    with pytest.raises(ValueError, match="watch_router"):
        monitor.watch_router(model[0].choose, **numbers)


def test_a_disabled_monitor_takes_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABOOSE_DISABLED", "1")
    model = nn.Linear(2, 2)

    caboose.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)).watch_router(model)


def taken(routers: Routers, output: Any) -> dict[str, Any]:
    routers.see(0, output)
    return {name: float(found[0]) for _, arrays in routers.take() for name, found in arrays.items()}


def test_choices_that_are_no_expert_do_not_count() -> None:
    """Some kernels mark a dropped token by -1, or send it to one expert more than there are."""
    routers = Routers()
    routers.add(0, Router(4, 1))

    assert taken(routers, torch.tensor([[-1], [4], [1], [1]]))["router_share"] == 1.0


def test_logits_choose_the_largest_ones() -> None:
    routers = Routers()
    routers.add(0, Router(4, 2))

    found = taken(routers, torch.tensor([[0.1, 3.0, 2.0, 0.0], [0.1, 3.0, 2.0, 0.0]]))

    assert (found["router_share"], found["router_entropy"]) == pytest.approx((0.5, math.log(2) / math.log(4)))


def test_few_tokens_say_nothing_about_dead_experts() -> None:
    routers = Routers()
    routers.add(0, Router(4, 1))
    few = [taken(routers, torch.zeros(MIN_EXPECTED * 4 // WINDOW - 1, 1, dtype=torch.long)) for _ in range(WINDOW)]
    enough = [taken(routers, torch.zeros(MIN_EXPECTED * 4 // WINDOW, 1, dtype=torch.long)) for _ in range(WINDOW)]

    assert "router_dead" not in few[-1]
    assert ("router_dead" in enough[-2], enough[-1]["router_dead"]) == (False, 0.75)
