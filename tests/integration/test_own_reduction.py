"""An optimizer that reduces the gradients itself: no norm of one rank is shown as that of the whole."""

from pathlib import Path
from typing import Any

import pytest

from support.processes import DaemonProcess, wait_until
from support.training import JOBS, training

pytestmark = [pytest.mark.slow, pytest.mark.long]

LAST = 60
ON_RANKS = {"gradient_explosion", "rank_outlier", "replica_desync", "gradient_vanishing", "frozen_parameters"}


CASES = [(2, 5), (2, 0), (4, 30)]


@pytest.mark.parametrize(("ranks", "num_equal"), CASES)
def test_norms_of_gradients_that_are_each_ranks_own_are_not_shown(
    daemon: DaemonProcess, tmp_path: Path, ranks: int, num_equal: int
) -> None:
    # Without a budget: four ranks on two cores would take norms on every second step.
    env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": "own", "CABOOSE_OVERHEAD_BUDGET": "1"}
    script = JOBS / "own_reduction.py"
    with training(tmp_path, str(num_equal), "600", env=env, ranks=ranks, script=script):
        assert wait_until(lambda: daemon.step("own") == LAST, 90), (tmp_path / "job.log").read_text()
        detail: Any = daemon.get("/api/v1/jobs/own")
        rows = daemon.get("/api/v1/jobs/own/series", points=1000)["steps"]
        layers = daemon.get("/api/v1/jobs/own/layers")
        metrics = daemon.text("/metrics")
    assert [row["step"] for row in rows if row["grad_norm"] is not None] == list(range(1, num_equal + 1))
    assert "gradient_norm" in detail["blind"]
    assert "caboose_gradient_norm{" not in metrics
    assert "layer_gradient_norm{" not in metrics
    assert 'job="own"' in metrics
    assert layers
    found = {finding["rule"] for finding in daemon.get("/api/v1/jobs/own/findings")["findings"]}
    assert not found & ON_RANKS
