"""A rank's own gradients are seen before the all-reduce, on sampled steps only."""

import json
from pathlib import Path

import numpy as np
import pytest

from caboose_wire import StepReport
from support.collector import Collector
from support.training import finish, training


@pytest.mark.slow
def test_local_norms_are_the_ones_each_rank_computes_alone(listening: Collector, tmp_path: Path) -> None:
    env = {"CABOOSE_ENDPOINT": listening.endpoint, "CABOOSE_JOB": "train"}
    with training(tmp_path, "--steps", "21", "--sample-every", "10", env=env) as job:
        ranks = finish(job, tmp_path)
    reports = listening.wait_for(StepReport, 42)
    local = [r for r in reports if "local_grad_norm" in r.arrays]
    assert sorted({r.step for r in local}) == [1, 11, 21], "every tenth step, as the job asked"
    assert len(local) == 6
    for step in (1, 11, 21):
        seen = [r.arrays["local_grad_norm"] for r in local if r.step == step]
        own = [np.array(json.loads(json.dumps(rank["local"]))[str(step)]) for rank in ranks]
        if not np.allclose(seen[0], own[0], rtol=1e-5):
            seen.reverse()
        np.testing.assert_allclose(seen, own, rtol=1e-5)
        assert not np.allclose(own[0], own[1]), "the ranks' gradients do differ"
