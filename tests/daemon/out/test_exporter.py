"""/metrics: one golden file, one frozen set of names, and labels that cannot break a scrape."""

import asyncio
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette

from caboose_daemon.app.app import Daemon
from caboose_daemon.config import Config, DaemonConfig
from caboose_daemon.jobs.state import ExportCounts, State
from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.out.metrics.ranks import MAX_RANKS
from caboose_daemon.out.metrics.samples import label
from caboose_daemon.out.metrics.table import ENTRIES
from caboose_daemon.out.metrics.units import UNITS, unit_in_name
from caboose_daemon.out.web.api import Api
from caboose_daemon.rollback.requests import ManualRequest
from caboose_daemon.rules import RULES
from caboose_daemon.rules.rank_silent import RankSilentConfig
from caboose_wire import (
    Ack,
    Bye,
    Clipping,
    Event,
    Group,
    Heartbeat,
    Held,
    Holdings,
    Layer,
    Module,
    Part,
    Phases,
    Scaler,
)
from support.ranks import a_hello, a_report
from support.scenario import NAN, Scenario, scenario

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics.txt"


def scrape(state: State, now: float = 0.0, generate: object = generate_latest) -> str:
    registry = CollectorRegistry()
    registry.register(StateCollector(state, lambda: now))
    return generate(registry).decode()  # type: ignore[operator,no-any-return]  # both formats have one signature


