"""The Alertmanager example: valid, every alert reaches the right receiver with a text, and one cause notifies once."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from caboose_daemon.ops.stack import configs
from support.alerts import DASHBOARDS, rules
from support.http import http
from support.pager import Pager, a_pager
from support.processes import end, wait_until

CONFIG = DASHBOARDS / "alertmanager" / "alertmanager.yml"
NAMES = ("prometheus-alertmanager", "alertmanager")
"""The names of the program in Debian and elsewhere."""


def amtool(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["amtool", *arguments], capture_output=True, text=True, timeout=30)


def test_amtool_accepts_it() -> None:
    ended = amtool("check-config", str(CONFIG))

    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        pytest.param(
            {"alertname": "CabooseWatchdog", "team": "platform", "severity": "none"}, "dead-man", id="watchdog"
        ),
        pytest.param(
            {"team": "training", "severity": "critical", "training_job": "llama"}, "training-pager", id="page"
        ),
        pytest.param(
            {"team": "training", "severity": "warning", "training_job": "llama"}, "training-chat,tickets", id="ticket"
        ),
        pytest.param(
            {"team": "training", "severity": "critical", "training_job": "speech-7"}, "speech-pager", id="a team's page"
        ),
        pytest.param(
            {"team": "training", "severity": "warning", "training_job": "speech-7"}, "speech-chat", id="a team's ticket"
        ),
        pytest.param({"team": "platform", "severity": "critical"}, "platform-pager", id="platform page"),
        pytest.param({"team": "platform", "severity": "warning"}, "platform-chat", id="platform ticket"),
        pytest.param(
            {"alertname": "CabooseEndedUnresolved", "team": "training", "severity": "none"}, "nobody", id="ended run"
        ),
        pytest.param({"alertname": "SomebodyElses"}, "tickets", id="foreign alert"),
    ],
)
def test_an_alert_goes_to_its_receivers(labels: dict[str, str], receivers: str) -> None:
    given = [f"{name}={value}" for name, value in labels.items()]

    assert amtool("config", "routes", "test", f"--config.file={CONFIG}", *given).stdout.strip() == receivers


def test_every_alert_has_a_receiver_by_severity_and_team() -> None:
    ends = {"none": "dead-man", "critical": "pager", "warning": "chat"}
    for labels in {tuple(sorted(rule.fields["labels"].items())) for rule in rules() if rule.is_alert}:
        given = [f"{name}={value}" for name, value in labels]
        name = ["alertname=CabooseWatchdog"] if dict(labels)["severity"] == "none" else []
        receiver = amtool("config", "routes", "test", f"--config.file={CONFIG}", *given, *name).stdout
        assert ends[dict(labels)["severity"]] in receiver


def test_it_contains_no_secret() -> None:
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    keys = {
        key
        for receiver in config["receivers"]
        for kind in receiver.values()
        if isinstance(kind, list)
        for key in kind[0]
    }

    assert "slack_api_url" not in config["global"]
    assert not keys & {"routing_key", "service_key", "api_url", "token"}
    assert all(url.endswith(".example") for url in _hosts(config))


def _hosts(config: dict[str, Any]) -> list[str]:
    urls = [c["url"] for receiver in config["receivers"] for c in receiver.get("webhook_configs", [])]
    assert urls
    return [httpx.URL(url).host for url in urls]


# Inhibition, by a real Alertmanager


def alert(name: str, severity: str, **labels: str) -> dict[str, Any]:
    team = "training" if "rule" in labels or "Roll" in name else "platform"
    return {"labels": {"alertname": name, "severity": severity, "team": team, **labels}}


CONFIGS = {
    "example": CONFIG.read_text(encoding="utf-8"),
    "compose": (DASHBOARDS.parent / "deploy" / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"),
    "stack": configs.alertmanager(None),
}


def test_all_configurations_have_the_same_inhibitions() -> None:
    by_file = {name: yaml.safe_load(text)["inhibit_rules"] for name, text in CONFIGS.items()}

    assert by_file["stack"] == by_file["example"] == by_file["compose"]


@pytest.mark.parametrize("name", CONFIGS)
def test_amtool_accepts_each(name: str, tmp_path: Path) -> None:
    (tmp_path / "alertmanager.yml").write_text(CONFIGS[name])

    ended = amtool("check-config", str(tmp_path / "alertmanager.yml"))

    assert ended.returncode == 0, ended.stdout + ended.stderr


@contextlib.contextmanager
def running(config: dict[str, Any], folder: Path) -> Iterator[str]:
    """Runs a real Alertmanager and yields its address."""
    program = next(name for name in NAMES if shutil.which(name))
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        assert wait_until(lambda: _is_ready(url), 60), (folder / "log").read_text()
        yield url
    finally:
        end(process)


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Alertmanager that sends no notification while a test runs."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["route"]["group_wait"] = "1h"
    for receiver in config["receivers"]:
        receiver.pop("webhook_configs", None)
    with running(config, tmp_path_factory.mktemp("alertmanager")) as url:
        yield url


def _is_ready(url: str) -> bool:
    try:
        return http.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


PAGE = alert("CabooseLossSpike", "critical", training_job="llama", rule="loss_spike")
TICKET = alert("CabooseLossSpike", "warning", training_job="llama", rule="loss_spike")
STRAGGLER = alert("CabooseStraggler", "warning", training_job="llama", rule="straggler")
EXHAUSTED = alert("CabooseRollbackExhausted", "critical", training_job="llama")
ROLLED = alert("CabooseRolledBack", "warning", training_job="llama")
FAILED = alert("CabooseRollbackFailed", "critical", training_job="llama")
GONE = alert("CabooseRankSilent", "critical", training_job="llama", rule="rank_silent")
ENDED = alert("CabooseEndedUnresolved", "none", training_job="llama", rule="loss_spike")
BLIND = alert("CabooseMonitorBlind", "warning", training_job="gpt", rule="monitor_blind")
LOSING = alert("CabooseJournalLosingRows", "critical", instance="a:9757", job="caboose")
FULL = alert("CabooseJournalUnwritable", "warning", instance="a:9757", job="caboose")
LAGGING = alert("CabooseLoopLagging", "warning", instance="a:9757", job="caboose")
ABSENT = alert("CabooseAbsent", "critical")
FOREIGN_PAGE = {"labels": {"alertname": "GpuLost", "team": "training", "severity": "critical"}}
FOREIGN_TICKET = {"labels": {"alertname": "GpuHot", "team": "training", "severity": "warning"}}
FOREIGN_OF_A_JOB = {"labels": {**FOREIGN_PAGE["labels"], "training_job": "llama"}}
FOREIGN_DISK = {"labels": {"alertname": "NodeDiskFull", "team": "platform", "severity": "warning"}}


@pytest.mark.parametrize(
    ("sent", "notified"),
    [
        pytest.param([PAGE, TICKET], [PAGE], id="a page silences its own ticket"),
        pytest.param(
            [PAGE, STRAGGLER],
            [PAGE, STRAGGLER],
            id="a page does not silence another cause",
        ),
        pytest.param(
            [PAGE, alert("CabooseLossSpike", "warning", training_job="other", rule="loss_spike")],
            [PAGE, alert("CabooseLossSpike", "warning", training_job="other", rule="loss_spike")],
            id="a page does not silence another job",
        ),
        pytest.param(
            [LOSING, alert("CabooseScrapeSlow", "warning", instance="b:9757", job="caboose")],
            [LOSING, alert("CabooseScrapeSlow", "warning", instance="b:9757", job="caboose")],
            id="alerts that both lack job and rule are not equal",
        ),
        pytest.param([EXHAUSTED, PAGE, ROLLED], [PAGE], id="an incident page silences rollback exhausted"),
        pytest.param(
            [EXHAUSTED, alert("CabooseLrTooHigh", "critical", training_job="llama", rule="lr_too_high")],
            [alert("CabooseLrTooHigh", "critical", training_job="llama", rule="lr_too_high")],
            id="a page of any lead rule silences rollback exhausted",
        ),
        pytest.param([EXHAUSTED, ROLLED], [EXHAUSTED], id="rollback exhausted pages if no incident does"),
        pytest.param([FAILED, GONE], [FAILED], id="a failed rollback silences its silent ranks"),
        pytest.param([FAILED, GONE, PAGE], [PAGE], id="an incident page silences both"),
        pytest.param([GONE, PAGE], [GONE, PAGE], id="a silent rank pages beside another cause"),
        pytest.param([PAGE, ROLLED], [PAGE, ROLLED], id="a rollback ticket is sent beside the page of its incident"),
        pytest.param(
            [alert("CabooseRollbackFailed", "critical", training_job="llama"), EXHAUSTED, STRAGGLER],
            [alert("CabooseRollbackFailed", "critical", training_job="llama"), STRAGGLER],
            id="a failed rollback is one page and silences no other cause",
        ),
        pytest.param([LOSING, FULL], [LOSING], id="lost rows silence the full disk"),
        pytest.param(
            [alert("CabooseJobUnwatched", "warning", training_job="gpt", job="caboose"), BLIND],
            [alert("CabooseJobUnwatched", "warning", training_job="gpt", job="caboose")],
            id="an unwatched job silences its partial alerts",
        ),
        pytest.param([BLIND], [BLIND], id="a partial alert alone is sent"),
        pytest.param([ABSENT, FULL, PAGE], [ABSENT, PAGE], id="an absent daemon silences its old warnings"),
        pytest.param(
            [
                LAGGING,
                alert("CabooseLoopSlow", "warning", instance="a:9757", job="caboose"),
                alert("CabooseRulesSlow", "warning", instance="b:9757", job="caboose"),
                alert("CabooseReportsLate", "warning", training_job="llama", job="caboose"),
            ],
            [LAGGING, alert("CabooseRulesSlow", "warning", instance="b:9757", job="caboose")],
            id="a lagging daemon silences its own slowness, not that of another",
        ),
        pytest.param([ABSENT, FOREIGN_DISK], [ABSENT, FOREIGN_DISK], id="foreign platform alerts are not silenced"),
        pytest.param(
            [FOREIGN_PAGE, FOREIGN_TICKET, PAGE, TICKET],
            [FOREIGN_PAGE, FOREIGN_TICKET, PAGE],
            id="foreign tickets are not silenced, also if both lack the compared labels",
        ),
        pytest.param(
            [FOREIGN_OF_A_JOB, ROLLED, GONE],
            [FOREIGN_OF_A_JOB, ROLLED, GONE],
            id="foreign pages silence no Caboose alert",
        ),
        pytest.param([PAGE, FOREIGN_OF_A_JOB], [PAGE, FOREIGN_OF_A_JOB], id="Caboose pages silence no foreign alert"),
        pytest.param([ENDED, PAGE, STRAGGLER], [ENDED, STRAGGLER], id="what a run ended with is not sent again"),
    ],
)
def test_one_cause_notifies_once(alertmanager: str, sent: list[dict[str, Any]], notified: list[dict[str, Any]]) -> None:
    http.post(f"{alertmanager}/api/v2/alerts", json=sent, timeout=10).raise_for_status()

    def shown() -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = http.get(f"{alertmanager}/api/v2/alerts", timeout=10).json()
        return answer

    try:
        # Alertmanager sets the status of an alert soon after it has answered the request.
        assert wait_until(lambda: len(shown()) == len(sent), 20)
        assert wait_until(
            lambda: _labels(a for a in shown() if not a["status"]["inhibitedBy"]) == _labels(notified), 20
        ), shown()
    finally:
        over = [{**one, "endsAt": "2020-01-01T00:00:00Z", "startsAt": "2019-01-01T00:00:00Z"} for one in sent]
        http.post(f"{alertmanager}/api/v2/alerts", json=over, timeout=10).raise_for_status()
        assert wait_until(lambda: not shown(), 20)


def _labels(alerts: Iterable[dict[str, Any]]) -> list[tuple[tuple[str, str], ...]]:
    return sorted(tuple(sorted(one["labels"].items())) for one in alerts)


# The texts that a real Alertmanager sends


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[tuple[str, Pager]]:
    """The example configuration, and a server that records what it sends to PagerDuty and Slack."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["route"]["group_wait"] = "1s"
    (tmp_path / "key").write_text("key")
    with a_pager() as pager:
        (tmp_path / "slack-url").write_text(pager.url)
        config["global"]["slack_api_url_file"] = str(tmp_path / "slack-url")
        for receiver in config["receivers"]:
            receiver.pop("webhook_configs", None)
            for pagerduty in receiver.get("pagerduty_configs", ()):
                pagerduty |= {"url": pager.url, "routing_key_file": str(tmp_path / "key")}
        with running(config, tmp_path) as url:
            yield url, pager


