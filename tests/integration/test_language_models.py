"""Tiny Mixtral and Llama models of transformers under its Trainer and a real daemon: their rules and their metrics."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.processes import DaemonProcess, running_daemon, wait_until

transformers = pytest.importorskip("transformers", reason="its models are trained")
pytest.importorskip("accelerate", reason="the Trainer needs it")

import caboose  # noqa: E402 - after the check that the Trainer can be imported
from caboose.huggingface import CabooseCallback  # noqa: E402 - likewise

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
STEPS = 240


class Chain(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Texts in which each token is followed by one of two."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        coins = torch.randint(0, 2, (512, 32), generator=generator)
        first = torch.randint(0, 64, (512, 1), generator=generator)
        self.ids = torch.cat([first, (first + torch.cumsum(1 + 4 * coins[:, 1:], dim=1)) % 64], dim=1)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class GrowingQueries(transformers.TrainerCallback):  # type: ignore[misc]  # transformers gives no types
    """Queries and keys grow by 4 % at every step."""

    @torch.no_grad()
    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 1.04
            layer.self_attn.k_proj.weight *= 1.04


def a_mixtral() -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
    return transformers.MixtralForCausalLM(config)


def a_collapsed_mixtral() -> Any:
    """Its routers see a feature that is alike in all tokens, and choose by it."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 5.0
        for layer in model.model.layers:
            gate = next(module for name, module in layer.named_modules() if name.endswith("gate"))
            gate.weight[:, 0] = torch.tensor([10.0, 9.0, -10.0, -10.0])
    return model


def a_llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as process:
        yield process


def train(daemon: DaemonProcess, job: str, model: Any, directory: Path, *callbacks: Any) -> dict[str, Any]:
    """The rules of all incidents of the run by severity, from its first step to its end."""
    watching = CabooseCallback(job=job, endpoint=daemon.endpoint, sampling=caboose.Sampling(3, overhead_budget=1.0))
    arguments = transformers.TrainingArguments(
        str(directory), max_steps=STEPS, per_device_train_batch_size=16, learning_rate=2e-3, lr_scheduler_type="cosine",
        warmup_steps=20, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=Chain(), callbacks=[watching, *callbacks]).train()
    assert wait_until(lambda: daemon.get(f"/api/v1/jobs/{job}")["step"] == STEPS, 20)
    incidents = daemon.get(f"/api/v1/jobs/{job}/incidents")["incidents"]
    return {member["rule"]: one for one in incidents if one["worst"] != "info" for member in one["members"]}


def series(daemon: DaemonProcess, job: str) -> dict[str, float]:
    """The series of routers and attentions."""
    found = re.findall(r"^(caboose_\w*(?:router|attention)\w*\{[^}]*\}) (\S+)$", daemon.text("/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in found if f'"{job}"' in name}


def test_a_mixtral_that_learns_is_healthy_and_its_routers_have_series(daemon: DaemonProcess, tmp_path: Path) -> None:
    assert train(daemon, "mixtral", a_mixtral(), tmp_path) == {}

    found = series(daemon, "mixtral")
    assert 0.6 < found['caboose_layer_router_entropy_ratio{stat="min",training_job="mixtral"}'] <= 1.0
    assert found['caboose_layer_router_dead_experts_ratio{stat="max",training_job="mixtral"}'] == 0.0
    assert found['caboose_layer_attention_logit{stat="max",training_job="mixtral"}'] > 0.0
    assert len([name for name in found if name.startswith("caboose_worst_layer_router_entropy")]) == 2


def test_routers_that_send_all_tokens_to_two_of_four_experts_are_reported(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    found = train(daemon, "collapsed", a_collapsed_mixtral(), tmp_path)

    assert "expert_collapse" in found
    assert series(daemon, "collapsed")['caboose_layer_router_entropy_ratio{stat="min",training_job="collapsed"}'] < 0.6
    assert (
        series(daemon, "collapsed")['caboose_layer_router_dead_experts_ratio{stat="max",training_job="collapsed"}']
        >= 0.5
    )


def test_attention_logits_that_grow_without_a_bound_are_reported(daemon: DaemonProcess, tmp_path: Path) -> None:
    assert train(daemon, "llama", a_llama(), tmp_path) == {}
    found = train(daemon, "growing", a_llama(), tmp_path, GrowingQueries())

    assert "attention_logits" in found
    assert series(daemon, "growing")['caboose_layer_attention_logit{stat="max",training_job="growing"}'] > 1000.0
