"""What a pager receives, through a real daemon, Prometheus and Alertmanager."""

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from caboose_daemon.config import Config
from caboose_daemon.incidents.incident import Incident
from caboose_daemon.ops.stack import stack as stacks
from caboose_daemon.rules.parts.describe import alert_name
from caboose_wire import Bye
from support.alert_stories import DESCRIPTIONS, EVERY_DESCRIPTION, STORIES, SUMMARIES
from support.http import http
from support.pager import Pager, a_pager
from support.processes import wait_until
from support.ranks import send_steps, simulated_ranks
from support.scenario import JournaledCore, watching
from support.stacked import acknowledge, ask, running_stack
from support.summaries import lacks

pytestmark = pytest.mark.slow  # several programs, and their times


@pytest.fixture
def pager() -> Iterator[Pager]:
    with a_pager() as pager:
        yield pager


@pytest.fixture
def stack(tmp_path: Path, pager: Pager) -> Iterator[stacks.Stack]:
    with running_stack(tmp_path / "stack", pager) as made:
        yield made


def test_a_thousand_steps_of_an_open_incident_are_one_series_and_one_notification(
    stack: stacks.Stack, pager: Pager
) -> None:
    with simulated_ranks(stack.endpoint, 2, {"job": "nan"}) as ranks:
        send_steps(ranks, 1, 50)
        send_steps(ranks, 51, 80, loss=math.nan)
        assert wait_until(lambda: pager.alerts("firing", severity="critical"), 60), "no page arrived"
        for first in range(81, 1081, 50):
            send_steps(ranks, first, first + 49, loss=math.nan)
            time.sleep(0.4)
        job = f"{stack.daemon_url}/api/v1/jobs/nan"
        assert wait_until(lambda: http.get(job, timeout=5).json()["step"] >= 1075, 60)
        wait_until(lambda: False, 3.0)

        critical = '{training_job="nan",severity="critical"}[10m]'
        assert len(ask(stack, f"count_over_time(caboose_incident_text{critical})")) == 1
        assert len(ask(stack, "count_over_time(caboose_incident_text[10m])")) <= 2, "one for each severity"
        assert pager.told(severity="critical") == ["firing"], "notified once"


def test_a_run_that_ends_in_nan_stays_active_is_sent_once_and_resolves_when_it_is_acknowledged(
    stack: stacks.Stack, pager: Pager
) -> None:
    with simulated_ranks(stack.endpoint, 2, {"job": "over"}) as ranks:
        send_steps(ranks, 1, 50)
        send_steps(ranks, 51, 80, loss=math.nan)
        assert wait_until(lambda: pager.alerts("firing", severity="critical"), 60), "no page arrived"
        for rank in ranks:
            rank.send(Bye(step=80))
        url = f"{stack.daemon_url}/api/v1/jobs/over"
        assert wait_until(lambda: http.get(url, timeout=5).json()["state"] == "ended", 20)

    left = 'caboose_incident_unresolved{training_job="over"} == 1'
    assert wait_until(lambda: ask(stack, left), 20)
    shown = 'ALERTS{alertname="CabooseEndedUnresolved",training_job="over",alertstate="firing"}'
    assert wait_until(lambda: ask(stack, shown), 60)
    wait_until(lambda: False, 8.0)  # longer than the series of an incident may be missing
    assert ask(stack, 'ALERTS{alertname="CabooseNonFinite",training_job="over",alertstate="firing"}')
    assert not ask(stack, 'caboose_incident_open{training_job="over"}')
    assert pager.told(training_job="over") == ["firing"], "neither repeated nor resolved"

    acknowledge(stack, "over/1")

    assert wait_until(lambda: pager.told(training_job="over") == ["firing", "resolved"], 60), pager.notifications
    assert http.get(url, timeout=5).json()["health"] == "info"


def test_the_ten_most_frequent_alerts_say_what_to_do(tmp_path: Path, pager: Pager) -> None:
    directory = tmp_path / "stack"
    (directory / "data").mkdir(parents=True)
    told: dict[str, Incident] = {}
    for rule, play in STORIES.items():
        core = JournaledCore(directory / "data" / "journal.sqlite", Config(rules=watching(rule, {})))
        story = play(core, time.time() - 3600.0)
        told[rule] = next(incident for incident in story.job.incidents.open if incident.rule == rule)
        core.commit(time.time())
        core.close()
    config = "[daemon]\nabandoned_seconds = 1e9\n[grafana]\nurl = 'https://grafana.test'\nannotations = false\n"

    with running_stack(directory, pager, config=config, quick_tickets=True) as stack:
        for rule, incident in told.items():
            alerts = wait_until(lambda rule=rule: pager.alerts("firing", rule=rule), 90)  # type: ignore[misc]
            assert alerts, f"{rule} did not arrive"
            texts = alerts[0]["annotations"]
            assert alerts[0]["labels"]["alertname"] == alert_name(rule)
            assert lacks(texts["summary"], *SUMMARIES[rule]) == []
            assert lacks(texts["description"], *EVERY_DESCRIPTION, *DESCRIPTIONS[rule]) == []
            assert texts["dashboard"] == f"{stack.daemon_url}/?job={incident.job}#incident={incident.number}"
            assert texts["grafana"] == f"https://grafana.test/d/caboose-run?var-job={incident.job}"
            assert "example" not in str(texts)
            _has_filled_runbook(texts["runbook_url"], incident)
            assert http.get(texts["dashboard"], timeout=10).status_code == 200


def _has_filled_runbook(url: str, incident: Incident) -> None:
    answer: httpx.Response = http.get(url, timeout=10)
    assert answer.status_code == 200
    assert "<h2>This incident</h2>" in answer.text
    assert f"caboose diagnose {incident.job}" in answer.text
    assert not re.search(r"\b(JOB|INCIDENT)\b", answer.text)
