"""A daemon that dies in mid-run changes nothing in the run, and one that comes back picks the job up again."""

import time
from pathlib import Path

import pytest

from support.processes import running_daemon, wait_until
from support.training import finish, training

pytestmark = pytest.mark.slow
STEPS = 250


def test_the_run_is_bit_identical_and_a_restarted_daemon_goes_on_with_its_history(tmp_path: Path) -> None:
    arguments = ("--steps", str(STEPS), "--step-seconds", "0.06")  # ranks try to reconnect every 5 s
    with training(tmp_path / "bare", "--steps", str(STEPS), env={"CABOOSE_DISABLED": "1"}) as job:
        bare = finish(job, tmp_path / "bare")

    with running_daemon(tmp_path / "daemon") as first:
        env = {"CABOOSE_ENDPOINT": first.endpoint, "CABOOSE_JOB": "train"}
        http = first.url.removeprefix("http://").rstrip("/")
        with training(tmp_path / "watched", *arguments, env=env) as job:
            wait_until(lambda: first.get("/api/v1/jobs")["jobs"], 60)
            assert wait_until(lambda: first.get("/api/v1/jobs/train")["step"] >= 40, 60)
            killed = time.time()
            first.kill()
            with running_daemon(tmp_path / "daemon", listen=first.endpoint, http=http) as second:
                restarted = time.time()
                assert second.get("/api/v1/jobs/train")["step"] >= 40, (
                    "the history is there before any rank has spoken again"
                )
                ranks = finish(job, tmp_path / "watched")
                assert wait_until(lambda: second.get("/api/v1/jobs/train")["state"] == "ended", 10)
                detail = second.get("/api/v1/jobs/train")
                steps = second.get("/api/v1/jobs/train/series", points=5000)["steps"]

    assert [rank["losses"] for rank in ranks] == [rank["losses"] for rank in bare]
    assert detail["attempt"] == 1, "the same processes: the same attempt"
    assert steps[-1]["step"] == STEPS
    assert len(steps) >= STEPS - 100, "at most what lay in the dead daemon's buffers is lost"

    for rank in ranks:
        assert len(rank["calls"]) >= 4 * STEPS
        beside = sorted(seconds for began, seconds in rank["calls"] if began < killed)
        without = sorted(seconds for began, seconds in rank["calls"] if killed <= began < restarted)
        assert min(len(beside), len(without)) >= 50
        # Side by side in one run, because a slow machine makes both slow. One call of each step waits if any does.
        assert without[int(len(without) * 0.95)] < 5 * beside[int(len(beside) * 0.95)]
        assert without[-1] < 0.25, "no call waits for a timeout"
        assert rank["closing"] < 1.0