def down(instance: str) -> dict[str, Any]:
    texts = {"summary": f"The daemon at {instance} is not scraped", "description": f"Start the one at {instance}"}
    return {
        **alert("CabooseDown", "critical", job="caboose", instance=instance),
        "annotations": {**texts, "runbook_url": "http://monitor:9757/runbooks/CabooseDown"},
    }


def slow(instance: str) -> dict[str, Any]:
    return {
        **alert("CabooseLoopSlow", "warning", job="caboose", instance=instance),
        "annotations": {"summary": f"A turn at {instance} takes 2s", "description": f"Look at {instance}"},
    }


def test_two_alerts_of_one_group_have_a_summary_without_a_common_one(sending: tuple[str, Pager]) -> None:
    url, pager = sending
    sent = [down("a:9757"), down("b:9757"), slow("a:9757"), slow("b:9757")]
    http.post(f"{url}/api/v2/alerts", json=sent, timeout=10).raise_for_status()

    assert wait_until(lambda: len(pager.notifications) == 2, 60)

    (page,) = (sent["payload"] for sent in pager.notifications if "payload" in sent)
    (line,) = (sent["attachments"][0] for sent in pager.notifications if "attachments" in sent)
    assert page["summary"] == "2 x CabooseDown: The daemon at a:9757 is not scraped"
    assert page["custom_details"]["text"] == "Start the one at a:9757"
    assert page["custom_details"]["runbook"] == "http://monitor:9757/runbooks/CabooseDown"
    assert "The daemon at b:9757 is not scraped" in page["custom_details"]["firing"], "all are listed"
    assert line["title"] == "2 x CabooseLoopSlow: A turn at a:9757 takes 2s"
    assert [text in line["text"] for text in ("Look at a:9757", "Look at b:9757")] == [True, True]


def test_a_single_alert_is_sent_with_its_own_summary(sending: tuple[str, Pager]) -> None:
    url, pager = sending
    http.post(f"{url}/api/v2/alerts", json=[down("a:9757"), slow("b:9757")], timeout=10).raise_for_status()

    assert wait_until(lambda: len(pager.notifications) == 2, 60)

    summaries = {sent["payload"]["summary"] for sent in pager.notifications if "payload" in sent}
    summaries |= {sent["attachments"][0]["title"] for sent in pager.notifications if "attachments" in sent}
    assert summaries == {"The daemon at a:9757 is not scraped", "A turn at b:9757 takes 2s"}
