"""`caboose try` trains both sides for real, says whether the change helped, and keeps the verdict."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from caboose_daemon.offline.trying.judging import judge
from support.processes import DaemonProcess, caboose_command, clean_environment, wait_until
from support.ranks import a_report, simulated_ranks

PARTS = """
import torch

def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 8, generator=generator)
    y = (x @ torch.arange(8.0)).unsqueeze(1) + 0.1 * torch.randn(512, 1, generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)

def parts(lr=0.05):
    model = torch.nn.Linear(8, 1)
    return {
        "model": model,
        "loss_fn": torch.nn.functional.mse_loss,
        "loader": data(),
        "validation_loader": data(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
    }

def diverging():
    return parts(lr=1.0)

def slow():
    return parts(lr=1e-4)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PARTS)
    torch.save({"model": {"weight": torch.zeros(1, 8), "bias": torch.zeros(1)}}, tmp_path / "start.pt")
    return tmp_path


def tried(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        caboose_command("try", *arguments),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=directory,
        env=clean_environment(),
        check=False,
    )


def curves(losses: list[float], others: list[float], **of_both: Any) -> dict[str, Any]:
    side = {"norms": [1.0], "validation": None, "changes": [], "start": "x", "seconds": 1.0, "broke_at": None}
    return {
        "changes": ["lr=0.5x"],
        "without": {**side, "losses": losses, **of_both},
        "with": {**side, "losses": others, **of_both},
    }


@pytest.mark.slow
def test_a_change_that_helps_is_said_to_help_from_a_checkpoint(project: Path) -> None:
    arguments = ("train.py:slow", "--change", "lr=100x", "--steps", "60", "--checkpoint", "start.pt")
    before = (project / "start.pt").read_bytes()
    done = tried(project, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "helped"
    assert answer["without"]["start"] == "start.pt: weights; the optimizer starts new"
    assert answer["with"]["losses"][0] == answer["without"]["losses"][0], "both sides start alike"
    assert answer["relative_change"][1] < -0.5
    assert answer["with"]["validation"] < answer["without"]["validation"]
    assert (project / "start.pt").read_bytes() == before


@pytest.mark.slow
@pytest.mark.long
def test_a_change_that_hurts_and_one_that_saves_a_run_that_breaks(project: Path) -> None:
    worse = tried(project, "train.py:parts", "--change", "lr=0.01x", "--steps", "40")
    assert worse.returncode == 1
    assert "it made things worse" in worse.stdout
    saved = tried(project, "train.py:diverging", "--change", "lr=0.05x", "--change", "clip=10", "--steps", "200")
    assert saved.returncode == 0, saved.stdout + saved.stderr
    assert "it helped" in saved.stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("colour=red", "NAME one of lr, weight_decay"),
        ("lr=fast", "is no number"),
        ("dropout=0.5", "the model has no dropout module"),
        ("optimizer=Magic", "name a class of torch.optim"),
    ],
)
def test_a_change_that_cannot_be_made_is_one_line(project: Path, change: str, message: str) -> None:
    done = tried(project, "train.py:parts", "--change", change, "--steps", "20")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_verdict_is_kept_and_found_for_a_similar_incident_of_another_job(
    project: Path, daemon: DaemonProcess
) -> None:
    with (
        simulated_ranks(daemon.endpoint, 1, {"job": "first"}) as one,
        simulated_ranks(daemon.endpoint, 1, {"job": "second"}) as other,
    ):
        for step in range(1, 31):
            for rank in (*one, *other):
                rank.send(a_report(step, loss=float("nan") if step >= 25 else 2.0))
        for job in ("first", "second"):
            assert wait_until(lambda job=job: daemon.get(f"/api/v1/jobs/{job}/incidents")["incidents"], 10)
    token = ("--token-file", str(daemon.data_dir / "token"), "--daemon", daemon.url)
    kept = tried(
        project, "train.py:diverging", "--change", "lr=0.05x", "--steps", "60", "--incident", "first/1", *token
    )
    assert kept.returncode == 0, kept.stderr

    asked = caboose_command("history", "--like", "second/1", "--json", "--daemon", daemon.url)
    done = subprocess.run(asked, capture_output=True, text=True, env=clean_environment(), check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["tried"]
    assert (row["job"], row["change"], row["verdict"], row["incident"]) == ("first", "lr=0.05x", "helped", "first/1")


def test_equal_curves_have_no_effect_and_a_small_difference_is_the_same() -> None:
    losses = [2.0 - 0.001 * step for step in range(100)]
    assert judge(curves(losses, losses)).verdict == "same"
    assert judge(curves(losses, [1.001 * loss for loss in losses])).verdict == "same"


def test_noise_alone_is_no_verdict_and_validation_may_contradict() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(100, generator=generator).tolist()
    losses = [2.0] * 100
    assert judge(curves(losses, [2.0 + 0.8 * value for value in noise])).verdict == "unknown"
    contradicted = curves(losses, [1.5] * 100)
    contradicted["without"]["validation"], contradicted["with"]["validation"] = 2.0, 2.5
    assert judge(contradicted).verdict == "mixed"


def test_a_loss_that_grows_by_orders_of_magnitude_is_compared_by_its_ratio() -> None:
    growing = [2.0 * 1.3**step for step in range(60)]
    assert judge(curves(growing, [2.0 - 0.01 * step for step in range(60)])).verdict == "helped"
    assert judge(curves([2.0 - 0.01 * step for step in range(60)], growing)).verdict == "hurt"


def test_a_side_that_breaks_has_lost() -> None:
    broken = curves([2.0] * 50, [2.0] * 50)
    broken["with"]["broke_at"] = 31
    assert judge(broken).verdict == "hurt"
    broken["without"]["broke_at"] = 20
    assert judge(broken).verdict == "same"
    broken["with"]["broke_at"] = None
    assert judge(broken).verdict == "helped"