def a_full_state() -> tuple[State, float]:
    """A state in which every family has a sample; the clock stands still."""
    story = scenario(
        ranks=2,
        job="llama-7b",
        groups=(Group("decay", "AdamW"), Group("rest", "AdamW")),
        modules=(Module("relu", "ReLU", 8), Module("tanh", "Tanh", 8)),
        facts={"optimizer": "AdamW", "precision": "bfloat16"},
        blind={"activations": "compiled"},
        rollback="auto",
    )
    core = story.core
    story.healthy(20).meanwhile(num_samples=32, num_tokens=4096, clipping=Clipping(0.5), fingerprint=7)
    story.meanwhile(scaler=lambda rank: Scaler(2.0**16 / (1 + story.step // 25)), local_grad_norm=0.6)
    story.sampled(
        6,
        weight_norm=[1.0, 2.0, 3.0, 4.0],
        update_ratio=[1e-3, 2e-3, -1.0, 3e-3],
        activation_std=[1.0, 0.5],
        activation_dead=lambda rank: [0.25 + rank, -1.0],
        activation_saturated=[-1.0, 0.125],
        router_entropy=lambda rank: [0.5 + rank / 4, -1.0],
        router_dead=lambda rank: [0.25 + rank / 4, -1.0],
        attention_logit=lambda rank: [-1.0, 12.0 + rank],
    )
    story.says(
        0, Event(attempt=0, step=26, time=1.0, kind="validation", fields={"loss": 2.25, "accuracy": 0.5, "split": "a"})
    )
    _roll_back(story)
    story.healthy(4).says(1, a_report(2)).says(1, a_report(31, loss=NAN, seq=35)).says(0, a_report(31)).wait(1.0)
    story.says(0, a_report(32, lr=(1e-3, 5e-4), num_dropped=3, num_samples=32, num_tokens=4096)).wait(3.0)
    core.receiver.handle(b"peer-0", [b"garbage"], story.now)
    parts = (Part("critic", (0, 2), (0, 1)), Part("actor", (2, 4), (0, 1)))
    ended = a_hello(job="ended", rank=0, world=1, incarnation="incarnation-e", parts=parts)
    core.say(b"ended", ended, story.now)
    core.say(b"ended", a_report(1, part_losses=(NAN, -3.0)), story.now)
    core.pass_time(story.now)
    core.say(
        b"ended",
        Bye(
            step=0,
        ),
        story.now,
    )
    core.state.jobs["llama-7b"].num_refused = 1
    story.now += 2.0
    core.say(b"peer-0", Heartbeat(step=32, num_dropped=3, utilization=0.9375), story.now)
    core.pass_time(story.now)
    measured = {"num_samples": 32, "num_tokens": 4096, "metrics": {"accuracy": 0.75}}
    story.says(0, a_report(33, seq=40, clipping=Clipping(0.5), scaler=Scaler(2.0**15), **measured))
    story.says(
        1,
        a_report(
            33,
            seq=40,
            device_bytes=2**34,
            phases=Phases(0.125, 0.01, 0.03, 0.0625, 0.01, 0.002, forward_wait=0.0, backward_wait=0.0625),
            clipping=Clipping(0.5),
            scaler=Scaler(2.0**15),
            num_samples=32,
            num_tokens=4096,
        ),
    )
    core.pass_time(story.now)
    core.state.started = 900.0
    core.state.url, core.state.grafana_url = "http://monitor:9757/", "https://grafana.test"
    core.state.turn_seconds, core.state.scrape_seconds = 0.001, 0.125
    for job in core.state.jobs.values():
        job.lag_seconds = 0.25
    core.state.num_errors["step", "ValueError"] = 1
    core.state.journal_bytes, core.state.journal_failures, core.state.journal_lost = 4096, 2, 1
    core.state.journal_refused, core.state.journal_quarantined = 3, 5
    core.state.http_dropped["slow_head"] = 7
    core.state.exports["tensorboard"] = ExportCounts(num_sent=30, num_dropped=2, num_withdrawn=1, num_failed=4)
    for number, stats in enumerate(core.state.rule_stats.values()):
        stats.seconds, stats.failures = 0.25 * (number + 1), number
    return core.state, story.now + 0.5


def _roll_back(story: Scenario) -> None:
    """A snapshot, a checkpoint, and a rollback that somebody asked for; the ranks go on without a word of it."""
    saved = {"path": "ckpt/step-20", "step": 20}
    story.says(0, Event(attempt=0, step=20, time=1.0, kind="checkpoint", fields=saved))
    for rank in range(2):
        snapshots = (Held(10, 10, 1.0), Held(20, 20, 2.0), Held(25, 25, 3.0, is_ready=False))
        holdings = Holdings(
            group="group-of-these-ranks",
            snapshots=snapshots,
            snapshot_every=10,
            num_bytes=4096,
            snapshot_seconds=0.25,
            budget_left=2,
            cool_until=30,
        )
        story.says(rank, holdings)
    command = story.core.requests.ask(story.job, ManualRequest(to=20, by="ada"), story.now).command
    story.says(0, Ack(command=command, outcome="done", step=31, seconds=0.5))
    story.core.requests.ask(story.job, ManualRequest(to=7, by="ada"), story.now)


def pinned(text: str) -> str:
    """The text without what differs from one release and one scrape to the next."""
    text = re.sub(r'(caboose_daemon_info\{version=")[^"]*', r"\1VERSION", text)
    return re.sub(r"^(caboose_received_bytes_total) .*$", r"\1 0.0", text, flags=re.MULTILINE)


def test_the_text_is_the_golden_one(tmp_path: Path) -> None:
    text = pinned(scrape(*a_full_state()))
    (tmp_path / "metrics.txt").write_text(text)

    assert text == GOLDEN.read_text(), f"if this is meant, copy {tmp_path / 'metrics.txt'} over {GOLDEN}"


def test_promtool_finds_nothing_to_say_about_it() -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=GOLDEN.read_text(), capture_output=True, text=True, timeout=30
    )

    assert (checked.returncode, checked.stderr) == (0, "")


FROZEN = {
    "caboose_agent_overhead_ratio": {"training_job"},
    "caboose_agent_step_seconds": {"training_job"},
    "caboose_agents_disabled": {"training_job"},
    "caboose_blind": {"training_job", "stat"},
    "caboose_checkpoint_step": {"training_job", "stat"},
    "caboose_checkpoints": {"training_job", "stat"},
    "caboose_clip_ratio": {"training_job"},
    "caboose_clipped_steps_total": {"training_job"},
    "caboose_daemon_info": {"version"},
    "caboose_daemon_links_info": {"url", "runbooks", "grafana"},
    "caboose_daemon_start_time_seconds": set(),
    "caboose_decisions_total": {"training_job", "action", "reason"},
    "caboose_depth_activation_std": {"training_job", "depth"},
    "caboose_depth_dead_units_ratio": {"training_job", "depth"},
    "caboose_depth_gradient_norm": {"training_job", "depth"},
    "caboose_depth_saturated_units_ratio": {"training_job", "depth"},
    "caboose_depth_update_ratio": {"training_job", "depth"},
    "caboose_depth_weight_norm": {"training_job", "depth"},
    "caboose_export_failures_total": {"target"},
    "caboose_exports_dropped_total": {"target"},
    "caboose_exports_total": {"target"},
    "caboose_finding_open": {"training_job", "rule", "severity"},
    "caboose_findings_total": {"training_job", "rule", "severity"},
    "caboose_gradient_noise_ratio": {"training_job"},
    "caboose_gradient_norm": {"training_job"},
    "caboose_incident_info": {
        "training_job",
        "rule",
        "severity",
        "incident",
        "cause",
        "rank",
        "host",
        "layer",
        "phase",
    },
    "caboose_incident_onset_step": {"training_job", "incident"},
    "caboose_incident_open": {"training_job", "rule", "severity"},
    "caboose_incident_text": {
        "training_job",
        "rule",
        "severity",
        "incident",
        "summary",
        "description",
        "page",
        "runbook",
        "grafana",
    },
    "caboose_incident_unresolved": {"training_job", "rule", "severity"},
    "caboose_incidents_total": {"training_job", "rule"},
    "caboose_job_attempt": {"training_job"},
    "caboose_job_duplicates_refused_total": {"training_job"},
    "caboose_job_failed": {"training_job"},
    "caboose_job_info": {"training_job", "wrapper", "optimizer", "precision"},
    "caboose_job_live_ranks": {"training_job"},
    "caboose_job_missing_ranks": {"training_job"},
    "caboose_job_severity": {"training_job"},
    "caboose_job_step": {"training_job"},
    "caboose_job_steps_total": {"training_job"},
    "caboose_job_up": {"training_job"},
    "caboose_job_world_ranks": {"training_job"},
    "caboose_jobs_hidden": set(),
    "caboose_jobs_known": set(),
    "caboose_http_connections_dropped_total": {"reason"},
    "caboose_journal_failures_total": set(),
    "caboose_journal_lost_rows_total": set(),
    "caboose_journal_quarantined_rows": set(),
    "caboose_journal_refused_rows_total": set(),
    "caboose_journal_size_bytes": set(),
    "caboose_journal_writable": set(),
    "caboose_layer_activation_std": {"training_job", "stat"},
    "caboose_layer_dead_units_ratio": {"training_job", "stat"},
    "caboose_layer_age_steps": {"training_job", "stat"},
    "caboose_layer_attention_logit": {"training_job", "stat"},
    "caboose_layer_gradient_norm": {"training_job", "stat"},
    "caboose_layer_router_dead_experts_ratio": {"training_job", "stat"},
    "caboose_layer_router_entropy_ratio": {"training_job", "stat"},
    "caboose_layer_saturated_units_ratio": {"training_job", "stat"},
    "caboose_layer_update_ratio": {"training_job", "stat"},
    "caboose_layer_weight_norm": {"training_job", "stat"},
    "caboose_layers_unseen": {"training_job"},
    "caboose_learning_rate": {"training_job", "group"},
    "caboose_internal_errors_total": {"stage"},
    "caboose_job_quarantined": {"training_job"},
    "caboose_loop_lag_seconds": set(),
    "caboose_loop_turn_seconds": set(),
    "caboose_loop_behind_seconds": set(),
    "caboose_loss": {"training_job", "stat"},
    "caboose_loss_scale": {"training_job"},
    "caboose_messages_received_total": {"type"},
    "caboose_messages_refused_total": {"reason"},
    "caboose_model_step": {"training_job"},
    "caboose_names_hidden": {"training_job"},
    "caboose_non_finite_steps_total": {"training_job"},
    "caboose_part_gradient_norm": {"training_job", "part"},
    "caboose_part_learning_rate": {"training_job", "part"},
    "caboose_part_loss": {"training_job", "part"},
    "caboose_peers_connected": set(),
    "caboose_job_throttled_messages_total": {"training_job"},
    "caboose_relay_buffered_seconds": set(),
    "caboose_store_backlog_rows": set(),
    "caboose_relay_messages_dropped_total": set(),
    "caboose_relay_ranks": set(),
    "caboose_relays_connected": set(),
    "caboose_phase_seconds": {"training_job", "phase"},
    "caboose_rank_device_memory_bytes": {"training_job", "rank", "host"},
    "caboose_rank_own_seconds": {"training_job", "rank", "host"},
    "caboose_rank_device_utilization_ratio": {"training_job", "rank", "host"},
    "caboose_rank_loss": {"training_job", "rank", "host"},
    "caboose_rank_silent_seconds": {"training_job", "rank", "host"},
    "caboose_rank_step": {"training_job", "rank", "host"},
    "caboose_rank_step_seconds": {"training_job", "rank", "host"},
    "caboose_received_bytes_total": set(),
    "caboose_replicas_compared": {"training_job"},
    "caboose_replicas_differing": {"training_job"},
    "caboose_reports_dropped_total": {"training_job"},
    "caboose_reports_late_total": {"training_job"},
    "caboose_reports_missed_total": {"training_job"},
    "caboose_rollback_budget_left": {"training_job"},
    "caboose_rollback_cooldown_steps": {"training_job"},
    "caboose_rollback_exhausted": {"training_job"},
    "caboose_rollback_lost_steps_total": {"training_job"},
    "caboose_rollback_mode": {"training_job", "stat"},
    "caboose_rollback_seconds": {"training_job"},
    "caboose_rule_failures_total": {"rule"},
    "caboose_rule_runs_total": {"rule"},
    "caboose_rule_seconds_total": {"rule"},
    "caboose_rules_abstaining": {"training_job"},
    "caboose_samples_per_second": {"training_job"},
    "caboose_scrape_seconds": set(),
    "caboose_skipped_steps_total": {"training_job"},
    "caboose_skipped_updates_total": {"training_job"},
    "caboose_snapshot_age_steps": {"training_job"},
    "caboose_snapshot_every_steps": {"training_job"},
    "caboose_snapshot_seconds": {"training_job"},
    "caboose_snapshot_size_bytes": {"training_job"},
    "caboose_snapshots_ready": {"training_job"},
    "caboose_steps_incomplete_total": {"training_job"},
    "caboose_tokens_per_second": {"training_job"},
    "caboose_user_metric": {"training_job", "name"},
    "caboose_validation_loss": {"training_job"},
    "caboose_validation_metric": {"training_job", "stat"},
    "caboose_validation_step": {"training_job"},
    "caboose_worst_layer_activation_std": {"training_job", "layer"},
    "caboose_worst_layer_dead_units_ratio": {"training_job", "layer"},
    "caboose_worst_layer_gradient_norm": {"training_job", "layer"},
    "caboose_worst_layer_attention_logit": {"training_job", "layer"},
    "caboose_worst_layer_router_dead_experts_ratio": {"training_job", "layer"},
    "caboose_worst_layer_router_entropy_ratio": {"training_job", "layer"},
    "caboose_worst_layer_saturated_units_ratio": {"training_job", "layer"},
    "caboose_worst_layer_update_ratio": {"training_job", "layer"},
    "caboose_worst_layer_weight_norm": {"training_job", "layer"},
}
"""Renaming one of these breaks someone's dashboard: it needs a line in the change log."""


def test_the_names_people_scrape_are_frozen() -> None:
    seen = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(scrape(*a_full_state()))
        for sample in family.samples
    }

    assert seen == FROZEN
    assert {name: set(entry.labels) for name, entry in ENTRIES.items()} == FROZEN, "the table has them all"


def test_the_table_follows_the_conventions() -> None:
    for name, entry in ENTRIES.items():
        assert re.fullmatch(r"caboose_[a-z_]+", name), name
        assert name.endswith("_total") == (entry.kind == "counter"), name
        assert entry.help, name
        assert entry.tells, name
        assert "job" not in entry.labels, "Prometheus owns that one"


def test_a_daemon_without_jobs_has_its_own_numbers() -> None:
    text = scrape(State(rule_configs={}, started=1.0))

    assert "caboose_peers_connected 0.0" in text
    assert "training_job=" not in text


def test_no_series_appears_twice() -> None:
    lines = [line.rpartition(" ")[0] for line in scrape(*a_full_state()).splitlines() if not line.startswith("#")]

    assert len(lines) == len(set(lines))


# Units


def test_every_metric_has_a_unit_and_none_is_written_down_for_nothing() -> None:
    assert all(entry.unit for entry in ENTRIES.values())
    written = [f"caboose_{name}" for names in UNITS.values() for name in names.split()]
    assert sorted(written) == sorted(name for name in ENTRIES if not unit_in_name(name))


def test_openmetrics_tells_the_unit_where_the_name_ends_in_it() -> None:
    text = scrape(*a_full_state(), generate=generate_openmetrics)
    told = dict(re.findall(r"^# UNIT (\w+) (\w+)$", text, flags=re.MULTILINE))

    assert told["caboose_rank_step_seconds"] == "seconds"
    assert told["caboose_received_bytes"] == "bytes"
    assert "caboose_loss" not in told
    assert all(family.endswith(f"_{unit}") for family, unit in told.items())
    assert told == {
        name.removesuffix("_total"): unit_in_name(name)
        for name in ENTRIES
        if unit_in_name(name) and f"# TYPE {name.removesuffix('_total')} " in text
    }
    assert list(openmetrics_families(text)), "it can be read"


# Labels


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("été 日本", "été 日本", id="letters of the world"),
        pytest.param("lone\ud800surrogate", "lone?surrogate", id="lone surrogate"),
        pytest.param("two\nlines\r\t\x00", "two?lines???", id="control characters"),
        pytest.param('quote " and \\', 'quote " and \\', id="what the format escapes itself"),
        pytest.param("x" * 500 + "end", "\N{HORIZONTAL ELLIPSIS}" + "x" * 124 + "end", id="too long"),
    ],
)
def test_a_label_is_printable_and_short(value: str, expected: str) -> None:
    assert label(value) == expected


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\ud800b", "{}=,#", "\u2028", "\U0001f600"])
def test_no_job_name_breaks_the_scrape(name: str) -> None:
    story = scenario(ranks=1)
    story.healthy(3)
    job = story.core.state.jobs.pop("train")
    job.name = name
    job.groups = (Group(name, "SGD"),)
    story.core.state.jobs[name] = job

    for generate in (generate_latest, generate_openmetrics):
        text = scrape(story.core.state, generate=generate)
        names = {
            sample.labels["training_job"]
            for family in text_string_to_metric_families(text.removesuffix("# EOF\n"))
            for sample in family.samples
            if "training_job" in sample.labels
        }
        assert names == {label(name)}


