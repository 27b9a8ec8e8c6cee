"""Alerts and recording rules: generated files are up to date, metrics exist, every alert fires and stops on time."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from caboose_daemon.config import MetricsConfig
from caboose_daemon.incidents.alert_catalogue import CATALOGUE
from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.out.metrics.table import ENTRIES
from caboose_daemon.rules import RULES
from support.alerts import ALERTS, RULE_FILES, Rule, rules, selectors
from support.processes import clean_environment
from support.scenario import scenario

EVERY = rules()
EVERY_ALERT = [rule for rule in EVERY if rule.is_alert]
OF_PROMETHEUS = {"up", "ALERTS"}
ENDED = "CabooseEndedUnresolved"
SCRAPED = {"job", "instance", "pod"}
"""Labels that Prometheus adds when it scrapes."""
each_rule = pytest.mark.parametrize("rule", EVERY, ids=str)
each_alert = pytest.mark.parametrize("alert", EVERY_ALERT, ids=str)


def promtool(*arguments: str, cwd: Path = ALERTS / "tests") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=110, cwd=cwd)


def generate(*arguments: str, script: Path = ALERTS / "generate.py") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean_environment())


# The committed files


def test_the_generated_files_are_up_to_date() -> None:
    ended = generate("--check")

    assert ended.returncode == 0, ended.stderr


def test_check_names_a_stale_file_without_changing_it(tmp_path: Path) -> None:
    copy = tmp_path / "dashboards" / "alerts"
    shutil.copytree(ALERTS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("dashboards/alertmanager", "deploy/alertmanager"):
        shutil.copytree(ALERTS.parents[1] / folder, tmp_path / folder)
    stale = (copy / "training.yml").read_text().replace("for: 5m", "for: 6m", 1)
    (copy / "training.yml").write_text(stale)

    ended = generate("--check", script=copy / "generate.py")

    assert ended.returncode == 1
    assert ended.stderr == f"{copy / 'training.yml'} is out of date; run: make docs\n"
    assert (copy / "training.yml").read_text() == stale


def test_every_rule_has_an_entry_in_the_catalogue_and_every_entry_a_rule() -> None:
    assert sorted(CATALOGUE) == sorted(rule.name for rule in RULES)


def test_every_rule_of_the_catalogue_pages_and_makes_tickets() -> None:
    found = {(rule.name, rule.severity) for rule in EVERY_ALERT if rule.file == "training.yml"}
    names = ["Caboose" + "".join(part.capitalize() for part in rule.name.split("_")) for rule in RULES]

    assert found == {(name, severity) for name in names for severity in ("critical", "warning")} | {(ENDED, "none")}


@each_alert
def test_an_alert_has_a_severity_a_team_and_the_annotations_that_people_need(alert: Rule) -> None:
    fields = alert.fields
    annotations = {"summary", "description", "runbook_url"}
    if alert.file == "training.yml" and alert.name != ENDED:
        annotations |= {"culprit", "cause", "dashboard", "grafana"}
    if alert.file == "rollback.yml":
        annotations |= {"dashboard"}

    assert alert.severity in ("critical", "warning", "none")
    assert set(fields["labels"]) == {"severity", "team"}, "any other label would change the alert's identity"
    assert set(fields["annotations"]) == annotations
    assert f"/{alert.name}{{{{ else }}}}" in fields["annotations"]["runbook_url"], "as the daemon serves it"
    assert "runbooks.example" not in str(fields["annotations"])
    assert "\n" not in fields["annotations"]["summary"]


def test_pages_do_not_wait_and_the_quickest_ticket_sees_even_the_shortest_incident() -> None:
    training = [rule for rule in EVERY_ALERT if rule.file == "training.yml"]
    waits = [60.0 * int(rule.fields["for"].removesuffix("m")) for rule in training if rule.severity == "warning"]

    assert not [rule for rule in training if rule.severity == "critical" and "for" in rule.fields]
    assert min(waits) + 60.0 <= MetricsConfig().incident_seconds, (
        "with one evaluation per minute, the default of Prometheus"
    )


# Expressions


@each_rule
def test_an_expression_names_only_metrics_and_labels_of_the_table(rule: Rule) -> None:
    recorded = {other.name for other in EVERY if not other.is_alert} if not rule.is_alert else set()

    for selector in selectors(rule.fields["expr"]):
        assert selector.name in ENTRIES.keys() | OF_PROMETHEUS | recorded
        if selector.name is not None and selector.name in ENTRIES:
            named = {matcher.name for matcher in selector.matchers.matchers}
            assert named <= {*ENTRIES[selector.name].labels, *SCRAPED}


@each_alert
def test_the_queries_of_annotations_name_only_metrics_and_labels_of_the_table(alert: Rule) -> None:
    for text in alert.fields["annotations"].values():
        for query in re.findall(r'query \(printf "((?:[^"\\]|\\.)*)"', text):
            for selector in selectors(re.sub(r"%(\[\d\])?q", '"x"', query)):
                named = {matcher.name for matcher in selector.matchers.matchers}
                assert named <= set(ENTRIES[str(selector.name)].labels)
        for name in re.findall(r"\.Labels\.(\w+)", text):
            assert name in {*ENTRIES["caboose_incident_info"].labels, *ENTRIES["caboose_incident_text"].labels}


def test_alerts_on_training_read_incidents_and_nothing_else() -> None:
    read = {s.name for rule in EVERY_ALERT if rule.file == "training.yml" for s in selectors(rule.fields["expr"])}

    assert read == {"caboose_incident_open", "caboose_incident_unresolved", "caboose_daemon_info", "ALERTS"}


def test_no_alert_reads_a_gauge_that_is_nan_when_a_run_breaks() -> None:
    story = scenario(ranks=2)
    story.healthy(30).sampled(2, weight_norm=[math.nan] * 4, update_ratio=[math.nan] * 4)
    story.nan_loss(0, at=33, steps=3, spreads=True)
    registry = CollectorRegistry()
    registry.register(StateCollector(story.core.state, lambda: story.now))
    samples = [s for f in text_string_to_metric_families(generate_latest(registry).decode()) for s in f.samples]
    broken = {sample.name for sample in samples if not math.isfinite(sample.value)}

    assert {"caboose_loss", "caboose_gradient_norm"} <= broken
    assert not broken & {s.name for rule in EVERY_ALERT for s in selectors(rule.fields["expr"])}


def test_recorded_names_are_level_metric_and_operation() -> None:
    for rule in EVERY:
        if rule.is_alert:
            continue
        level, metric, operation = rule.name.split(":")
        labels = {label for entry in ENTRIES.values() for label in entry.labels} | {"instance"}
        rest = level
        for label in sorted(labels, key=len, reverse=True):
            rest = rest.replace(label, "")
        assert not rest.strip("_"), f"{level} consists of labels"
        assert re.fullmatch(r"caboose_[a-z_]+", metric)
        assert re.fullmatch(r"(share|rate5m|avg5m|mean5m|increase1d|[a-z_]+_?[0-9]+[mhd].*)", operation)


# promtool


def test_promtool_accepts_every_file() -> None:
    ended = promtool("check", "rules", *RULE_FILES, cwd=ALERTS)

    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("path", sorted((ALERTS / "tests").glob("*.yml")), ids=lambda path: path.stem)
def test_the_timelines_of_promtool_pass(path: Path) -> None:
    ended = promtool("test", "rules", path.name)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_is_tested_firing_and_silent() -> None:
    firing: set[tuple[str, str]] = set()
    silent: set[str] = set()
    for path in (ALERTS / "tests").glob("*.yml"):
        for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for test in case.get("alert_rule_test", []):
                firing |= {(test["alertname"], alert["exp_labels"]["severity"]) for alert in test["exp_alerts"]}
                silent |= set() if test["exp_alerts"] else {test["alertname"]}

    assert firing == {(alert.name, alert.severity) for alert in EVERY_ALERT}
    assert silent == {alert.name for alert in EVERY_ALERT} - {"CabooseWatchdog"}, "it always fires"


def test_every_recorded_series_is_tested() -> None:
    text = (ALERTS / "tests" / "recording.yml").read_text(encoding="utf-8")

    assert [rule.name for rule in EVERY if not rule.is_alert and rule.name not in text] == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("alert", [a for a in EVERY_ALERT if a.file != "training.yml" and "for" in a.fields], ids=str)
def test_a_for_that_is_a_minute_off_breaks_its_timeline(alert: Rule, tmp_path: Path) -> None:
    cases = yaml.safe_load((ALERTS / "tests" / alert.file).read_text(encoding="utf-8"))
    cases["rule_files"] = ["rules.yml"]
    for case in cases["tests"]:
        case["alert_rule_test"] = [t for t in case["alert_rule_test"] if t["alertname"] == alert.name]
    cases["tests"] = [case for case in cases["tests"] if case["alert_rule_test"]]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(cases))
    minutes = int(alert.fields["for"].removesuffix("m"))

    def judged(wait: int) -> int:
        rule = {**alert.fields, "for": f"{wait}m"}
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
        return promtool("test", "rules", "tests.yml", cwd=tmp_path).returncode

    assert judged(minutes) == 0
    assert judged(minutes - 1) != 0
    assert judged(minutes + 1) != 0
