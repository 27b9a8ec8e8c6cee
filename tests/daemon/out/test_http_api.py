"""The JSON API: every endpoint, its errors, and who may write."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.describe import alert_name
from caboose_wire import Event, Group, Heartbeat, Refused
from support.http import http
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import a_hello, a_report, simulated_ranks

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with one job of two ranks, whose second rank's loss is NaN at its last steps."""
    hello = {
        "config": {"batch_size": 32, "max_norm": INF},
        "groups": (Group(name="0", optimizer="SGD", settings={"lr": NAN}),),
        "blind": {"activations": "compiled"},
    }
    with (
        running_daemon(tmp_path_factory.mktemp("busy")) as daemon,
        simulated_ranks(daemon.endpoint, 2, hello) as ranks,
    ):
        for step in range(1, 51):
            for number, rank in enumerate(ranks):
                loss = NAN if number == 1 and step >= 49 else 2.0
                rank.send(a_report(step, loss=loss, num_dropped=number, agent_seconds=NAN if step == 3 else 0.001))
        ranks[0].send(Event(attempt=0, step=50, time=1050.0, kind="validation", fields={"loss": NAN, "n": 3}))
        assert wait_until(lambda: _detail(daemon).get("num_steps") == 50, 10)
        assert wait_until(lambda: _detail(daemon)["events"], 10)
        yield daemon


@pytest.fixture(scope="module")
def client(busy: DaemonProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=busy.url, timeout=10) as client:
        yield client


def _detail(daemon: DaemonProcess) -> Any:
    return http.get(f"{daemon.url}api/v1/jobs/train", timeout=10).json()


# Reading


def test_health_tells_the_version(client: httpx.Client) -> None:
    answer = client.get("/healthz")

    assert answer.status_code == 200
    assert set(answer.json()) == {"status", "version"}


def test_readiness_names_no_problem(client: httpx.Client) -> None:
    assert client.get("/readyz").json() == {"status": "ready", "problems": []}


def test_the_list_has_a_row_for_each_job(client: httpx.Client) -> None:
    (row,) = client.get("/api/v1/jobs").json()["jobs"]

    expected = {"job": "train", "state": "running", "health": "critical", "world": 2, "num_live": 2, "step": 50}
    assert expected.items() <= row.items()
    assert row["loss"] == "NaN", "NaN is a text, null would mean that nothing was reported"


def test_a_job_tells_everything_but_its_curves(client: httpx.Client) -> None:
    job = client.get("/api/v1/jobs/train").json()

    assert (job["num_steps"], job["num_non_finite"], job["num_layers"], job["num_parameters"]) == (50, 2, 4, 1000)
    assert (job["wrapper"], job["blind"]) == ("DistributedDataParallel", {"activations": "compiled"})
    visible = {*a_hello().visible, "gradient_norm"}  # with all gradients
    assert job["abstaining"] == {rule.name: sorted(rule.needs - visible) for rule in RULES if rule.needs - visible}
    assert [(r["rank"], r["host"], r["state"], r["num_dropped"]) for r in job["ranks"]] == [
        (0, "node0", "live", 0),
        (1, "node1", "live", 1),
    ]
    assert [r["loss"] for r in job["ranks"]] == [2.0, "NaN"]


def test_settings_that_are_not_finite_are_texts(client: httpx.Client) -> None:
    job = client.get("/api/v1/jobs/train").json()

    assert job["config"] == {"batch_size": 32, "max_norm": "Infinity"}
    assert job["groups"][0]["settings"] == {"lr": "NaN"}
    assert job["events"][0]["fields"] == {"loss": "NaN", "n": 3}
    assert job["agent_seconds"] == pytest.approx(0.001), "the mean of the finite ones"


def test_findings_name_rule_origin_and_numbers(client: httpx.Client) -> None:
    findings = client.get("/api/v1/jobs/train/findings").json()["findings"]
    (finding,) = (row for row in findings if row["rule"] == "non_finite")

    assert (finding["rule"], finding["severity"], finding["is_open"]) == ("non_finite", "critical", True)
    assert (finding["onset_step"], finding["num_findings"], finding["first"]["ranks"]) == (49, 2, [1])


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_every_rule_has_a_runbook_that_leads_nowhere_that_is_not_there(client: httpx.Client, rule: str) -> None:
    answer = client.get(f"/runbooks/{alert_name(rule)}")
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "<h2>Mitigation</h2>" in answer.text
    assert set(re.findall(r'href="([^"]*)"', answer.text.partition("<main")[2])) == set()


@pytest.mark.parametrize("name", ["CabooseNothing", "..%2Falerts%2Ftraining.yml", "../healthz"])
def test_a_runbook_that_is_not_there_is_not_found(client: httpx.Client, name: str) -> None:
    assert client.get(f"/runbooks/{name}").headers["content-type"] == "application/json"


