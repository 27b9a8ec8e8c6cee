"""`caboose diagnose JOB --now` tests five hypotheses on real runs, of a daemon and of its journal."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.processes import DaemonProcess, caboose_command, clean_environment, running_daemon, wait_until

SUPPORTED = {
    "none": {"normal_convergence"},
    "cached": {"same_number"},
    "decayed": {"decayed_schedule"},
    "overfits": {"overfit_or_stale"},
    "old_checkpoint": {"same_number", "overfit_or_stale"},
}
PARTS = """
import torch

def data():
    x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    return [(x, 2 * x)]

def parts():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    return {
        "model": model,
        "loss_fn": torch.nn.functional.mse_loss,
        "loader": data(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
    }
"""


def caboose(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        caboose_command(*arguments),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=directory,
        env=clean_environment(),
        check=False,
    )


def verdicts(answer: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["verdict"] for one in answer["hypotheses"]}


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that has one real training of each kind."""
    with running_daemon(tmp_path_factory.mktemp("nights")) as daemon:
        job = [sys.executable, "-m", "support.jobs.night", *SUPPORTED]
        subprocess.run(job, env=clean_environment(CABOOSE_ENDPOINT=daemon.endpoint), check=True, timeout=400)
        for fault in SUPPORTED:
            assert wait_until(lambda fault=fault: daemon.get(f"/api/v1/jobs/{fault}")["state"] == "ended", 10)
        yield daemon


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("fault", SUPPORTED)
def test_each_night_has_its_verdict_alike_from_the_daemon_and_from_its_journal(
    nights: DaemonProcess, tmp_path: Path, fault: str
) -> None:
    done = caboose(tmp_path, "diagnose", fault, "--now", "--json", "--daemon", nights.url)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = verdicts(answer)
    assert {name for name, verdict in found.items() if verdict == "supported"} == SUPPORTED[fault], answer
    assert all(one["evidence"] or one["missing"] for one in answer["hypotheses"])
    assert all(bool(one["do"]) == (one["verdict"] == "supported") for one in answer["hypotheses"])
    past = caboose(tmp_path, "diagnose", f"{nights.data_dir}/journal.sqlite:{fault}", "--now", "--json")
    assert verdicts(json.loads(past.stdout)) == found


@pytest.mark.slow
def test_the_page_names_verdicts_evidence_and_what_is_missing(nights: DaemonProcess, tmp_path: Path) -> None:
    done = caboose(tmp_path, "diagnose", "cached", "--now", "--daemon", nights.url)

    assert done.returncode == 0, done.stderr
    for text in ("validation returns the same number: supported", "are all exactly", "do not", "refuted", "training"):
        assert text in done.stdout, text


@pytest.mark.slow
@pytest.mark.long
def test_the_smallest_eigenvalue_on_a_checkpoint_decides_the_saddle(nights: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PARTS)
    for name, weight in (("saddle", 0.0), ("minimum", 2.0**0.5)):
        torch.save({f"{i}.weight": torch.full((1, 1), weight) for i in range(2)}, tmp_path / f"{name}.pt")

    def at(name: str) -> dict[str, Any]:
        measured = ("--parts", "train.py:parts", "--checkpoint", f"{name}.pt")
        done = caboose(tmp_path, "diagnose", "none", "--now", *measured, "--json", "--daemon", nights.url)
        assert done.returncode == 0, done.stderr
        return next(one for one in json.loads(done.stdout)["hypotheses"] if one["id"] == "flat_region")

    assert at("saddle")["verdict"] == "supported"
    assert "smallest eigenvalue -" in " ".join(at("saddle")["evidence"])
    assert at("minimum")["verdict"] == "refuted"


@pytest.mark.slow
@pytest.mark.long
def test_parts_that_cannot_be_read_are_one_line(nights: DaemonProcess, tmp_path: Path) -> None:
    arguments = ("diagnose", "none", "--now", "--daemon", nights.url)
    done = caboose(tmp_path, *arguments, "--parts", "gone.py:parts", "--checkpoint", "x.pt")
    assert done.returncode == 2
    assert "there is no file gone.py" in done.stderr
    alone = caboose(tmp_path, *arguments, "--parts", "gone.py:parts")
    assert alone.returncode == 2
    assert "--parts and --checkpoint go together" in alone.stderr
