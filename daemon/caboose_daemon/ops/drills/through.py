"""A drill through an existing alerting stack: daemon, Prometheus, Alertmanager, and the time of each hop.

Design
------
The drill reports to the running daemon under its own job name. Each station is then asked, four times a second, for the
job's incident: the daemon, Prometheus (scraped), Prometheus' alerts (firing), Alertmanager (received). A station that
does not have it in time is named, with what to check. The alert is compared with the daemon's incident: one alert for
the job, with the incident's lead rule and severity; its receivers are read too. Then the drill ends. What was open at
its end stays until a person has seen it, so it is acknowledged here, and Alertmanager must resolve the alert, some
minutes later: an incident is exported for at least two minutes, and its alert keeps firing for five.
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
from caboose_daemon.out.api.client import Client, ClientError, job_path, read_token

POLL_SECONDS = 0.25
TIMEOUT_SECONDS = 5.0
RESOLVED = "resolved"
RESOLVE_SECONDS = 600.0
"""What resolving takes beyond the patience: the rest of the drill, 2 min of export, 5 min of continued firing."""


class ThroughError(RuntimeError):
    """The drill cannot be followed; the message gives the reason and the way out."""


@dataclass(frozen=True)
class Stations:
    """The addresses."""

    endpoint: str
    daemon: str
    prometheus: str
    alertmanager: str
    token_file: str = ""
    """The file with the daemon's token, to acknowledge with; without one, somebody else has to."""


@dataclass
class AlertPath:
    """The way of one drill's alert."""

    job: str
    seconds: dict[str, float] = field(default_factory=dict)
    """By station: when it had the incident, after the start of the drill."""
    missing: str = ""
    """The station that did not have it in time, and what to check."""
    alert: dict[str, str] = field(default_factory=dict)
    """The labels of the alert that arrived."""
    receivers: list[str] = field(default_factory=list)
    """Its receivers in Alertmanager."""
    wrong: list[str] = field(default_factory=list)
    """What is wrong with the alerts."""


def send(
    drill: Drill, stations: Stations, *, patience: float, resolves: bool = True, on_station: Callable[[str], None]
) -> AlertPath:
    """Trains the drill once and follows its incident to Alertmanager, and until the alert resolves."""
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
                        state = "its alert is still active" if station == RESOLVED else f"{station} did not have it"
                        passage.missing = f"{state} after {since:.0f} s; {hint}{more}"
                        return passage
                    time.sleep(POLL_SECONDS)
                passage.seconds[station] = time.monotonic() - began
        finally:
            end(process)
    return passage


def _asked(passage: AlertPath, stations: Stations, drill: Drill) -> list[tuple[str, Callable[[], bool], str]]:
    """The stations in order, each with its question and what to check if the answer stays no."""
    job = passage.job
    daemon_api = Client(stations.daemon)
    prometheus = Client(stations.prometheus, server="Prometheus", timeout=TIMEOUT_SECONDS)
    alertmanager = Client(stations.alertmanager, server="Alertmanager", timeout=TIMEOUT_SECONDS)
    query = urllib.parse.urlencode({"query": f'caboose_incident_open{{training_job="{job}"}} == 1'})
    matcher = urllib.parse.urlencode({"filter": f'training_job="{job}"'})

    def incidents() -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = daemon_api.get(job_path(job, "/incidents"))["incidents"]
        except ClientError:
            return []  # the job has not reported yet
        return rows

    def daemon() -> bool:
        return bool(incidents())

    def scraped() -> bool:
        return bool(_get(prometheus, f"/api/v1/query?{query}")["data"]["result"])

    def fires() -> bool:
        alerts = _get(prometheus, "/api/v1/alerts")["data"]["alerts"]
        return any(a["labels"].get("training_job") == job and a["state"] == "firing" for a in alerts)

    def active() -> list[dict[str, Any]]:
        alerts: list[dict[str, Any]] = _get(alertmanager, f"/api/v2/alerts?{matcher}")
        return [alert for alert in alerts if alert["status"]["state"] == "active"]

    def arrived() -> bool:
        alerts = active()
        expected = {(incident["rule"], incident["worst"]) for incident in incidents()}
        right = [alert for alert in alerts if _identity(alert) in expected]
        if alerts:
            first = (right or alerts)[0]
            passage.alert = dict(first["labels"])
            passage.receivers = [receiver["name"] for receiver in first["receivers"]]
            passage.wrong = judged(alerts, expected, drill)
        return bool(right)

    def resolved() -> bool:
        _acknowledge(daemon_api, incidents(), read_token(stations.token_file))
        alerts = active()
        names = {alert["labels"].get("alertname") for alert in alerts} - {passage.alert.get("alertname")}
        passage.wrong += [more for name in sorted(names) if (more := f"{name} fired as well") not in passage.wrong]
        return not alerts

    return [
        ("daemon", daemon, f"does the drill report to it? Its CABOOSE_ENDPOINT is {stations.endpoint}"),
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
            f"did {job} end, and is its incident closed or acknowledged?"
            f" {stations.daemon}/?job={urllib.parse.quote(job, safe='')}",
        ),
    ]


def _acknowledge(daemon: Client, incidents: Sequence[Mapping[str, Any]], token: str) -> None:
    """Acknowledges what the drill ended with."""
    for incident in incidents:
        if token and incident["state"] == "unresolved" and incident["acknowledged"] is None:
            job, _, number = incident["id"].rpartition("/")
            body = {"reason": "the drill is over", "by": "caboose drill"}
            daemon.post(job_path(job, f"/incidents/{number}/ack"), body, token)


def _identity(alert: Mapping[str, Any]) -> tuple[str, str]:
    labels = alert["labels"]
    return labels.get("rule", ""), labels.get("severity", "")


def judged(alerts: Sequence[Mapping[str, Any]], expected: Collection[tuple[str, str]], drill: Drill) -> list[str]:
    """What is wrong with these alerts; `expected` are the rules and severities of the daemon's incidents."""
    wrong = []
    if len(alerts) > 1:
        names = ", ".join(sorted(f"{a['labels'].get('alertname')} ({a['labels'].get('severity')})" for a in alerts))
        wrong.append(f"{len(alerts)} alerts for one cause: {names}")
    for rule, severity in map(_identity, alerts):
        if rule not in (drill.rule, *drill.companions):
            wrong.append(f"unexpected alert of rule {rule or 'none'!r} for this drill")
        elif (rule, severity) not in expected:
            expected_text = ", ".join(sorted(f"{name} ({loud})" for name, loud in expected)) or "nothing"
            wrong.append(f"{rule} arrived as {severity}, the daemon has {expected_text}")
    if any(not alert["receivers"] for alert in alerts):
        wrong.append("Alertmanager has no receiver for it")
    return wrong


def _get(server: Client, path: str) -> Any:
    try:
        return server.get(path)
    except ClientError as error:
        raise ThroughError(str(error)) from None