def test_an_incident_names_its_runbook(client: httpx.Client) -> None:
    (incident,) = client.get("/api/v1/jobs/train/incidents").json()["incidents"]
    assert incident["runbook"] == "/runbooks/CabooseNonFinite?job=train&incident=1"


def test_a_series_has_every_step_when_asked_for_enough_points(client: httpx.Client) -> None:
    answer = client.get("/api/v1/jobs/train/series", params={"points": 1000}).json()

    assert [row["step"] for row in answer["steps"]] == list(range(1, 51))
    assert answer["steps"][-1]["num_bad"] == 1


def test_a_series_has_about_as_many_points_as_asked_for(client: httpx.Client) -> None:
    answer = client.get("/api/v1/jobs/train/series", params={"points": 10}).json()

    assert 10 <= len(answer["steps"]) <= 11
    assert sum(row["num_steps"] for row in answer["steps"]) == 50


@pytest.mark.parametrize("points", ["0", "-1", "5001", "ten", "1.5", "", "9" * 5000, "²"])
def test_a_wrong_number_of_points_is_explained(client: httpx.Client, points: str) -> None:
    answer = client.get("/api/v1/jobs/train/series", params={"points": points})

    assert answer.status_code == 400
    assert "give a whole number from 1 to 5000" in answer.json()["error"]


@pytest.mark.parametrize(
    "tail",
    [
        "",
        *("/series", "/sample", "/findings", "/incidents", "/diagnosis", "/decisions", "/ledger", "/events", "/layers"),
        *("/layers/0", "/steps?attempt=1&step=1"),
    ],
)
def test_an_unknown_job_gets_the_same_reply_from_every_endpoint(client: httpx.Client, tail: str) -> None:
    answer = client.get(f"/api/v1/jobs/trian{tail}")

    assert answer.status_code == 404
    assert answer.json() == {"error": "no job 'trian'; known: train", "known_jobs": ["train"]}


def test_an_unknown_path_points_to_the_api(client: httpx.Client) -> None:
    answer = client.get("/api/v2/nothing")

    assert answer.status_code == 404
    assert answer.json() == {"error": "no such path: /api/v2/nothing; the API is under /api/v1/jobs"}


def test_a_wrong_method_is_an_answer_too(client: httpx.Client, busy: DaemonProcess) -> None:
    headers = {"authorization": f"Bearer {busy.token}", "content-type": "application/json"}
    assert client.post("/api/v1/jobs/train", content="{}", headers=headers).status_code == 405


def test_metrics_come_in_both_formats(client: httpx.Client) -> None:
    classic = client.get("/metrics")
    assert classic.headers["content-type"].startswith("text/plain")
    assert 'caboose_job_steps_total{training_job="train"} 50.0' in classic.text

    openmetrics = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


def test_the_page_may_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    answer = client.get("/")

    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert "unsafe" not in policy
    assert client.get("/static/page.js").status_code == 200


@pytest.mark.parametrize("path", ["/static/../api.py", "/static/..%2fapi.py", "/static/%2e%2e/security.py"])
def test_no_file_outside_the_page_is_served(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", ["team a/llama", "llama?x=1", "été", "x" * 129])
def test_a_job_whose_name_could_not_stand_in_a_path_or_a_label_is_refused(tmp_path: Path, name: str) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1, {"job": name}) as (rank,):
        answer = rank.receive()

        assert isinstance(answer, Refused)
        assert answer.reason == "malformed"
        assert _steps(daemon) == []
        assert 'caboose_messages_refused_total{reason="malformed"} 1.0' in daemon.text("/metrics")


def _steps(daemon: DaemonProcess) -> list[int]:
    return [job["step"] for job in daemon.get("/api/v1/jobs")["jobs"]]


# Writing


def post(client: httpx.Client, token: str | None, body: str = '{"kind": "data_switch"}', **headers: str) -> Any:
    given = {"content-type": "application/json", **headers}
    if token is not None:
        given["authorization"] = f"Bearer {token}"
    return client.post("/api/v1/jobs/train/events", content=body, headers=given)


def test_a_good_event_is_taken_and_shown(client: httpx.Client, busy: DaemonProcess) -> None:
    answer = post(client, busy.token, '{"kind": "data_switch", "fields": {"to": "wiki", "epoch": 2}}')

    assert answer.status_code == 201
    assert (answer.json()["kind"], answer.json()["step"]) == ("data_switch", 50)
    assert answer.json() in client.get("/api/v1/jobs/train").json()["events"]