def test_two_groups_of_one_name_are_two_series() -> None:
    story = scenario(ranks=1, groups=(Group("0", "SGD"), Group("0", "SGD"))).meanwhile(lr=(0.5, 0.25)).healthy(2)

    rates = [line for line in scrape(story.core.state).splitlines() if line.startswith("caboose_learning_rate{")]

    assert rates == [
        'caboose_learning_rate{group="0",training_job="train"} 0.5',
        'caboose_learning_rate{group="0 (2)",training_job="train"} 0.25',
    ]


def test_long_names_of_layers_keep_their_ends_and_stay_apart() -> None:
    path = "model.decoder." + "wrapped." * 20
    layers = tuple(Layer(f"{path}{name}.weight", 10, "Linear") for name in ("q_proj", "k_proj"))
    layers += (Layer("x" + "y" * 200, 10, "Linear"), Layer("z" + "y" * 200, 10, "Linear"))
    text = scrape(scenario(ranks=1, layers=layers).healthy(2).core.state)

    names = re.findall(r'caboose_worst_layer_gradient_norm\{layer="([^"]*)"', text)
    assert len(set(names)) == 4
    assert [name[-13:] for name in names[:2]] == ["q_proj.weight", "k_proj.weight"]
    assert names[0].startswith("\N{HORIZONTAL ELLIPSIS}")
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


