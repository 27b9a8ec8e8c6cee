"""A sharded run whose loss breaks for good is taken back on all ranks, and goes on as if nothing had happened."""

import statistics
from pathlib import Path

import pytest

from support.processes import running_daemon, wait_until
from support.rollback_runs import JOB, ask, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("how", [("fsdp2",), ("fsdp2", "--compiled"), ("ddp", "--compiled")])
def test_all_ranks_of_a_sharded_run_go_back_at_one_step(tmp_path: Path, how: tuple[str, ...]) -> None:
    with running_daemon(tmp_path, "--rollback", "auto") as daemon:
        options = ["--steps", "120", "--spike-at", "70", "--bad-steps", "8", "--snapshot-every", "10"]
        run = train(daemon, tmp_path, *options, "--sharding", *how, "--rollback", "auto", "--step-seconds", "0.2")

        assert run.returncode == 0, run.log
        (decision,) = ask(daemon, "decisions")["decisions"]
        detail = daemon.get(f"/api/v1/jobs/{JOB}")
        assert wait_until(lambda: ask(daemon, "incidents")["incidents"][-1]["state"] == "resolved", 5)
    assert decision["state"] == "committed", decision["explanation"]
    assert decision["num_answers"] == {"done": 2}
    assert [rank["num_rollbacks"] for rank in run.ranks] == [1, 1]
    assert run.ranks[0]["parameters"] == run.ranks[1]["parameters"], "every shard is of one state"
    before = statistics.fmean(run.losses[60:69])
    after = run.losses[decision["boundary"] :]
    assert max(run.losses[70:80]) > 1.5 * before
    assert not detail["blind"].keys() & {"activations", "some_activations"}, "also in compiled graphs"
    assert max(after) < 1.2 * before, "the curve goes on below the spike, from its first step on"
