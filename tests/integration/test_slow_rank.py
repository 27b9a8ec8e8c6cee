"""One rank of a real job is slow, wherever in the step: that rank is named, with the place."""

from pathlib import Path

import pytest

from support.processes import DaemonProcess, wait_until
from support.training import JOBS, training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PHASES = {
    "loss": "loss",
    "backward": "backward",
    "forward": "forward",
    "loader": "data",
    "before": "other",
    "after": "other",
    "optimizer": "optimizer",
}
WRAPPERS = ("ddp", "buffers", "fsdp2")
CASES = [
    *((place, wrapper, 1, 2) for place in PHASES for wrapper in WRAPPERS),
    *((place, "buffers", 0, 2) for place in ("before", "loss", "backward")),  # rank 0 sends the buffers
    *((place, wrapper, 2, 4) for place in ("loss", "backward") for wrapper in WRAPPERS),
]


@pytest.mark.parametrize(("place", "wrapper", "slow", "ranks"), CASES)
def test_the_slow_rank_is_named_with_its_place(
    daemon: DaemonProcess, tmp_path: Path, place: str, wrapper: str, slow: int, ranks: int
) -> None:
    env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": "train"}
    arguments = (place, wrapper, str(slow))
    with training(tmp_path, *arguments, env=env, ranks=ranks, script=JOBS / "slow_rank.py") as job:
        assert job.wait(240) == 0, (tmp_path / "job.log").read_text()

    def found() -> list[tuple[list[int], str]]:
        findings = daemon.get("/api/v1/jobs/train/findings")["findings"]
        return [(each["first"]["ranks"], each["first"]["phase"]) for each in findings if each["rule"] == "straggler"]

    assert wait_until(found, 10), (tmp_path / "job.log").read_text()
    assert found()[0] == ([slow], PHASES[place])
