"""Every line of advice runs, and every remedy belongs to a cause."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import caboose
from caboose_daemon.diagnosis.advice import REMEDIES, Remedy
from caboose_daemon.diagnosis.causes import CAUSES
from support.advised import a_script, first_fixes

LINES = sorted({(remedy.line, cause) for cause, found in REMEDIES.items() for remedy in found})
NAMED = (
    *("ReduceLROnPlateau", "CyclicLR", "OneCycleLR", "CosineAnnealingLR", "LinearLR", "momentum=0.9", "spectral_norm"),
    *("orthogonal_", "nn.GRU", "huber_loss", "clip_grad_value_", "clip_grad_norm_", "patience", "models", "randperm"),
    *("requires_grad_(False)", "AdamW", "label_smoothing", "AveragedModel", "kaiming_normal_", "xavier_uniform_"),
    *("BatchNorm2d", "LayerNorm", "get_total_norm", "*= 3"),
    *("GroupNorm", "LeakyReLU", "Dropout", "bincount"),
)
"""What the usual guides to training name as fixes."""
FIRST_FIXES = first_fixes()
NO_LINE = frozenset({"converged", "rank_failed", "rank_hung", "risky_settings", "slow_rank"})
"""Causes whose first fix is no line of code, at least in some cases."""
OF_A_SHELL = ("caboose ", "free ", "nvidia-smi ", "torchrun ")
SHELL_LINES = sorted({line for _, line in FIRST_FIXES if line.startswith(OF_A_SHELL)})
PYTHON_LINES = [(cause, line) for cause, line in FIRST_FIXES if line and line not in SHELL_LINES]


@pytest.mark.parametrize(("line", "cause"), LINES)
def test_a_line_of_advice_runs_and_the_run_goes_on(line: str, cause: str) -> None:
    script = a_script()
    exec(line, script)

    assert cause in {each.id for each in CAUSES} or cause == "class_imbalance"
    loss = script["loss"]
    assert torch.isfinite(torch.as_tensor(loss)).all()
    if "scheduler =" in line:
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


# The first fix of each cause


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one rank, for lines that call a collective."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("cause", "line"), PYTHON_LINES)
def test_the_first_fix_of_a_cause_runs(cause: str, line: str, one_rank: None) -> None:
    script = a_script()
    if "monitor." in line:
        script["monitor"] = caboose.attach(script["model"], script["optimizer"], endpoint="tcp://127.0.0.1:9")
    if "add_param_group" in line:
        script["optimizer"] = torch.optim.SGD(script["model"][:2].parameters(), lr=0.1)
    try:
        exec(line, script)
    finally:
        if "monitor" in script:
            script["monitor"].close()

    assert "..." not in line, "to be filled in"


def test_a_first_fix_changes_something() -> None:
    """A line such as `momentum=0.9` runs and does nothing."""
    names = ("lr", "eps", "momentum", "betas", "weight_decay")
    assert [line for _, line in PYTHON_LINES if line.partition("=")[0].strip() in names] == []
    assert [line for _, line in PYTHON_LINES if line.startswith(("nn.Dropout(", "nn.Sequential(", "DataLoader("))] == []


def test_a_new_optimizer_keeps_the_learning_rate() -> None:
    made = {line for _, line in PYTHON_LINES if line.startswith("optimizer = ")}
    assert made
    assert [line for line in made if "lr=" not in line] == []


@pytest.mark.parametrize("line", SHELL_LINES)
def test_a_first_fix_for_a_shell_can_be_parsed_and_ends(line: str, tmp_path: Path) -> None:
    parsed = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, timeout=10, env=os.environ)
    assert parsed.returncode == 0, parsed.stderr
    assert "top;" not in line
    assert not line.endswith("iostat -x 1")


def test_every_cause_has_a_line_or_is_known_to_have_none() -> None:
    lines = {cause for cause, line in FIRST_FIXES if line}
    without = {cause.id for cause in CAUSES} - lines
    assert without <= NO_LINE
    assert {cause for cause, line in FIRST_FIXES if not line} <= NO_LINE
