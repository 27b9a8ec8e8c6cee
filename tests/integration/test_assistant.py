"""An assistant asks about a real run: two gloo ranks, one of which feeds NaN, through the SDK's own client."""

from pathlib import Path

import pytest
from mcp import Client

from support.assistants import ask, over_stdio
from support.processes import DaemonProcess, wait_until
from support.training import finish, training

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_rank_and_step_of_a_bad_batch_are_found_as_the_skill_says(daemon: DaemonProcess, tmp_path: Path) -> None:
    arguments = ("--steps", "40", "--nan-rank", "1", "--nan-at", "17", "--sample-every", "5")
    environment = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": "train"}
    with training(tmp_path / "out", *arguments, env=environment) as job:
        finish(job, tmp_path / "out")
    assert wait_until(lambda: daemon.get("/api/v1/jobs/train")["state"] == "ended", 20)

    async def work(client: Client) -> None:
        (row,) = (await ask(client, "list_jobs"))["jobs"]
        assert (row["job"], row["state"], row["health"]) == ({"from_job": "train"}, "ended", "critical")
        status = await ask(client, "job_status", job="train")
        assert (status["layers"], status["parameters"]) == (4, 16 * 32 + 32 + 32 + 1)
        (found, *_) = (await ask(client, "diagnosis", job="train"))["incidents"]
        assert (found["first_shown"]["ranks"], found["first_shown"]["step"]) == ([1], 17)
        assert found["causes"][0]["confidence"] > 0.5
        around = await ask(client, "steps", job="train", attempt=1, step=17, columns=["loss"], around=1)
        assert around["curves"][0]["values"][-1] == "NaN"
        layers = await ask(client, "layers", job="train")
        assert {layer["values"][-1] for layer in layers["layers"]} == {"NaN"}
        name = layers["layers"][0]["name"]["from_job"]
        assert (await ask(client, "layer", job="train", name=name))["layer"] == {"from_job": name}
        past = await ask(client, "history", rule=found["incident"]["rule"])
        assert past["incidents"][0]["cause"] == found["causes"][0]["id"]

    over_stdio(daemon.url, work)