@pytest.mark.parametrize("token", [None, "wrong", "Bearer", "x" * 43])
def test_without_the_token_a_write_is_refused(client: httpx.Client, token: str | None) -> None:
    answer = post(client, token)

    assert answer.status_code == 401
    assert "Authorization: Bearer" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_write_that_a_foreign_page_could_send_is_refused(
    client: httpx.Client, busy: DaemonProcess, kind: str
) -> None:
    assert post(client, busy.token, **{"content-type": kind}).status_code == 415


def test_a_write_under_an_unknown_host_is_refused(client: httpx.Client, busy: DaemonProcess) -> None:
    answer = post(client, busy.token, host="evil.example")

    assert answer.status_code == 421
    assert answer.json() == {"error": "unknown Host 'evil.example'; add it to daemon.allowed_hosts"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9757", "127.0.0.1.evil.example", "[::2]:80", ""])
def test_a_read_under_an_unknown_host_is_refused(client: httpx.Client, host: str) -> None:
    assert client.get("/api/v1/jobs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "LOCALHOST:9757", "127.0.0.1:1", "[::1]:9757"])
def test_this_machine_may_be_called_by_all_its_names(client: httpx.Client, host: str) -> None:
    assert client.get("/api/v1/jobs", headers={"host": host}).status_code == 200


def test_a_body_too_large_is_refused(client: httpx.Client, busy: DaemonProcess) -> None:
    assert post(client, busy.token, '{"kind": "' + "x" * 65_536 + '"}').status_code == 413


def test_a_body_without_a_length_is_refused(client: httpx.Client, busy: DaemonProcess) -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {busy.token}"}

    answer = client.post("/api/v1/jobs/train/events", content=iter([b'{"kind": "x"}']), headers=headers)

    assert answer.status_code == 413


BAD_BODIES = {
    "empty": "",
    "no JSON": "kind=x",
    "no object": "[]",
    "no kind": "{}",
    "empty kind": '{"kind": ""}',
    "kind too long": '{"kind": "' + "x" * 65 + '"}',
    "unknown field": '{"kind": "x", "mood": 1}',
    "nested fields": '{"kind": "x", "fields": {"a": [1]}}',
    "too many fields": '{"kind": "x", "fields": {' + ", ".join(f'"{i}": 0' for i in range(65)) + "}}",
    "number beyond 64 bits": '{"kind": "x", "fields": {"a": 123456789012345678901234567890}}',
    "number beyond floats": '{"kind": "x", "fields": {"a": 1e999}}',
    "NaN": '{"kind": "x", "fields": {"a": NaN}}',
    "lone surrogate": '{"kind": "\\ud800 x"}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=list(BAD_BODIES))
def test_a_body_that_is_no_event_is_explained(client: httpx.Client, busy: DaemonProcess, body: str) -> None:
    answer = post(client, busy.token, body)

    assert answer.status_code == 400
    assert answer.json()["error"]


def test_an_event_for_an_unknown_job_is_refused(client: httpx.Client, busy: DaemonProcess) -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {busy.token}"}

    answer = client.post("/api/v1/jobs/trian/events", content='{"kind": "x"}', headers=headers)

    assert answer.status_code == 404


def test_the_token_is_for_the_owner_only(busy: DaemonProcess) -> None:
    assert (busy.data_dir / "token").stat().st_mode & 0o077 == 0
    assert len(busy.token) >= 32


# Garbage on the report port


def test_garbage_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1) as (rank,):
        rank.send_raw([b"garbage"])
        rank.send_raw([b"\x09\x01", b"future"])
        rank.send_raw([b"\x01\x02", b"\xc1"])
        rank.send(a_report(1))
        assert wait_until(lambda: _steps(daemon) == [1], 10)

        text = daemon.text("/metrics")
        for reason in ("truncated", "version", "malformed"):
            assert f'caboose_messages_refused_total{{reason="{reason}"}} 1.0' in text
        answers = [rank.receive(), rank.receive(), rank.receive()]
        assert [getattr(answer, "reason", None) for answer in answers] == ["truncated", "version", "malformed"]


@pytest.mark.long
@pytest.mark.slow
def test_two_live_runs_of_one_name_are_both_shown(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 1) as (first,):
        first.send(a_report(1))
        assert wait_until(lambda: _steps(daemon) == [1], 10)
        other = {"launch": "run-2", "incarnation": "incarnation-other", "host": "elsewhere"}
        with simulated_ranks(daemon.endpoint, 1, other) as (second,):
            second.send(a_report(1))

            def both() -> Any:
                for rank in (first, second):
                    rank.send(Heartbeat(step=1))
                return len(daemon.get("/api/v1/jobs")["jobs"]) == 2

            assert wait_until(both, 20, every=0.2)
        assert daemon.get("/api/v1/jobs/train")["num_steps"] == 1
        assert wait_until(lambda: daemon.get("/api/v1/jobs/train-2")["num_steps"] == 1, 10)
