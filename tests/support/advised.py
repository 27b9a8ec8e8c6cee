"""A small training script, as far as a line of advice needs one, and every line that the causes give as a first fix."""

import copy
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.causes import CAUSES
from caboose_daemon.diagnosis.causes.risky_settings import NAMES
from caboose_daemon.diagnosis.sample_history import MemoryUse
from support.cases import a_case, a_finding, a_group

OPTIMIZERS = (
    (),
    (a_group("SGD", momentum=0.99, weight_decay=0.1),),
    (a_group("Adam", weight_decay=0.1, betas="(0.99, 0.999)"),),
    (a_group("AdamW", weight_decay=0.5),),
)
FACTS: tuple[Mapping[str, Any], ...] = (
    {},
    {"num_parameters": 1000, "num_trainable": 1000, "dropout": "0.3", "kinds": "Tanh"},
    {"num_parameters": 1000, "dropout": "0.9", "num_workers": 2, "batch_size": 64, "linear_pairs": 1},
    {"never_steps": True, "loss_mistake": "no_log", "num_workers": 0},
    {"loss_mistake": "over_batch", "device_memory_bytes": 100},
)
FULL = (MemoryUse(attempt=1, step=1, device=99),)
CURVES = {"loss": [1.0] * 5, "lr": [1e-3] * 5}
PHASES = ("", "data", "loss", "forward")
VALUES: Mapping[str, tuple[Mapping[str, float], ...]] = {
    "config_advice": ({}, *({name: 1.0} for name in NAMES)),
    "lr_schedule": ({}, {"jump": 1.0, "before": 1e-3, "lr": 1e-2}),
    "metric_divergence": ({}, {"equal": 3.0}, {"stalled": 1.0}),
    "lr_too_low": ({}, {"update_ratio": 1e-7}),
}


def a_script() -> dict[str, Any]:
    """The names of a small training script, after the first backward."""
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict({"0": nn.Linear(8, 16), "1": nn.ReLU(), "head": nn.Linear(16, 3)}))
    inputs, targets = torch.randn(32, 8), torch.arange(32) % 3
    dataset = TensorDataset(inputs, targets)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    logits = model(inputs)
    loss = F.cross_entropy(logits, targets)
    loss.backward(retain_graph=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss)
    return {
        **{name: getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW")},
        **{name: getattr(lr_scheduler, name) for name in ("CosineAnnealingLR", "LinearLR", "MultiStepLR")},
        "torch": torch,
        "nn": nn,
        "F": F,
        "itertools": itertools,
        "dist": torch.distributed,
        "device": "cpu",
        "DataLoader": DataLoader,
        "Subset": Subset,
        "DistributedSampler": DistributedSampler,
        "WeightedRandomSampler": WeightedRandomSampler,
        "model": model,
        "target": copy.deepcopy(model),
        "models": [nn.Linear(8, 3) for _ in range(3)],
        "inputs": inputs,
        "targets": targets,
        "batch": inputs,
        "mean": inputs.mean(),
        "std": inputs.std(),
        "x": torch.randn(4, 16),
        "linear": nn.Linear(16, 16),
        "norm": nn.LayerNorm(16),
        "layer": model[0],
        "p": torch.rand(4),
        "labels": targets,
        "counts": torch.bincount(targets),
        "names": ["a", "b", "c"],
        "show": str,
        "dataset": dataset,
        "train_set": dataset,
        "loader": DataLoader(dataset, 8),
        "validate": lambda model, data=dataset: model(torch.stack([sample for sample, _ in data])).mean(),
        "optimizer": optimizer,
        "scheduler": lr_scheduler.StepLR(optimizer, 10),
        "scaler": scaler,
        "checkpoint": {"scheduler": lr_scheduler.StepLR(optimizer, 10).state_dict()},
        "loss_fn": nn.CrossEntropyLoss(),
        "logits": logits,
        "outputs": logits,
        "values": torch.randn(32, 3),
        "loss": loss,
        "losses": [],
        "balancing_loss": torch.tensor(1.0),
        "is_bad": torch.tensor(0),
        "val_loss": 1.0,
        "accuracy": 0.5,
        "lr": 0.01,
        "step": 4,
        "steps": 100,
        "total_steps": 100,
        "hidden": 64,
        **dict.fromkeys("nmiho", 16),
        "R": 0,
        "best": 2.0,
        "waited": 0,
        "patience": 3,
    }


def cases(cause: Cause) -> Iterator[Case]:
    """Incidents of every rule that the cause explains, in runs of several kinds."""
    rules = sorted({*cause.explains, *(VALUES.keys() & cause.explains)})
    for rule, groups, facts in itertools.product(rules, OPTIMIZERS, FACTS):
        for values, phase in itertools.product(VALUES.get(rule, ({},)), PHASES):
            found = a_finding(rule, layers=("0.weight",), phase=phase, values=dict(values))
            yield a_case(found, curves=CURVES, groups=groups, facts=facts, memory_use=FULL)


def first_fixes() -> list[tuple[str, str]]:
    """Each line with its cause."""
    return sorted({(cause.id, cause.advise(case).code) for cause in CAUSES for case in cases(cause)})