# Numbers


def test_nan_is_a_value_and_nothing_is_no_series() -> None:
    text = scrape(scenario(ranks=2).nan_loss(1, at=3).core.state)
    assert 'caboose_loss{stat="mean",training_job="train"} NaN' in text

    quiet = scenario(ranks=1).says(0, a_report(1, loss=None, phases=None, lr=(), arrays={})).wait(1.0)
    text = scrape(quiet.core.state)
    assert "caboose_loss{" not in text
    assert "caboose_gradient_norm{" not in text


def test_a_job_with_one_failed_rank_is_up_while_others_live() -> None:
    story = scenario(ranks=2).healthy(2).leaves(1, error="boom")
    assert 'caboose_job_up{training_job="train"} 1.0' in scrape(story.core.state)

    story.leaves(0)
    assert 'caboose_job_up{training_job="train"} 0.0' in scrape(story.core.state)


def test_an_open_finding_has_a_series_and_a_closed_one_has_not() -> None:
    story = scenario(ranks=1).nan_loss(0, at=3)
    assert 'caboose_finding_open{rule="non_finite",severity="warning",training_job="train"} 1.0' in scrape(
        story.core.state
    )

    text = scrape(story.healthy(3).core.state)
    assert "caboose_finding_open{" not in text
    assert "caboose_findings_total{" in text


