"""`caboose-preflight module:function` finds the function, prints the checklist, and ends with its code."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from caboose.checklist.command import main
from caboose.trials.progress import ProgressLine
from support.processes import clean_environment, torchrun

MODULE = """
import torch

def parts():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    inputs = torch.randn(32, 4)
    return {
        "model": model,
        "loss_fn": torch.nn.CrossEntropyLoss(),
        "loader": [(inputs, (inputs[:, 0] > 0).long())],
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.02),
    }

def broken():
    return {**parts(), "optimizer": torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=0.02)}

def incomplete():
    return {"model": parts()["model"]}

def misspelt():
    return {**parts(), "validation": []}

def iterator():
    return {**parts(), "loader": iter([])}

def interrupted():
    raise KeyboardInterrupt

def raising():
    raise ValueError("out of memory")

def leaving():
    raise SystemExit(1)

class Gone(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        raise FileNotFoundError("/data/x.jpg")

def unreadable():
    return {**parts(), "loader": torch.utils.data.DataLoader(Gone())}

def talking():
    print("loading data")
    made = parts()
    def loss(model, batch):
        print("a step")
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    return {**made, "loss_fn": loss}

number = 3
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_training.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("my_training", None)


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


def test_a_healthy_run_ends_with_0(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("my_training:parts") == 0
    out = capsys.readouterr().out
    assert "ok   overfits" in out
    assert "-    overlap" in out
    assert "skipped: no validation loader" in out
    assert "fix: pass validation_loader=" in out


def test_a_failed_check_ends_with_1_and_json_is_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("my_training.py:broken", "--json", "--only", "gradient_flow,loss_falls") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "fail"
    assert [check["name"] for check in found["checks"]] == ["gradient_flow", "loss_falls"]
    assert set(found["checks"][0]) == {"name", "asks", "verdict", "number", "says", "fix"}


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("my_training", "is not module:function; write train:parts"),
        ("my_trainning:parts", "there is no module 'my_trainning'"),
        ("absent.py:parts", "there is no file absent.py"),
        ("my_training:number", "has no function 'number'"),
        ("my_training:incomplete", "returned no 'loss_fn'; it returned model"),
        ("my_training:misspelt", "returned 'validation', which is none of model"),
        ("my_training:iterator", "cannot be put back"),
        ("my_training:leaving", "my_training:leaving called sys.exit(1)"),
    ],
)
def test_what_is_wrong_with_the_target_is_said(
    directory: Path, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    assert ended(target) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("caboose preflight: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("target", "says"),
    [("raising", "ValueError: out of memory"), ("unreadable", "FileNotFoundError: /data/x.jpg")],
)
def test_what_the_users_code_raises_is_shown_where_it_was_raised_and_is_no_failed_check(
    directory: Path, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    assert ended(f"my_training:{target}", "--json") == 2
    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert "my_training.py" in captured.err
    assert says in captured.err
    assert captured.out == ""


def test_a_module_that_cannot_be_imported_is_no_failed_check(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "my_broken_training.py").write_text("import nothing_of_this_name")
    assert ended("my_broken_training:parts") == 2
    assert "No module named 'nothing_of_this_name'" in capsys.readouterr().err


def test_what_the_users_code_prints_is_no_part_of_the_report(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("my_training:talking", "--json", "--only", "loss_falls") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] == "pass"
    assert captured.err.startswith("loading data\na step\n")


def test_ctrl_c_ends_with_130(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("my_training:interrupted") == 130


def test_strict_counts_warnings(directory: Path) -> None:
    assert ended("my_training:parts", "--strict", "--only", "lr_logged") == 0
    # Of another length: else what was compiled within the same second would be taken for it.
    (directory / "my_training.py").write_text(MODULE.replace("lr=0.02", "lr=30.00"))
    sys.modules.pop("my_training", None)
    assert ended("my_training.py:parts", "--only", "loss_falls") == 0
    assert ended("my_training.py:parts", "--only", "loss_falls", "--strict") == 1


def test_the_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 14


def test_help_has_an_example_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--help") == 0
    out = capsys.readouterr().out
    assert "caboose preflight train:parts" in out
    assert "Exit codes" in out


RANKS = """
import torch

def parts():
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    inputs = torch.randn(32, 4)
    if torch.distributed.get_rank() == 1:
        inputs[3, 2] = torch.nan
    return {
        "model": model,
        "loss_fn": lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0].nan_to_num()), batch[1]),
        "loader": [(inputs, (inputs[:, 0] > 0).long())],
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.02),
    }
"""


@pytest.mark.slow
def test_what_another_rank_found_is_printed_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "on_ranks.py").write_text(RANKS)
    process = subprocess.run(
        torchrun("caboose.checklist.command", "on_ranks.py:parts", "--only", "inputs,lr_logged"),
        capture_output=True,
        text=True,
        timeout=90,
        cwd=tmp_path,
        env=clean_environment(COLUMNS="110"),
    )
    assert process.stdout.count("FAIL inputs") == 1, process.stderr
    assert "on rank 1: 1 of 128 inputs are NaN or infinite" in process.stdout
    assert "fix: clean the data, or mask what is missing" in process.stdout
    assert process.returncode == 1


@pytest.mark.parametrize("is_shown", [True, None])
def test_the_progress_bar_is_for_terminals_and_goes_when_it_is_done(is_shown: bool | None) -> None:
    stream = io.StringIO()
    with ProgressLine(4, is_shown=is_shown, stream=stream) as bar:
        bar.show("loss falls", 2)
    shown = stream.getvalue()
    assert ("[============            ]  50%  loss falls" in shown) is bool(is_shown)
    assert shown.endswith("\r\x1b[K") or not shown


def test_without_torch_command_and_tools_say_what_they_miss() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import caboose\n"
        "try: caboose.preflight\nexcept RuntimeError as error: print(error)\n"
        "from caboose.checklist.command import main; main(['a:b'])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=clean_environment()
    )
    assert process.stdout == "caboose.preflight needs torch, which is not installed here\n"
    assert process.stderr == "caboose preflight: torch is not installed here; run it where the training runs\n"
    assert process.returncode == 2
