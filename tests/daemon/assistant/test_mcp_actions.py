"""The tools that act: a dry run first, then the same request once, with the daemon's token, budget and cool-down."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client

from caboose_daemon.assistant.actions import Actions
from caboose_daemon.assistant.confirmations import VALID_SECONDS, Confirmations
from caboose_daemon.assistant.reader import AskError
from caboose_daemon.out.api.client import Client as DaemonClient
from support.assistants import ask, over_stdio, refused
from support.obedient import Obedient, obedient_ranks
from support.processes import DaemonProcess, running_daemon, wait_until

SECRET = "a secret that the daemon and the ranks share"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, Obedient]]:
    """A daemon, and a job of which every command is obeyed."""
    directory = tmp_path_factory.mktemp("watched")
    file = directory / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    with (
        running_daemon(directory / "daemon", "--rollback", "auto", "--secret-file", str(file)) as daemon,
        obedient_ranks(daemon.endpoint, secret=SECRET.encode()) as job,
    ):
        assert wait_until(lambda: len(daemon.get("/api/v1/jobs/train/ledger")["entries"]) >= 3, 20)
        yield daemon, job


def decisions(daemon: DaemonProcess) -> list[dict[str, Any]]:
    """The newest first."""
    return list(daemon.get("/api/v1/jobs/train/decisions")["decisions"])


def acting(daemon: DaemonProcess) -> tuple[str, ...]:
    return "--allow-actions", "--token-file", str(daemon.data_dir / "token")


@pytest.mark.slow
def test_a_rollback_is_what_its_dry_run_showed(watched: tuple[DaemonProcess, Obedient]) -> None:
    daemon, job = watched

    async def work(client: Client) -> None:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        assert tools["rollback"] is not None
        assert tools["rollback"].destructive_hint
        assert "confirm" in str(client.instructions)

        planned = await ask(client, "rollback", job="train", lr_scale=0.5)
        assert not planned["is_done"]
        assert planned["decision"]["state"] == "advised"
        target = planned["decision"]["target_step"]
        assert job.commands == []
        assert wait_until(lambda: job.snapshots[-1].step > target, 20)  # the newest is another one by now

        other = await refused(client, "rollback", job="train", lr_scale=0.4, confirm=planned["confirm"])
        assert "for other arguments" in other
        planned = await ask(client, "rollback", job="train", to_step=target, lr_scale=0.5)
        done = await ask(client, "rollback", job="train", to_step=target, lr_scale=0.5, confirm=planned["confirm"])
        assert done["is_done"]
        again = await refused(client, "rollback", job="train", to_step=target, lr_scale=0.5, confirm=planned["confirm"])
        assert "unknown or was used" in again

        assert wait_until(
            lambda: daemon.get("/api/v1/jobs/train/decisions")["decisions"][0]["state"] == "committed", 20
        )
        (row,) = (await ask(client, "rollbacks", job="train"))["decisions"]
        assert (row["kind"], row["state"], row["target_step"]) == ("rollback", "committed", target)
        assert row["by"]["from_job"].startswith("assistant of ")

        missing = await refused(client, "rollback", job="train", to_step=7)
        assert json.loads(missing)["error"]["from_job"].startswith("refused: ")

    over_stdio(daemon.url, work, *acting(daemon))
    assert [command.kind for command in job.commands] == ["rollback"] * len(job.ranks)


@pytest.mark.slow
def test_a_learning_rate_is_a_command_of_the_daemon_and_what_it_refuses_is_an_error(
    watched: tuple[DaemonProcess, Obedient],
) -> None:
    daemon, job = watched

    async def work(client: Client) -> None:
        assert "no checkpoint directory" in await refused(client, "checkpoint", job="train")
        planned = await ask(client, "apply_lr_scale", job="train", lr_scale=0.5)
        assert planned["decision"]["lr_scale"] == 0.5
        assert (await ask(client, "apply_lr_scale", job="train", lr_scale=0.5, confirm=planned["confirm"]))["is_done"]
        assert wait_until(lambda: any(command.kind == "scale_lr" for command in job.commands), 20)
        assert "changes nothing" in await refused(client, "apply_lr_scale", job="train", lr_scale=1.0)
        assert "less than or equal to 10" in await refused(client, "apply_lr_scale", job="train", lr_scale=11)

    over_stdio(daemon.url, work, *acting(daemon))


@pytest.mark.slow
def test_a_note_is_recorded_after_its_dry_run(watched: tuple[DaemonProcess, Obedient]) -> None:
    daemon, _ = watched
    token = (daemon.data_dir / "token").read_text().strip()
    actions = Actions(DaemonClient(daemon.url), token, "ada", lambda: 0.0)

    planned = actions.note("train", "shard 17\nrewritten", "fix", "")
    assert daemon.get("/api/v1/jobs/train/events")["events"] == []
    assert planned["confirm"] is not None
    assert actions.note("train", "shard 17\nrewritten", "fix", planned["confirm"])["is_done"]

    (event,) = daemon.get("/api/v1/jobs/train/events")["events"]
    assert event["kind"] == "fix"
    assert event["fields"] == {"text": "shard 17 rewritten", "by": "assistant of ada"}
    with pytest.raises(AskError, match="kind is one of note, fix"):
        actions.note("train", "x", "data_switch", "")
    with pytest.raises(AskError, match="no incident 99"):
        actions.acknowledge("train", 99, "known", "")
    wrong = Actions(DaemonClient(daemon.url), "not the token at all", "ada", lambda: 0.0)
    with pytest.raises(AskError, match="refused"):
        wrong.checkpoint("train", "")


def test_a_confirmation_is_valid_once_in_time_and_for_one_request() -> None:
    now = 0.0
    confirmations = Confirmations(lambda: now)
    code = confirmations.give(["a", 1], {"x": 1})

    assert confirmations.take(code, ["a", 1]) == {"x": 1}
    with pytest.raises(AskError, match="unknown or was used"):
        confirmations.take(code, ["a", 1])
    with pytest.raises(AskError, match="other arguments"):
        confirmations.take(confirmations.give(["a", 1], {}), ["a", 2])
    late = confirmations.give(["a", 1], {})
    now = VALID_SECONDS + 1
    with pytest.raises(AskError, match="older than 120 s"):
        confirmations.take(late, ["a", 1])


def test_confirmations_that_nobody_uses_are_bounded() -> None:
    confirmations = Confirmations(lambda: 0.0)
    first, *others = [confirmations.give(["a", number], {}) for number in range(100)]

    with pytest.raises(AskError):
        confirmations.take(first, ["a", 0])
    assert confirmations.take(others[-1], ["a", 99]) == {}


def test_without_a_daemon_the_error_is_one_line() -> None:
    with pytest.raises(AskError, match="no daemon answers"):
        Actions(DaemonClient("127.0.0.1:1"), "", "ada", lambda: 0.0).checkpoint("train", "")
