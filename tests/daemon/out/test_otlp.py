"""OTLP: the metrics of a scrape by the same names, incidents as log records, attempts as spans; nothing waits."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from caboose_daemon.app.app import Daemon, StartError
from caboose_daemon.config import Config, ConfigError, DaemonConfig, OtlpConfig, load
from caboose_daemon.out.otlp import ids
from caboose_wire import Bye
from support.http import http
from support.otlp import Collected, attributes, grpc_collector, http_collector
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import send_spike, send_steps, simulated_ranks
from support.served import served

pytestmark = pytest.mark.slow
COLLECTORS = {"grpc": grpc_collector, "http": http_collector}
CHANGING = ("seconds", "scrape", "messages", "bytes", "exports", "agents", "peers", "loop", "step", "rule_runs", "rank")
"""Words in names of metrics that change between a push and a scrape of a job that has ended."""


def config(directory: Path, url: str, protocol: str = "grpc", **more: str) -> Path:
    lines = ["[otlp]", f'endpoint = "{url}"', f'protocol = "{protocol}"', "interval_seconds = 0.3"]
    lines += [f"{key} = {value}" for key, value in more.items()]
    file = directory / "caboose.toml"
    file.write_text("\n".join(lines))
    return file


def spike_and_end(daemon: DaemonProcess) -> None:
    with simulated_ranks(daemon.endpoint, 2, {"job": "gpt"}) as ranks:
        send_steps(ranks, 1, 120)
        for step in range(121, 128):
            send_spike(ranks, step)
        assert wait_until(lambda: daemon.step("gpt") >= 127, 20)
        for rank in ranks:
            rank.send(Bye(step=127, error="ValueError: bad shard"))
        assert wait_until(lambda: daemon.get("/api/v1/jobs/gpt")["state"] == "crashed", 20)


@pytest.fixture(scope="module", params=["grpc", "http"])
def pushed(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collected, DaemonProcess]]:
    """What a collector has after a job that spiked and crashed, and the daemon that pushed it."""
    directory = tmp_path_factory.mktemp(request.param)
    headers = directory / "headers"
    headers.write_text("Authorization: Bearer secret\nx-tenant: ml\n")
    collector: Callable[[], AbstractContextManager[Collected]] = COLLECTORS[request.param]
    with collector() as found:
        file = config(directory, found.url, request.param, headers_file=f'"{headers}"')
        with running_daemon(directory / "daemon", "--config", str(file)) as daemon:
            spike_and_end(daemon)
            assert wait_until(lambda: found.spans() and found.records(), 20)
            seen = len(found.requests)
            assert wait_until(lambda: len(found.requests) > seen + 1, 20)
            yield found, daemon


def test_every_metric_of_a_scrape_is_pushed_under_its_name(pushed: tuple[Collected, DaemonProcess]) -> None:
    found, daemon = pushed
    daemon.text("/metrics")  # the time of a scrape is exported from the second one on
    answer = http.get(f"{daemon.url}metrics", headers={"accept": "application/openmetrics-text"}).text
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in text_string_to_metric_families(answer)
    }
    seen = len(found.requests)
    metrics = wait_until(lambda: found.metrics(after=seen), 20)

    assert metrics.keys() == families.keys()
    for name, family in families.items():
        kind = metrics[name].WhichOneof("data")
        assert kind == ("sum" if family.type == "counter" else "gauge"), name
        points = getattr(metrics[name], kind).data_points
        assert len(points) == len(family.samples), name
        if not any(word in name for word in CHANGING):
            pushed_values = {frozenset(attributes(point.attributes).items()): point.as_double for point in points}
            for sample in family.samples:
                labels = frozenset((key, text) for key, text in sample.labels.items() if text)
                assert pushed_values[labels] == pytest.approx(sample.value, nan_ok=True), (name, labels)
    assert metrics["caboose_rank_step_seconds"].unit == "s"
    assert metrics["caboose_loss"].unit == ""
    assert metrics["caboose_job_steps_total"].sum.is_monotonic
    assert metrics["caboose_job_steps_total"].sum.data_points[0].start_time_unix_nano > 0


def test_an_incident_is_a_record_when_it_opens_and_when_it_ends(pushed: tuple[Collected, DaemonProcess]) -> None:
    found, daemon = pushed
    (incident, *_) = daemon.get("/api/v1/jobs/gpt/incidents")["incidents"]
    records = [r for r in found.records() if attributes(r.attributes)["incident"] == incident["id"]]
    first, last = attributes(records[0].attributes), attributes(records[-1].attributes)

    assert {record.event_name for record in records} == {"caboose.incident"}
    assert (first["training_job"], first["rule"], first["state"]) == ("gpt", incident["rule"], "open")
    assert first["onset_step"] == incident["onset_step"]
    assert first["runbook_url"].startswith(daemon.url)
    assert last["cause"] == incident["diagnosis"]["causes"][0]["id"]
    assert incident["rule"] in records[0].body.string_value
    assert records[0].severity_text in ("warning", "critical")
    assert len(records) <= 6  # not one per step
    created = daemon.get("/api/v1/jobs/gpt")["created"]
    assert records[0].trace_id == ids.trace_id("gpt", created).to_bytes(16, "big")


def test_an_attempt_is_a_span_to_which_its_incidents_belong(pushed: tuple[Collected, DaemonProcess]) -> None:
    found, _ = pushed
    (span,) = found.spans()
    about = attributes(span.attributes)

    assert span.name == "caboose.attempt"
    assert (about["training_job"], about["attempt"], about["world"], about["state"]) == ("gpt", 1, 2, "crashed")
    assert about["last_step"] == 127
    assert "bad shard" in span.status.message
    assert span.status.code == 2
    assert 0 < span.start_time_unix_nano < span.end_time_unix_nano
    assert {(record.trace_id, record.span_id) for record in found.records()} == {(span.trace_id, span.span_id)}


def test_who_sends_is_known_and_headers_are_those_of_the_file(pushed: tuple[Collected, DaemonProcess]) -> None:
    found, daemon = pushed

    assert all(resource["service.name"] == "caboose" for resource in found.resources())
    assert {resource["service.instance.id"] for resource in found.resources()} == {daemon.url}
    assert {headers["authorization"] for headers in found.headers} == {"Bearer secret"}
    assert {headers["x-tenant"] for headers in found.headers} == {"ml"}


def test_what_a_collector_refused_is_sent_again_and_counted(tmp_path: Path) -> None:
    with http_collector() as found:
        found.is_refusing = True
        file = config(tmp_path, found.url, "http")
        with running_daemon(tmp_path / "daemon", "--config", str(file)) as daemon:
            spike_and_end(daemon)
            failures = 'caboose_export_failures_total{target="otlp"}'
            assert wait_until(lambda: value(daemon, failures) >= 3, 20)
            assert found.requests == []
            found.is_refusing = False
            assert wait_until(lambda: found.records() and found.spans() and found.metrics(), 20)
        log = daemon.log.read_text()

    assert log.count("otlp failed") == 1
    assert "did not take" in log


def test_a_collector_that_hangs_makes_neither_the_loop_nor_the_end_wait(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # accepts, and never answers
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with running_daemon(tmp_path / "daemon", "--config", str(config(tmp_path, url, "http"))) as daemon:
            spike_and_end(daemon)
            began = time.monotonic()
            assert daemon.stop() == 0
            seconds = time.monotonic() - began

    assert seconds < 15  # 5 s of patience, on a busy machine


def test_the_last_metrics_are_pushed_when_the_daemon_ends(tmp_path: Path) -> None:
    with grpc_collector() as found:
        file = config(tmp_path, found.url)
        file.write_text(file.read_text().replace("0.3", "3600"))
        with running_daemon(tmp_path / "daemon", "--config", str(file)) as daemon:
            with simulated_ranks(daemon.endpoint, 1, {"job": "gpt", "world": 1}) as ranks:
                send_steps(ranks, 1, 20)
                assert wait_until(lambda: daemon.step("gpt") >= 20, 20)
            assert daemon.stop() == 0

        (point,) = found.metrics()["caboose_job_step"].gauge.data_points
        assert point.as_double == 20


def test_only_the_chosen_signals_are_pushed(tmp_path: Path) -> None:
    with grpc_collector() as found:
        file = config(tmp_path, found.url, signals='["logs"]')
        with running_daemon(tmp_path / "daemon", "--config", str(file)) as daemon:
            spike_and_end(daemon)
            assert wait_until(found.records, 20)

        assert found.metrics() == {}
        assert found.spans() == []


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('endpoint = "collector:4317"', "otlp.endpoint = 'collector:4317': expected http://host:port"),
        ('endpoint = "http://x:1"\nsignals = ["metric"]', "signals = .* use some of 'metrics', 'logs', 'traces'"),
        ('endpoint = "http://x:1"\nprotocol = "udp"', "use one of 'grpc', 'http'"),
        ('endpoint = "http://x:1"\ninterval_seconds = 0', "must be above 0"),
    ],
)
def test_a_wrong_key_is_one_line(tmp_path: Path, lines: str, why: str) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text(f"[otlp]\n{lines}\n")

    with pytest.raises(ConfigError, match=why):
        load(file)


def test_a_file_that_is_missing_is_one_line_at_the_start(tmp_path: Path) -> None:
    otlp = OtlpConfig(endpoint="http://127.0.0.1:1", headers_file="/nonexistent")
    with pytest.raises(StartError, match=r"\[otlp\] headers_file = '/nonexistent': No such file"):
        Daemon(Config(daemon=DaemonConfig(data_dir=str(tmp_path)), otlp=otlp))


def test_without_the_section_nothing_is_imported_or_started(tmp_path: Path) -> None:
    with served(tmp_path):
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("caboose-otlp")] == []


def value(daemon: DaemonProcess, series: str) -> float:
    """One series of a scrape; 0 if it is not there."""
    lines = [line for line in daemon.text("/metrics").splitlines() if line.startswith(series)]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0