# Cardinality


def series_of(ranks: int) -> list[str]:
    core = scenario(ranks=1, joined=[]).core
    for rank in range(ranks):
        core.say(b"%d" % rank, a_hello(rank=rank, world=ranks), 0.0)
    for rank in range(ranks):
        core.say(b"%d" % rank, a_report(1, device_bytes=2**30), 0.0)
        core.say(b"%d" % rank, Heartbeat(step=1, utilization=0.5), 0.0)
    core.pass_time(0.0)
    return [line for line in scrape(core.state).splitlines() if not line.startswith("#")]


def test_each_rank_on_a_gpu_has_six_series_up_to_the_limit() -> None:
    few, full = series_of(1), series_of(MAX_RANKS)

    assert len(full) - len(few) == 6 * (MAX_RANKS - 1)


def test_beyond_the_limit_only_the_ten_worst_ranks_have_series() -> None:
    many = series_of(MAX_RANKS + 1)

    assert len([line for line in many if 'rank="' in line and line.startswith("caboose_rank_")]) == 6 * 10
    assert f'caboose_job_live_ranks{{training_job="train"}} {MAX_RANKS + 1}.0' in many


def test_a_norm_that_is_taken_every_few_steps_stands_until_the_next_but_not_for_ever() -> None:
    story = scenario(ranks=1).healthy(3)
    for step in range(4, 8):
        story.says(0, a_report(step, arrays={}))
    story.wait(3.0)
    assert "caboose_gradient_norm{" in scrape(story.core.state)

    for step in range(8, 60):
        story.says(0, a_report(step, arrays={}))
    story.wait(3.0)
    assert "caboose_gradient_norm{" not in scrape(story.core.state)


