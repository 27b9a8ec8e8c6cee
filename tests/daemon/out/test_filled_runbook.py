"""Runbooks filled with an incident: its names, process ids and commands, whatever the names contain."""

import math
from collections.abc import Iterator
from html import unescape

import httpx
import pytest

from caboose_wire import Bye
from support.http import http
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import send_steps, simulated_ranks


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One job that trains on NaN, and one that crashed."""
    with (
        running_daemon(tmp_path_factory.mktemp("daemon")) as daemon,
        simulated_ranks(daemon.endpoint, 2, {"job": "gpt", "pid": 4711}) as ranks,
        simulated_ranks(daemon.endpoint, 1, {"job": "over"}) as (lost,),
    ):
        send_steps(ranks, 1, 40)
        send_steps([ranks[1]], 41, 50, loss=math.nan)
        send_steps([ranks[0]], 41, 50)
        lost.send(Bye(step=1, error="ValueError: <script>alert(1)</script>"))
        assert wait_until(lambda: daemon.get("/api/v1/jobs/gpt/incidents")["incidents"], 20)
        assert wait_until(lambda: daemon.get("/api/v1/jobs/over/incidents")["incidents"], 20)
        yield daemon


def page(daemon: DaemonProcess, name: str, **query: str) -> str:
    answer: httpx.Response = http.get(f"{daemon.url}runbooks/{name}", params=query, timeout=10)
    assert answer.status_code == 200
    return answer.text


def test_it_names_the_job_the_incident_the_process_and_the_daemon(daemon: DaemonProcess) -> None:
    text = unescape(page(daemon, "CabooseNonFinite", job="gpt", incident="1"))

    assert "<strong>gpt: loss is nan" in text
    assert "caboose diagnose gpt " in text
    assert 'caboose_gradient_norm{training_job="gpt"}' in text
    assert "caboose ack gpt/1 --reason" in text
    assert "ssh node1 py-spy dump --pid 4711" in text
    assert "JOB" not in text
    assert "INCIDENT" not in text
    assert "kill -CONT 4711" in unescape(page(daemon, "CabooseRankSilent", job="gpt", incident="1"))


def test_without_an_incident_the_placeholders_stay(daemon: DaemonProcess) -> None:
    assert "caboose diagnose JOB" in page(daemon, "CabooseNonFinite")
    assert "This incident" not in page(daemon, "CabooseNonFinite", job="gpt")
    assert "caboose diagnose gpt" in page(daemon, "CabooseNonFinite", job="gpt")


@pytest.mark.parametrize(
    "query", [{"job": "nobody"}, {"job": "gpt", "incident": "99"}, {"job": "gpt", "incident": "x"}]
)
def test_an_unknown_job_or_incident_fills_what_is_known(daemon: DaemonProcess, query: dict[str, str]) -> None:
    assert "This incident" not in page(daemon, "CabooseNonFinite", **query)


def test_what_a_rank_said_is_text_and_the_processes_of_a_run_that_is_over_are_not_named(daemon: DaemonProcess) -> None:
    text = page(daemon, "CabooseRankSilent", job="over", incident="1")

    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "unresolved: the run is over" in text
    assert "ssh " not in text
