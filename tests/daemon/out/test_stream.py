"""The live stream delivers steps, findings and incidents as they come, and never lets one page slow the others."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from caboose_daemon.out.api.live import MAX_BACKLOG, MAX_LISTENERS, Broker, Listener
from caboose_wire import Event
from support.http import http
from support.processes import DaemonProcess
from support.ranks import SimulatedRank, a_report, simulated_ranks


@pytest.fixture
def rank(daemon: DaemonProcess) -> Iterator[SimulatedRank]:
    hello = {"config": {"max_norm": float("inf")}}
    with simulated_ranks(daemon.endpoint, 1, hello) as (rank,):
        yield rank


class Messages:
    """The messages of an open stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self, wanted: str, timeout: float = 20.0) -> Any:
        """The next message of this kind."""
        kind = ""
        deadline = time.monotonic() + timeout
        for line in self._lines:
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind == wanted:
                return json.loads(line.removeprefix("data: "))
            if time.monotonic() > deadline:
                break
        raise AssertionError(f"no {wanted} in the stream")


def stream(daemon: DaemonProcess, **params: str) -> Any:
    return http.stream("GET", f"{daemon.url}api/v1/stream", params=params, timeout=20)


def test_delivers_steps_findings_incidents_and_events(daemon: DaemonProcess, rank: SimulatedRank) -> None:
    with stream(daemon, job="train") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        messages = Messages(response)
        messages.next("status")

        rank.send(a_report(1))
        rank.send(a_report(2, loss=float("nan")))

        assert messages.next("step")["step"] == 1
        step = messages.next("step")
        assert (step["job"], step["step"], step["loss"]) == ("train", 2, "NaN")
        finding = messages.next("finding")
        assert (finding["rule"], finding["is_open"], finding["job"]) == ("non_finite", True, "train")
        incident = messages.next("incident")
        assert (incident["id"], incident["rule"], incident["state"]) == ("train/1", "non_finite", "open")
        assert [member["episode"] for member in incident["members"]] == [finding["id"]]
        assert incident["diagnosis"]["step"] == 2

        rank.send(Event(attempt=0, step=2, time=1.0, kind="data_switch"))
        assert messages.next("event")["kind"] == "data_switch"


def test_tells_the_state_of_the_job_about_once_a_second(daemon: DaemonProcess, rank: SimulatedRank) -> None:
    rank.send(a_report(1))
    with stream(daemon, job="train") as response:
        messages = Messages(response)
        whole = messages.next("status")
        status = dict(whole)
        while status.get("num_steps") != 1:
            status |= messages.next("status")

    assert whole["is_whole"]
    assert whole["config"] == {"max_norm": "Infinity"}
    assert whole["ranks"]["columns"]["state"] == {"to": ["live"]}


def test_without_a_job_it_tells_of_all_and_with_one_only_of_that(daemon: DaemonProcess, rank: SimulatedRank) -> None:
    with (
        simulated_ranks(daemon.endpoint, 1, {"job": "other", "incarnation": "incarnation-other"}) as (other,),
        stream(daemon) as everything,
        stream(daemon, job="train") as one,
    ):
        all_messages, one_message = Messages(everything), Messages(one)
        all_messages.next("status")
        one_message.next("status")

        other.send(a_report(1))
        assert all_messages.next("step")["job"] == "other"
        rank.send(a_report(1))

        assert all_messages.next("step")["job"] == "train"
        assert one_message.next("step")["job"] == "train"


# Bounds


def test_a_page_that_falls_behind_loses_its_backlog_and_is_told_to_load_again() -> None:
    listener = Listener(None)
    for number in range(MAX_BACKLOG + 1):
        listener.put("step", {"step": number})

    assert listener.queue.get_nowait() == ("reload", {})
    assert listener.queue.get_nowait() == ("step", {"step": MAX_BACKLOG})
    assert listener.queue.empty()


def test_streams_are_bounded_in_number() -> None:
    broker = Broker()
    listeners = [broker.join(None) for _ in range(MAX_LISTENERS)]
    assert broker.join(None) is None

    assert listeners[0] is not None
    broker.leave(listeners[0])
    assert broker.join(None) is not None


def test_closing_ends_every_stream_also_a_full_one() -> None:
    async def close() -> list[Any]:
        broker = Broker()
        listener = broker.join("train")
        assert listener is not None
        for number in range(MAX_BACKLOG):
            listener.put("step", {"step": number})
        broker.close()
        assert broker.join(None) is None
        return [listener.queue.get_nowait() for _ in range(listener.queue.qsize())]

    assert asyncio.run(close())[-1] is None


def test_a_closer_look_is_announced_by_its_step_alone(daemon: DaemonProcess, rank: SimulatedRank) -> None:
    with stream(daemon, job="train") as response:
        messages = Messages(response)
        messages.next("status")
        rank.send(a_report(1))
        rank.send(a_report(2, is_sampled=True))

        assert messages.next("sample") == {"job": "train", "attempt": 1, "step": 2}
