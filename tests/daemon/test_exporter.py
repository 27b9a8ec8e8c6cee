"""/metrics: one golden file, one frozen set of names, and labels that cannot break a scrape."""

import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from caboose_daemon.exporter import MAX_RANK_SERIES, StateCollector, label
from caboose_daemon.state import State
from caboose_wire import Bye, Group, Heartbeat
from support.ranks import a_hello, a_report
from support.scenario import NAN, scenario

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"


def scrape(state: State, now: float = 0.0, generate: object = generate_latest) -> str:
    registry = CollectorRegistry()
    registry.register(StateCollector(state, lambda: now))
    return generate(registry).decode()  # type: ignore[operator,no-any-return]  # both formats have one signature


def a_full_state() -> tuple[State, float]:
    """A state in which every family has a sample; the clock stands still."""
    story = scenario(ranks=2, job="llama-7b", groups=(Group("decay", "AdamW"), Group("rest", "AdamW")))
    core = story.core
    story.healthy(30).says(1, a_report(2)).says(1, a_report(31, loss=NAN, seq=35)).says(0, a_report(31)).wait(1.0)
    story.says(0, a_report(32, lr=(1e-3, 5e-4), num_dropped=3)).wait(3.0)
    core.receiver.handle(b"peer-0", [b"garbage"], story.now)
    core.say(b"ended", a_hello(job="ended", rank=0, world=1, incarnation="incarnation-e"), story.now)
    core.say(b"ended", Bye(attempt=0, step=0, time=1.0), story.now)
    core.say(b"other", a_hello(job="llama-7b", launch="run-2", incarnation="incarnation-o"), story.now)
    story.now += 2.0
    core.say(b"peer-0", Heartbeat(attempt=0, step=32, time=1.0, num_dropped=3), story.now)
    core.pass_time(story.now)
    core.state.started = 900.0
    core.state.journal_bytes, core.state.journal_failures, core.state.journal_lost = 4096, 2, 1
    for number, stats in enumerate(core.state.rule_stats.values()):
        stats.seconds, stats.failures = 0.25 * (number + 1), number
    return core.state, story.now + 0.5


def pinned(text: str) -> str:
    """The text without what differs from one release and one scrape to the next."""
    text = re.sub(r'(caboose_daemon_info\{version=")[^"]*', r"\1VERSION", text)
    return re.sub(r"^(caboose_scrape_seconds|caboose_received_bytes_total) .*$", r"\1 0.0", text, flags=re.MULTILINE)


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
    "caboose_agent_step_seconds": {"training_job"},
    "caboose_daemon_info": {"version"},
    "caboose_daemon_start_time_seconds": set(),
    "caboose_finding_open": {"training_job", "rule", "severity"},
    "caboose_findings_total": {"training_job", "rule", "severity"},
    "caboose_gradient_norm": {"training_job"},
    "caboose_job_attempt": {"training_job"},
    "caboose_job_duplicates_refused_total": {"training_job"},
    "caboose_job_live_ranks": {"training_job"},
    "caboose_job_step": {"training_job"},
    "caboose_job_steps_total": {"training_job"},
    "caboose_job_up": {"training_job"},
    "caboose_job_world_ranks": {"training_job"},
    "caboose_journal_failures_total": set(),
    "caboose_journal_lost_rows_total": set(),
    "caboose_journal_size_bytes": set(),
    "caboose_learning_rate": {"training_job", "group"},
    "caboose_loss": {"training_job", "stat"},
    "caboose_messages_received_total": {"type"},
    "caboose_messages_refused_total": {"reason"},
    "caboose_non_finite_steps_total": {"training_job"},
    "caboose_peers_connected": set(),
    "caboose_phase_seconds": {"training_job", "phase"},
    "caboose_rank_loss": {"training_job", "rank"},
    "caboose_rank_silent_seconds": {"training_job", "rank"},
    "caboose_rank_step": {"training_job", "rank"},
    "caboose_rank_step_seconds": {"training_job", "rank"},
    "caboose_received_bytes_total": set(),
    "caboose_reports_dropped_total": {"training_job"},
    "caboose_reports_late_total": {"training_job"},
    "caboose_reports_missed_total": {"training_job"},
    "caboose_rule_failures_total": {"rule"},
    "caboose_rule_runs_total": {"rule"},
    "caboose_rule_seconds_total": {"rule"},
    "caboose_scrape_seconds": set(),
    "caboose_steps_incomplete_total": {"training_job"},
}
"""Renaming one of these breaks someone's dashboard: it needs a line in the change log."""


def test_the_names_people_scrape_are_frozen() -> None:
    seen = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(scrape(*a_full_state()))
        for sample in family.samples
    }

    assert seen == FROZEN


def test_a_daemon_without_jobs_has_its_own_numbers() -> None:
    text = scrape(State(rule_configs={}, started=1.0))

    assert "caboose_peers_connected 0.0" in text
    assert "training_job=" not in text


def test_no_series_appears_twice() -> None:
    lines = [line.rpartition(" ")[0] for line in scrape(*a_full_state()).splitlines() if not line.startswith("#")]

    assert len(lines) == len(set(lines))


# Labels


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("été 日本", "été 日本", id="letters of the world"),
        pytest.param("lone\ud800surrogate", "lone?surrogate", id="lone surrogate"),
        pytest.param("two\nlines\r\t\x00", "two?lines???", id="control characters"),
        pytest.param('quote " and \\', 'quote " and \\', id="what the format escapes itself"),
        pytest.param("x" * 500, "x" * 128, id="too long"),
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
        core.say(b"%d" % rank, a_report(1), 0.0)
    core.pass_time(0.0)
    return [line for line in scrape(core.state).splitlines() if not line.startswith("#")]


def test_each_rank_has_four_series_up_to_the_limit() -> None:
    few, full = series_of(1), series_of(MAX_RANK_SERIES)

    assert len(full) - len(few) == 4 * (MAX_RANK_SERIES - 1)


def test_beyond_the_limit_no_rank_has_series_of_its_own() -> None:
    many = series_of(MAX_RANK_SERIES + 1)

    assert not [line for line in many if "rank=" in line]
    assert len([line for line in many if "rule=" not in line]) < 60
    assert f'caboose_job_live_ranks{{training_job="train"}} {MAX_RANK_SERIES + 1}.0' in many


def test_a_norm_that_is_taken_every_few_steps_stands_until_the_next_but_not_for_ever() -> None:
    story = scenario(ranks=1).healthy(3)
    for step in range(4, 8):
        story.says(0, a_report(step, arrays={}, grad_norm=None))
    story.wait(3.0)
    assert "caboose_gradient_norm{" in scrape(story.core.state)

    for step in range(8, 60):
        story.says(0, a_report(step, arrays={}, grad_norm=None))
    story.wait(3.0)
    assert "caboose_gradient_norm{" not in scrape(story.core.state)
