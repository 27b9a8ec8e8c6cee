"""Two real gloo ranks under torchrun report to a real daemon process."""

import math
from pathlib import Path

import numpy as np
import pytest

from support.processes import DaemonProcess, wait_until
from support.training import finish, training

pytestmark = pytest.mark.slow


def watched(daemon: DaemonProcess, **extra: str) -> dict[str, str]:
    return {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": "train", **extra}


def test_a_job_is_seen_from_its_first_step_to_its_good_bye(daemon: DaemonProcess, tmp_path: Path) -> None:
    with training(tmp_path / "out", "--steps", "40", env=watched(daemon)) as job:
        ranks = finish(job, tmp_path / "out")
    assert wait_until(lambda: daemon.get("/api/v1/jobs/train")["state"] == "ended", 10)
    detail = daemon.get("/api/v1/jobs/train")
    assert detail["num_steps"] == 40
    assert detail["world"] == 2
    assert detail["wrapper"] == "DistributedDataParallel"
    assert detail["num_parameters"] == 16 * 32 + 32 + 32 + 1
    assert [rank["num_missed"] + rank["num_dropped"] for rank in detail["ranks"]] == [0, 0]
    assert detail["health"] == "ok"

    steps = daemon.get("/api/v1/jobs/train/series", points=1000)["steps"]
    assert [row["step"] for row in steps] == list(range(1, 41))
    for row, a, b in zip(steps, ranks[0]["losses"], ranks[1]["losses"], strict=True):
        own = [float.fromhex(a), float.fromhex(b)]
        assert row["loss"] == pytest.approx(sum(own) / 2, rel=1e-6)
        assert row["loss_min"] == pytest.approx(min(own), rel=1e-6)
        assert row["loss_max"] == pytest.approx(max(own), rel=1e-6)
    for row, norms in zip(steps, ranks[0]["norms"], strict=True):
        assert row["grad_norm"] == pytest.approx(math.hypot(*norms), rel=1e-6)


def test_the_rank_whose_batch_is_nan_is_named_though_the_all_reduce_spreads_it(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    arguments = ("--steps", "30", "--nan-rank", "1", "--nan-at", "17")
    with training(tmp_path / "out", *arguments, env=watched(daemon)) as job:
        ranks = finish(job, tmp_path / "out")
    assert math.isfinite(float.fromhex(ranks[0]["losses"][16])), "rank 0's own loss was fine on that step"
    assert np.isnan(ranks[0]["norms"][16]).all(), "but its gradients were not, after the all-reduce"
    findings = wait_until(lambda: daemon.get("/api/v1/jobs/train/findings")["findings"], 10)
    assert [f["rule"] for f in findings] == ["bad_batch", "non_finite"]
    finding = findings[1]
    assert finding["severity"] == "critical"
    assert (finding["onset_step"], finding["first"]["ranks"], finding["first"]["phase"]) == (17, [1], "input")
    assert 'caboose_non_finite_steps_total{training_job="train"} 14.0' in daemon.text("/metrics")


@pytest.mark.long
def test_a_rank_that_raises_is_shown_with_its_error(daemon: DaemonProcess, tmp_path: Path) -> None:
    with training(tmp_path / "out", "--steps", "400", "--raise-at", "12", env=watched(daemon)) as job:
        assert job.wait(90) == 1

    def failed() -> bool:
        ranks = daemon.get("/api/v1/jobs/train")["ranks"]
        return any(rank["rank"] == 1 and rank["state"] == "failed" for rank in ranks)

    assert wait_until(failed, 10)
    detail = daemon.get("/api/v1/jobs/train")
    assert detail["ranks"][1]["error"] == "RuntimeError: the loader found a broken shard"
    assert detail["state"] == "crashed"