def test_the_layers_hold_the_norms_that_were_measured_last_and_say_how_old_they_are() -> None:
    story = scenario(ranks=1).healthy(3)
    for step in range(4, 11):
        story.says(0, a_report(step, arrays={}))
    story.wait(3.0)
    lines = scrape(story.core.state).splitlines()

    assert 'caboose_layer_gradient_norm{stat="max",training_job="train"}' in "\n".join(lines)
    assert len([line for line in lines if line.startswith("caboose_worst_layer_gradient_norm{")]) == 4
    assert 'caboose_layer_age_steps{stat="gradient",training_job="train"} 7.0' in lines


def test_a_rank_holds_the_time_of_its_last_timed_step() -> None:
    waits = Phases(0.5, 0.01, 0.1, 0.2, 0.01, forward_wait=0.0, backward_wait=0.25)
    story = scenario(ranks=2).plays(3, phases=waits).plays(2, phases=None)

    assert len([line for line in scrape(story.core.state).splitlines() if line.startswith("caboose_rank_own_s")]) == 2


def test_the_norm_of_ranks_that_turn_out_to_reduce_gradients_themselves_does_not_stand() -> None:
    story = scenario(ranks=2, parts=(Part("g", (0, 2), (0, 1)), Part("d", (2, 4), (0, 1)))).healthy(3)
    for step in range(4, 8):
        for rank in range(2):
            norms = np.array([3.0, 4.0, 12.0, 84.0], dtype=np.float32) * np.float32(1 + rank)
            story.says(rank, a_report(step, arrays={"grad_norm": norms}))
    story.wait(3.0)
    metrics = scrape(story.core.state)
    assert "caboose_gradient_norm{" not in metrics
    assert "caboose_part_gradient_norm{" not in metrics
    assert "caboose_layer_gradient_norm{" not in metrics


def test_an_incident_is_told_at_its_worst_for_two_minutes_and_then_as_it_is() -> None:
    story = scenario(ranks=1).nan_loss(0, at=3, steps=4, spreads=True).healthy(4)
    (incident,) = story.job.incidents
    assert (incident.worst, incident.is_open) == ("critical", False)
    series = 'caboose_incident_open{rule="non_finite",severity="critical",training_job="train"} 1.0'

    assert series in scrape(story.core.state, now=incident.opened_time + 119.0)
    assert "caboose_incident_open{" not in scrape(story.core.state, now=incident.opened_time + 121.0)


