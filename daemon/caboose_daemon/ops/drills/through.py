"""A drill through somebody's own alerting: daemon, Prometheus, Alertmanager, and how long each hop took.

Design
------
The drill reports to the daemon that is already there, under a name of its own. From then on each station is asked,
about four times a second, whether it knows of the job's incident: the daemon, Prometheus (is it scraped), Prometheus'
alerts (does it fire), Alertmanager (has it arrived). A station that does not know in time is named, with what to look
at. What has arrived is held to what the daemon says: one alert for the job, of the incident's lead rule and at its
severity; whom Alertmanager tells is asked too. Then the drill is left to end by itself, which ends its incident, and
Alertmanager must let go of the alert: a quarter of an hour later, as an incident is exported for two minutes at least,
and its alert goes on for ten.
"""

import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caboose_daemon.ops.drills.catalogue import Drill
from caboose_daemon.ops.processes import end, start, tail
from caboose_daemon.out.api.client import Client, ClientError, job_path

POLL_SECONDS = 0.25
TIMEOUT_SECONDS = 5.0
RESOLVED = "resolved"
RESOLVE_SECONDS = 600.0
"""What a resolve takes beside patience: the drill's rest, two minutes of export, five that alerts go on firing."""


class ThroughError(RuntimeError):
    """The drill cannot be sent through; the message says why and what to do."""


@dataclass(frozen=True)
class Stations:
    """Where everything is."""

    endpoint: str
    daemon: str
    prometheus: str
    alertmanager: str


@dataclass
class AlertPath:
    """What became of one drill."""

    job: str
    seconds: dict[str, float] = field(default_factory=dict)
    """By station: how long after the drill began it knew."""
    missing: str = ""
    """The station that did not know in time, and what to look at."""
    alert: dict[str, str] = field(default_factory=dict)
    """The labels of the alert that arrived."""
    receivers: list[str] = field(default_factory=list)
    """Whom Alertmanager tells of it."""
    wrong: list[str] = field(default_factory=list)
    """What is not as it should be with what arrived."""


