"""Findings on consecutive steps are one episode: told once, with its worst severity, until it ends."""

from typing import Any

from caboose_daemon.incidents.episodes import MAX_KEPT, Episode, EpisodeLog
from caboose_daemon.rules.parts.finding import Finding, Severity


def a_finding(step: int = 10, **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "rule": "loss_spike",
        "severity": Severity.WARNING,
        "step": step,
        "onset_step": 10,
        "summary": "high",
    }
    return Finding(**{**fields, **changes})


def added(log: EpisodeLog, *findings: Finding, attempt: int = 1) -> list[Episode]:
    return [episode for finding in findings for episode in log.add(finding, attempt, float(finding.step))]


def test_findings_with_one_onset_are_one_episode() -> None:
    log = EpisodeLog()
    added(log, *(a_finding(step) for step in range(10, 20)))

    (episode,) = log
    assert (episode.num_findings, episode.first.step, episode.last.step) == (10, 10, 19)
    assert (episode.detected_time, episode.last_time) == (10.0, 19.0)


def test_keeps_the_highest_severity_it_ever_had() -> None:
    log = EpisodeLog()
    for step, severity in enumerate((Severity.WARNING, Severity.CRITICAL, Severity.INFO), 10):
        added(log, a_finding(step, severity=severity))

    (episode,) = log
    assert (episode.severity, episode.last.severity) == ("critical", "info")


def test_ends_when_the_rule_says_so() -> None:
    log = EpisodeLog()
    added(log, a_finding(10))

    (episode,) = added(log, a_finding(14, state="resolved", severity=Severity.INFO))

    assert not episode.is_open
    assert log.open == []
    assert [e.severity for e in log] == ["warning"]


def test_another_onset_ends_the_one_and_begins_the_next() -> None:
    log = EpisodeLog()
    added(log, a_finding(10))

    ended, begun = added(log, a_finding(30, onset_step=30))

    assert (ended.id, ended.is_open) == (1, False)
    assert (begun.id, begun.is_open) == (2, True)


def test_the_same_onset_in_another_attempt_is_another_episode() -> None:
    log = EpisodeLog()
    added(log, a_finding(10), attempt=1)
    added(log, a_finding(10), attempt=2)

    assert [(e.attempt, e.is_open) for e in log] == [(2, True), (1, False)]


def test_each_rule_has_an_episode_of_its_own() -> None:
    log = EpisodeLog()
    added(log, a_finding(10), a_finding(11, rule="non_finite", severity=Severity.CRITICAL))

    assert [e.rule for e in log.open] == ["non_finite", "loss_spike"], "the worst first"


def test_the_end_of_something_unknown_is_nothing() -> None:
    log = EpisodeLog()

    assert added(log, a_finding(10, state="resolved")) == []
    assert list(log) == []


def test_all_end_with_their_attempt() -> None:
    log = EpisodeLog()
    added(log, a_finding(10), a_finding(10, rule="non_finite"))

    assert [e.is_open for e in log.close_all()] == [False, False]
    assert log.open == []


def test_the_closed_ones_are_bounded_and_the_newest_stay() -> None:
    log = EpisodeLog()
    for onset in range(MAX_KEPT + 50):
        added(log, a_finding(onset, onset_step=onset))

    kept = list(log)
    assert len(kept) == MAX_KEPT + 1
    assert [e.first.onset_step for e in kept[:2]] == [MAX_KEPT + 49, MAX_KEPT + 48]


def test_what_a_journal_kept_goes_on_where_it_was() -> None:
    before = EpisodeLog()
    added(before, a_finding(3, onset_step=3), a_finding(10), a_finding(11))
    after = EpisodeLog()
    after.restore(sorted(before, key=lambda e: e.id))

    added(after, a_finding(12))
    added(after, a_finding(30, rule="non_finite", onset_step=30))

    assert [(e.id, e.num_findings, e.is_open) for e in after] == [(3, 1, True), (2, 3, True), (1, 1, False)]