def test_two_minutes_count_from_when_it_last_got_worse() -> None:
    patient = {"rank_silent": RankSilentConfig(critical_seconds=600.0)}
    story = scenario(ranks=2, about="rank_silent", rules=patient).falls_silent(1).wait(604.0)
    (incident,) = story.job.incidents.open
    assert incident.severity == "critical"
    since = incident.critical_time
    assert since is not None
    assert since - incident.opened_time > 500, "it was a warning for long"
    story.speaks(1).wait(4.0)
    assert not story.job.incidents.open
    series = 'caboose_incident_open{rule="rank_silent",severity="critical",training_job="train"} 1.0'

    assert series in scrape(story.core.state, now=since + 119.0)
    assert "caboose_incident_open{" not in scrape(story.core.state, now=since + 121.0)


def test_a_page_that_becomes_a_ticket_does_not_come_back_as_a_page() -> None:
    story = scenario(ranks=2).nan_loss(0, at=3, steps=4, spreads=True)
    now = story.job.incidents.open[0].opened_time + 200.0
    assert 'severity="critical"' in scrape(story.core.state, now=now)

    text = scrape(story.healthy(4).core.state, now=now)
    assert "caboose_incident_open{" not in text


# Who is there


def of_fleet(story: Scenario) -> dict[str, float]:
    """The job's samples about its ranks, by name."""
    lines = (line for line in scrape(story.core.state, story.now).splitlines() if line.startswith("caboose_job_"))
    named = {line.partition("{")[0].removeprefix("caboose_job_"): float(line.rpartition(" ")[2]) for line in lines}
    return {name: named[name] for name in ("up", "live_ranks", "missing_ranks", "world_ranks")}


def test_a_rank_that_falls_silent_is_no_longer_live_and_is_missed() -> None:
    story = scenario(ranks=2).healthy(5)
    assert of_fleet(story) == {"up": 1, "live_ranks": 2, "missing_ranks": 0, "world_ranks": 2}

    story.falls_silent(1).wait(60.0)

    assert of_fleet(story) == {"up": 1, "live_ranks": 1, "missing_ranks": 1, "world_ranks": 2}


def test_a_job_that_was_killed_does_not_stay_up() -> None:
    story = scenario(ranks=2).healthy(5).falls_silent(0, 1).wait(60.0)

    assert of_fleet(story) == {"up": 0, "live_ranks": 0, "missing_ranks": 2, "world_ranks": 2}


def test_a_job_that_ended_misses_nobody() -> None:
    story = scenario(ranks=2).healthy(5)
    for rank in range(2):
        story.says(
            rank,
            Bye(
                step=5,
            ),
        )

    assert of_fleet(story) == {"up": 0, "live_ranks": 0, "missing_ranks": 0, "world_ranks": 2}


class _Slow(Collector):
    """Stands for what a scrape does beside reading the state."""

    def collect(self) -> Iterator[Metric]:
        threading.Event().wait(0.05)
        yield Metric("slow", "Nothing", "gauge")


def test_a_scrape_tells_how_long_the_whole_answer_before_it_took(tmp_path: Path) -> None:
    daemon = Daemon(Config(daemon=DaemonConfig(data_dir=str(tmp_path))))
    registry = CollectorRegistry()
    registry.register(StateCollector(daemon.state, lambda: 0.0))
    registry.register(_Slow())
    application = Starlette(routes=Api(daemon._context, registry).routes())

    async def scraped_twice() -> list[str]:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://daemon") as client:
            return [(await client.get("/metrics")).text for _ in range(2)]

    try:
        first, second = asyncio.run(scraped_twice())
    finally:
        daemon.close()
    assert "caboose_scrape_seconds" not in first
    (line,) = re.findall(r"^caboose_scrape_seconds (.+)$", second, flags=re.MULTILINE)
    assert 0.05 <= float(line) < 30.0


def test_incidents_of_every_rule_are_counted_from_nothing() -> None:
    story = scenario(ranks=2).healthy(5)

    def counts() -> dict[str, float]:
        families = text_string_to_metric_families(scrape(story.core.state, story.now))
        return {s.labels["rule"]: s.value for f in families for s in f.samples if s.name == "caboose_incidents_total"}

    assert counts() == {rule.name: 0.0 for rule in RULES}

    story.nan_loss(0, at=6, steps=3)

    assert counts() == {rule.name: float(rule.name == "non_finite") for rule in RULES}
