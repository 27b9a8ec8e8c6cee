"""`caboose preflight` and `caboose inspect` run the agent's tools on a project's parts."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from caboose import inspect_command
from support.processes import caboose_command, clean_environment

MODULE = """
import torch

def parts():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    batches = [torch.randn(32, 4) for _ in range(4)]
    return {
        "model": model,
        "loss_fn": torch.nn.CrossEntropyLoss(),
        "loader": [(inputs, (inputs[:, 0] > 0).long()) for inputs in batches],
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.02),
    }

def with_nan():
    made = parts()
    made["loader"][0][0][3, 1] = float("nan")
    return made
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        caboose_command(*arguments), capture_output=True, text=True, timeout=120, cwd=directory, env=clean_environment()
    )


def test_both_are_commands_of_the_main_program(project: Path) -> None:
    overview = ran(project, "--help").stdout
    assert "caboose preflight" in overview
    assert "caboose inspect" in overview
    done = ran(project, "preflight", "own_parts.py:parts", "--only", "inputs,targets", "--json")
    assert done.returncode == 0, done.stderr
    assert [line["name"] for line in json.loads(done.stdout)["checks"]] == ["inputs", "targets"]
    done = ran(project, "inspect", "gradients", "own_parts.py:parts", "--plot", "flow.png")
    assert done.returncode == 0, done.stderr
    assert "gradients look healthy" in done.stdout
    assert (project / "flow.png").read_bytes().startswith(b"\x89PNG")
    assert ran(project, "preflight", "nothing.py:parts").returncode == 2


@pytest.mark.parametrize("tool", sorted(inspect_command.TOOLS))
def test_each_tool_runs(project: Path, tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--num-steps", "60", "--json"]
    assert inspect_command.run([tool, "own_parts.py:parts", *options]) == 0
    assert json.loads(capsys.readouterr().out)


def test_what_is_found_is_in_the_exit_code(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_command.run(["nan", "own_parts.py:with_nan"]) == 1
    assert "holds NaN or infinity, in sample 3 of 32" in capsys.readouterr().out


def test_a_checkpoint_is_loaded_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {"0.weight": torch.zeros(32, 4), "0.bias": torch.full((32,), -1.0)}
    weights |= {"2.weight": torch.zeros(2, 32), "2.bias": torch.zeros(2)}
    torch.save({"epoch": 3, "model": weights}, project / "step.pt")
    assert inspect_command.run(["activations", "own_parts.py:parts", "--checkpoint", "step.pt"]) == 1
    assert "dead" in capsys.readouterr().out
    torch.save({"other": torch.zeros(1)}, project / "other.pt")
    with pytest.raises(Exception, match="it holds no weights of this model"):
        inspect_command.run(["activations", "own_parts.py:parts", "--checkpoint", "other.pt"])
