"""Every line of advice runs, and every remedy belongs to a cause."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from caboose_daemon.diagnosis.advice import REMEDIES, Remedy
from caboose_daemon.diagnosis.causes import CAUSES

LINES = sorted({(remedy.line, cause) for cause, found in REMEDIES.items() for remedy in found})
NAMED = (
    *("ReduceLROnPlateau", "CyclicLR", "OneCycleLR", "CosineAnnealingLR", "LinearLR", "momentum=0.9", "spectral_norm"),
    *("orthogonal_", "nn.GRU", "huber_loss", "clip_grad_value_", "clip_grad_norm_", "patience", "models", "randperm"),
    *("requires_grad_(False)", "AdamW", "label_smoothing", "AveragedModel", "kaiming_normal_", "xavier_uniform_"),
    *("BatchNorm2d", "LayerNorm", "get_total_norm", "*= 3"),
    *("GroupNorm", "LeakyReLU", "Dropout", "bincount"),
)
"""What the usual guides to training name as fixes."""


def a_script() -> dict[str, Any]:
    """The names of a small training script, after the first backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    inputs, targets = torch.randn(32, 8), torch.arange(32) % 3
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    logits = model(inputs)
    loss = F.cross_entropy(logits, targets)
    loss.backward(retain_graph=True)
    models = [nn.Linear(8, 3) for _ in range(3)]
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "model": model,
        "inputs": inputs,
        "targets": targets,
        "dataset": dataset,
        "loader": torch.utils.data.DataLoader(dataset, 8),
        "optimizer": optimizer,
        "logits": logits,
        "outputs": logits,
        "values": torch.randn(32, 3),
        "loss": loss,
        "val_loss": 1.0,
        "lr": 0.01,
        "step": 4,
        "steps": 100,
        "models": models,
        "best": 2.0,
        "waited": 0,
        "patience": 3,
    }


@pytest.mark.parametrize(("line", "cause"), LINES)
def test_a_line_of_advice_runs_and_the_run_goes_on(line: str, cause: str) -> None:
    script = a_script()
    exec(line, script)

    assert cause in {each.id for each in CAUSES} or cause == "class_imbalance"
    loss = script["loss"]
    assert torch.isfinite(torch.as_tensor(loss)).all()
    if "scheduler" in script:
        rates = [group["lr"] for group in script["optimizer"].param_groups]
        for _ in range(10):
            script["optimizer"].step()
            script["scheduler"].step(*([1.0] if "Plateau" in line else []))
        assert rates
        assert all(group["lr"] > 0 for group in script["optimizer"].param_groups)


def test_every_usual_fix_is_advised_for_some_cause() -> None:
    text = " ".join(remedy.line for found in REMEDIES.values() for remedy in found)
    assert [name for name in NAMED if name not in text] == []


def test_remedies_are_sentences_with_a_line_and_none_is_listed_twice_for_a_cause() -> None:
    for found in REMEDIES.values():
        assert len(set(found)) == len(found)
        assert all(isinstance(one, Remedy) and one.what and one.line for one in found)
    lines = [remedy.line for remedy in set(itertools.chain(*REMEDIES.values()))]
    assert len(lines) == len(set(lines))