def send(
    drill: Drill, stations: Stations, *, patience: float, resolves: bool = True, on_station: Callable[[str], None]
) -> AlertPath:
    """Trains the drill once and follows its incident to the pager's door, and until it is taken back."""
    job = f"drill-{drill.name}-{os.getpid()}"
    passage = AlertPath(f"{job}-0")
    with tempfile.TemporaryDirectory(prefix="caboose-drill-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        log = directory / "drill.log"
        command = [sys.executable, "-m", "caboose_drills", "run", drill.name, "--seeds", "0", "--prefix", job]
        env = {"CABOOSE_ENDPOINT": stations.endpoint, "OMP_NUM_THREADS": "1", "TMPDIR": name}
        env |= {key: os.environ[key] for key in ("CABOOSE_SERVER_KEY", "CABOOSE_AGENT_KEY") if key in os.environ}
        began = time.monotonic()
        process = start(command, directory, log, env, stdout=subprocess.DEVNULL)
        deadline = began + patience
        try:
            for station, knows, hint in _asked(passage, stations, drill):
                if station == RESOLVED:
                    if not resolves:
                        break
                    deadline = time.monotonic() + RESOLVE_SECONDS + patience
                on_station(station)
                while not knows():
                    if time.monotonic() > deadline:
                        more = f"\n{tail(log)}" if station == "daemon" else ""
                        since = time.monotonic() - began
                        told = "its alert is still there" if station == RESOLVED else f"{station} did not know of it"
                        passage.missing = f"{told} after {since:.0f} s; {hint}{more}"
                        return passage
                    time.sleep(POLL_SECONDS)
                passage.seconds[station] = time.monotonic() - began
        finally:
            end(process)
    return passage


def _asked(passage: AlertPath, stations: Stations, drill: Drill) -> list[tuple[str, Callable[[], bool], str]]:
    """The stations in order, each with its question and what to look at where the answer stays no."""
    job = passage.job
    daemon_client = Client(stations.daemon)
    prometheus = Client(stations.prometheus, server="Prometheus", timeout=TIMEOUT_SECONDS)
    alertmanager = Client(stations.alertmanager, server="Alertmanager", timeout=TIMEOUT_SECONDS)
    told = urllib.parse.urlencode({"query": f'caboose_incident_open{{training_job="{job}"}} == 1'})
    matcher = urllib.parse.urlencode({"filter": f'training_job="{job}"'})

    def incidents() -> list[dict[str, Any]]:
        try:
            told: list[dict[str, Any]] = daemon_client.get(job_path(job, "/incidents"))["incidents"]
        except ClientError:
            return []  # the job has not introduced itself yet
        return told

    def daemon() -> bool:
        return bool(incidents())

    def scraped() -> bool:
        return bool(_get(prometheus, f"/api/v1/query?{told}")["data"]["result"])

    def fires() -> bool:
        alerts = _get(prometheus, "/api/v1/alerts")["data"]["alerts"]
        return any(a["labels"].get("training_job") == job and a["state"] == "firing" for a in alerts)

    def active() -> list[dict[str, Any]]:
        alerts: list[dict[str, Any]] = _get(alertmanager, f"/api/v2/alerts?{matcher}")
        return [alert for alert in alerts if alert["status"]["state"] == "active"]

    def arrived() -> bool:
        told = active()
        expected = {(incident["rule"], incident["worst"]) for incident in incidents()}
        right = [alert for alert in told if _identity(alert) in expected]
        if told:
            first = (right or told)[0]
            passage.alert = dict(first["labels"])
            passage.receivers = [receiver["name"] for receiver in first["receivers"]]
            passage.wrong = judged(told, expected, drill)
        return bool(right)

    def resolved() -> bool:
        told = active()
        names = {alert["labels"].get("alertname") for alert in told} - {passage.alert.get("alertname")}
        passage.wrong += [more for name in sorted(names) if (more := f"{name} came as well") not in passage.wrong]
        return not told

    return [
        ("daemon", daemon, f"does the drill report to it? It was told {stations.endpoint}"),
        ("prometheus", scraped, f"is {stations.daemon}/metrics among its targets, and up?"),
        ("alert", fires, "are the files of dashboards/alerts among its rule_files?"),
        (
            "alertmanager",
            arrived,
            "is it under alerting.alertmanagers in prometheus.yml, and does nothing silence or inhibit the alert?",
        ),
        (
            RESOLVED,
            resolved,
            f"did {job} end, and is its incident over? {stations.daemon}/?job={urllib.parse.quote(job, safe='')}",
        ),
    ]


def _identity(alert: Mapping[str, Any]) -> tuple[str, str]:
    labels = alert["labels"]
    return labels.get("rule", ""), labels.get("severity", "")


def judged(told: Sequence[Mapping[str, Any]], expected: Collection[tuple[str, str]], drill: Drill) -> list[str]:
    """What is wrong with the alerts that people are told of; `expected` are the daemon's rules and severities."""
    wrong = []
    if len(told) > 1:
        names = ", ".join(sorted(f"{a['labels'].get('alertname')} ({a['labels'].get('severity')})" for a in told))
        wrong.append(f"one cause is told {len(told)} times: {names}")
    for rule, severity in map(_identity, told):
        if rule not in (drill.rule, *drill.companions):
            wrong.append(f"an alert of the rule {rule or 'none'!r} is not what this drill shows")
        elif (rule, severity) not in expected:
            said = ", ".join(sorted(f"{name} ({loud})" for name, loud in expected)) or "nothing"
            wrong.append(f"{rule} arrived as {severity}, the daemon says {said}")
    if any(not alert["receivers"] for alert in told):
        wrong.append("Alertmanager tells nobody of it")
    return wrong


def _get(server: Client, path: str) -> Any:
    try:
        return server.get(path)
    except ClientError as error:
        raise ThroughError(str(error)) from None
