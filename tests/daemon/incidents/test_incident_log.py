"""Episodes become incidents: joined, led by what is nearest to the cause, opened again rather than twice, closed."""

import inspect
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from caboose_daemon.incidents.causal_links import CONFIRMED_BY, CONSEQUENCES, WARNS_OF, can_share_cause
from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.incidents.incident import Acknowledgement, Incident
from caboose_daemon.incidents.incident_log import MAX_EPISODES, MAX_KEPT, IncidentLog, Moment
from caboose_daemon.rules import RULES, config_advice
from caboose_daemon.rules.parts.finding import Finding, Severity
from support.scenario import JournaledCore

Make = Callable[..., JournaledCore]


def an_episode(rule: str, onset: int = 100, *, id_: int = 0, **changes: Any) -> Episode:
    """An episode of one finding, open unless it says otherwise."""
    names = ("severity", "ranks", "layers", "phase", "summary", "state", "values")
    fields = {name: changes.pop(name) for name in names if name in changes}
    told = changes.pop("told", onset)
    finding = Finding(
        **{
            "rule": rule,
            "severity": Severity.WARNING,
            "step": changes.pop("last", told),
            "onset_step": onset,
            "summary": f"{rule} was seen",
            **fields,
        }
    )
    return Episode(
        **{
            "id": id_ or zlib.crc32(f"{rule} {onset}".encode()),
            "attempt": 1,
            "first": finding,
            "last": finding,
            "severity": finding.severity,
            "num_findings": 1,
            "detected_time": float(told),
            "last_time": float(finding.step),
            "is_open": True,
            "worst": finding,
            "reported_step": told,
            **changes,
        }
    )


def over(episode: Episode, step: int, summary: str = "it is over") -> Episode:
    """The same episode, ended at a step."""
    last = Finding(
        rule=episode.rule,
        severity=Severity.INFO,
        step=step,
        onset_step=episode.first.onset_step,
        summary=summary,
        state="resolved",
    )
    return replace(episode, last=last, is_open=False, last_time=float(step))


def at(step: int, attempt: int = 1, **changes: Any) -> Moment:
    return Moment(attempt, step, float(step), **changes)


def taken(log: IncidentLog, *episodes: Episode, step: int) -> list[Incident]:
    return log.update(episodes, at(step))


# Joining


def test_every_rule_of_the_catalogue_has_its_place_among_kin() -> None:
    assert set(CONSEQUENCES) == {rule.name for rule in RULES}
    assert {rule for effects in CONSEQUENCES.values() for rule in effects} <= set(CONSEQUENCES)


def test_findings_of_one_step_are_one_incident_led_by_the_one_nearest_to_a_cause() -> None:
    log = IncidentLog("train")

    (incident,) = taken(
        log, an_episode("gradient_explosion"), an_episode("loss_spike"), an_episode("lr_schedule"), step=100
    )

    assert incident.rule == "lr_schedule"
    assert {member.rule for member in incident.episodes} == {"lr_schedule", "loss_spike", "gradient_explosion"}
    assert (incident.id, incident.onset_step, incident.state) == ("train/1", 100, "open")


def test_the_lead_stays_who_it_was_when_more_is_found() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("loss_spike"), step=100)

    (incident,) = taken(log, an_episode("bad_batch", 99, severity=Severity.CRITICAL), step=101)

    assert (incident.rule, incident.severity, incident.onset_step) == ("loss_spike", "critical", 99)


def test_what_has_nothing_to_do_with_it_is_an_incident_of_its_own() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("loss_spike"), step=100)
    taken(log, an_episode("straggler"), step=101)

    assert [incident.rule for incident in log.open] == ["loss_spike", "straggler"]


def test_two_ranks_with_the_same_trouble_are_two_incidents() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("rank_outlier", ranks=(3,)), step=100)
    taken(log, an_episode("bad_batch", ranks=(5,)), step=101)

    assert len(log.open) == 2


@pytest.mark.parametrize(
    ("known", "new", "is_kin"),
    [
        (an_episode("gradient_explosion", 100), an_episode("loss_spike", 103), True),
        (over(an_episode("gradient_explosion", 100), 105), an_episode("divergence", 205), True),
        (over(an_episode("gradient_explosion", 100), 105), an_episode("divergence", 206), False),
        (an_episode("lr_too_high", 10), an_episode("divergence", 5000), True),
        (an_episode("plateau", 1000, told=3000), an_episode("lr_too_low", 900, told=3050), True),
        (an_episode("loss_spike", 1000), an_episode("lr_schedule", 1101), False),
        (an_episode("clipping", 10), an_episode("loss_spike", 5000), False),
        (an_episode("loss_spike", 100, attempt=1), an_episode("divergence", 100, attempt=2), False),
    ],
    ids=[
        "an effect soon after",
        "an effect within the horizon of what is over",
        "an effect too long after what is over",
        "an effect of what has lasted",
        "a cause found after its effect",
        "a cause that began after its effect",
        "what has no such effect",
        "another attempt",
    ],
)
def test_kin_are_those_whose_rules_and_times_fit(known: Episode, new: Episode, is_kin: bool) -> None:
    assert can_share_cause(known, new, 100) is is_kin


def schedule(kind: str, onset: int = 300, **changes: Any) -> Episode:
    """A schedule in trouble of this kind."""
    return an_episode("lr_schedule", onset, values={kind: 1.0, "lr": 1e-3, "before": 1e-3}, **changes)


@pytest.mark.parametrize(
    ("known", "new", "is_kin"),
    [
        (schedule("jump"), an_episode("non_finite", 310), True),
        (schedule("reset"), an_episode("divergence", 310), True),
        (schedule("unmoved"), an_episode("non_finite", 310, ranks=(2,)), False),
        (schedule("unmoved"), an_episode("non_finite", 2501, ranks=(2,)), False),
        (schedule("unmoved"), an_episode("plateau", 2501), True),
        (schedule("unmoved"), an_episode("lr_too_low", 2501), True),
        (schedule("zero"), an_episode("loss_spike", 320), False),
        (schedule("zero"), an_episode("frozen_parameters", 400), True),
        (an_episode("loss_spike", 290), schedule("unmoved"), False),
        (an_episode("loss_spike", 290), schedule("jump", 289, told=291), True),
        (an_episode("not_learning", 1, told=504), schedule("zero"), True),
        (an_episode("activation_collapse", 300), an_episode("non_finite", 400), True),
        (an_episode("activation_collapse", 300), an_episode("non_finite", 401), False),
        (an_episode("activation_collapse", 300), an_episode("plateau", 4000), True),
        (an_episode("rank_outlier", 300, ranks=(3,)), an_episode("loss_spike", 4000), False),
        (an_episode("rank_outlier", 300, ranks=(3,)), an_episode("non_finite", 4000, ranks=(3,)), True),
        (an_episode("rank_outlier", 300, ranks=(3,)), an_episode("non_finite", 4000, ranks=(5,)), False),
        (an_episode("bad_batch", 300, ranks=(0,)), an_episode("divergence", 4000), True),
        (an_episode("replica_desync", 300, ranks=(5,)), an_episode("divergence", 4000), True),
        (an_episode("lr_too_high", 300), an_episode("loss_spike", 4000), True),
        (an_episode("loss_scale_collapse", 300), an_episode("non_finite", 4000), True),
        (an_episode("divergence", 300), an_episode("non_finite", 4000), True),
    ],
)
def test_a_break_is_laid_to_what_can_have_caused_it_and_not_to_whatever_lasts(
    known: Episode, new: Episode, is_kin: bool
) -> None:
    assert can_share_cause(known, new, 100) is is_kin


def test_a_break_is_laid_to_what_got_worse_shortly_before() -> None:
    begun = an_episode("activation_collapse", 300)
    worse = replace(begun, severity=Severity.CRITICAL, worst=msgspec.structs.replace(begun.worst, step=3950))

    assert can_share_cause(worse, an_episode("divergence", 4000), 100)


def advice(*names: str, told: int = 1) -> Episode:
    """Advice on these settings, given at the first step or after a while."""
    return an_episode("config_advice", 1, told=told, values=dict.fromkeys(names, 1.0))


@pytest.mark.parametrize(
    ("known", "new", "is_kin"),
    [
        (advice("high_lr"), an_episode("lr_too_high", 20), True),
        (advice("high_lr"), an_episode("lr_too_high", 9000), True),
        (advice("high_lr"), an_episode("divergence", 101), True),
        (advice("high_lr"), an_episode("divergence", 5000), True),
        (advice("high_lr"), an_episode("non_finite", 102), False),
        (advice("high_lr"), an_episode("lr_too_low", 20), False),
        (advice("high_lr"), an_episode("straggler", 20), False),
        (an_episode("not_learning", 1, told=504), advice("low_lr", told=200), True),
        (an_episode("lr_too_low", 40), advice("low_lr", told=200), True),
        (advice("low_lr", told=200), an_episode("non_finite", 20), False),
        (advice("fp16_without_scaler"), an_episode("non_finite", 30), True),
        (advice("fp16_without_scaler"), an_episode("loss_scale_collapse", 30), True),
        (advice("fp16_without_scaler"), an_episode("non_finite", 5000), False),
        (advice("adam_l2"), an_episode("divergence", 2), False),
        (an_episode("plateau", 300, told=700), an_episode("not_learning", 1, told=504), True),
        (an_episode("dead_units", 211, told=211), an_episode("not_learning", 1, told=250), True),
        (an_episode("frozen_parameters", 1, told=101), an_episode("dead_units", 301), True),
        (an_episode("frozen_parameters", 1, told=101), an_episode("metric_divergence", 301), True),
        (an_episode("not_learning", 1, told=504), an_episode("plateau", 900), True),
        (over(an_episode("not_learning", 1, told=504), 800), an_episode("plateau", 5000), False),
        (over(an_episode("loss_spike", 50), 73), an_episode("oscillation", 273, told=422), True),
        (over(an_episode("loss_spike", 50), 73), an_episode("oscillation", 274, told=422), False),
        (over(an_episode("loss_spike", 50), 73), an_episode("oscillation", 223, told=250), False),
        (an_episode("dead_units", 301), an_episode("oscillation", 223, told=422), True),
        (an_episode("lr_schedule", 300), an_episode("dead_units", 350), True),
        (an_episode("lr_schedule", 300), an_episode("activation_collapse", 310), True),
        (an_episode("lr_schedule", 300), an_episode("clipping", 310), True),
        (over(an_episode("lr_schedule", 300), 400), an_episode("dead_units", 5000), False),
    ],
)
def test_advice_and_standstill_have_kin_too_while_the_times_fit(known: Episode, new: Episode, is_kin: bool) -> None:
    assert can_share_cause(known, new, 100) is is_kin


def test_every_piece_of_advice_that_warns_of_something_is_one_the_rule_gives() -> None:
    given = set(re.findall(r'\("(\w+)", (?:Severity|self._about_rates)', inspect.getsource(config_advice)))

    assert set(WARNS_OF) | set(CONFIRMED_BY) <= given


def test_advice_yields_the_lead_to_what_comes_of_it() -> None:
    log = IncidentLog("train")
    (incident,) = taken(log, advice("high_lr"), step=1)
    assert incident.rule == "config_advice"

    (incident,) = taken(log, an_episode("loss_spike", 30, severity=Severity.CRITICAL), step=30)
    assert (incident.number, incident.rule, incident.severity) == (1, "loss_spike", "critical")

    (incident,) = taken(log, an_episode("lr_too_high", 20, told=40), step=40)
    assert (incident.number, incident.rule) == (1, "loss_spike"), "from there on it is fixed"


def test_a_finding_that_explains_two_incidents_makes_them_one() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("dead_units", 400, told=420), step=420)
    taken(log, an_episode("loss_spike", 430), step=430)
    assert [i.number for i in log.open] == [1]  # a spike beside dead units may be one already
    other = IncidentLog("train")
    taken(other, an_episode("clipping", 400, told=440), step=440)
    taken(other, an_episode("saturation", 410, told=450), step=450)
    assert len(other.open) == 2

    merged, kept = taken(other, an_episode("lr_too_high", 390, told=460), step=460)

    assert (merged.number, merged.state) == (2, "resolved")
    assert merged.merged_into == 1
    assert {member.rule for member in kept.episodes} == {"clipping", "saturation", "lr_too_high"}
    assert [i.number for i in other.open] == [1]


def test_the_one_that_is_critical_already_takes_the_others_in() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("saturation", 400, told=440), step=440)
    taken(log, an_episode("non_finite", 450, severity=Severity.CRITICAL), step=450)
    assert [(i.number, i.severity) for i in log.open] == [(2, "critical"), (1, "warning")]

    merged, kept = taken(log, an_episode("gradient_explosion", 445, told=455), step=455)

    assert (merged.number, merged.state, merged.is_merged) == (1, "resolved", True)
    assert merged.merged_into == 2
    assert (kept.number, kept.rule, kept.critical_time) == (2, "non_finite", 450.0), "nobody is called again"
    assert {member.rule for member in kept.episodes} == {"saturation", "non_finite", "gradient_explosion"}
    assert kept.onset_step == 400


@pytest.mark.parametrize(
    ("severities", "onsets", "joined"),
    [
        ((Severity.WARNING, Severity.CRITICAL), (100, 100), 2),
        ((Severity.WARNING, Severity.WARNING), (60, 90), 2),
        ((Severity.WARNING, Severity.WARNING), (90, 60), 1),
    ],
    ids=["the worst", "the nearest of equals", "the nearest of equals, whichever came first"],
)
def test_what_comes_of_faults_on_two_ranks_joins_one_of_them_and_makes_them_no_single_fault(
    severities: tuple[Severity, Severity], onsets: tuple[int, int], joined: int
) -> None:
    log = IncidentLog("train")
    taken(log, an_episode("rank_outlier", onsets[0], ranks=(3,), severity=severities[0]), step=100)
    taken(log, an_episode("replica_desync", onsets[1], ranks=(5,), severity=severities[1]), step=100)

    (changed,) = taken(log, an_episode("loss_spike", 110), step=110)

    assert changed.number == joined
    assert [(i.number, i.state) for i in sorted(log.open, key=lambda i: i.number)] == [(1, "open"), (2, "open")]


def test_a_fault_on_another_rank_does_not_join_through_what_names_none() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("rank_outlier", ranks=(3,)), an_episode("loss_spike"), step=100)
    taken(log, an_episode("non_finite", 110, ranks=(5,)), step=110)
    taken(log, an_episode("bad_batch", 112, ranks=(3,)), step=112)

    assert [(i.number, {m.rule for m in i.episodes}) for i in sorted(log.open, key=lambda i: i.number)] == [
        (1, {"rank_outlier", "loss_spike", "bad_batch"}),
        (2, {"non_finite"}),
    ]


def test_what_is_over_and_was_another_ranks_is_not_opened_again_by_what_names_none() -> None:
    log = IncidentLog("train")
    past = an_episode("bad_batch", 60, ranks=(3,))
    taken(log, past, step=60)
    taken(log, over(past, 65), step=65)
    taken(log, an_episode("replica_desync", 100, ranks=(5,)), step=100)

    taken(log, an_episode("loss_spike", 110), step=110)

    assert [(i.number, i.is_open, i.num_reopened) for i in log] == [(2, True, 0), (1, False, 0)]


def test_a_finding_that_names_the_ranks_of_two_incidents_makes_them_one() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("rank_outlier", ranks=(3,)), step=100)
    taken(log, an_episode("non_finite", ranks=(5,)), step=101)

    taken(log, an_episode("replica_desync", 102, ranks=(3, 5)), step=102)

    assert [i.number for i in log.open] == [1]


def test_a_journal_without_the_field_has_the_merge_in_its_reason() -> None:
    log = IncidentLog("train")
    (opened,) = taken(log, an_episode("saturation", 400), step=400)
    old = "it has the same cause as train/2, and goes on there"
    merged = msgspec.structs.replace(opened, state="resolved", reason=old)

    again = IncidentLog("train")
    again.restore([merged], merged.episodes)

    (restored,) = again
    assert restored.merged_into == 2
    assert restored.is_merged


def test_what_was_taken_in_stays_so_over_a_restart() -> None:
    log = IncidentLog("train")
    episodes = [
        an_episode("saturation", 400, told=440, id_=1),
        an_episode("non_finite", 450, severity=Severity.CRITICAL, id_=2),
        an_episode("gradient_explosion", 445, told=455, id_=3),
    ]
    for episode in episodes:
        taken(log, episode, step=episode.reported_step)
    again = IncidentLog("train")
    again.restore(sorted(log, key=lambda i: i.number), episodes)

    assert [(i.number, i.is_open, i.is_merged) for i in again] == [(2, True, False), (1, False, True)]
    (kept,) = taken(again, over(episodes[1], 470), step=470)
    assert kept.number == 2
    assert kept.is_open, "the others go on"


def test_when_it_last_rose_is_remembered_by_severity() -> None:
    log = IncidentLog("train")
    first = an_episode("loss_spike", 100)
    (opened,) = taken(log, first, step=100)
    assert (opened.warning_time, opened.critical_time) == (100.0, None)

    (worse,) = taken(log, replace(first, severity=Severity.CRITICAL), step=110)
    assert (worse.warning_time, worse.critical_time) == (100.0, 110.0)

    (over_,) = taken(log, over(replace(first, severity=Severity.CRITICAL), 114), step=114)
    assert (over_.is_open, over_.warning_time, over_.critical_time) == (False, 100.0, 110.0)

    (again,) = taken(log, an_episode("loss_spike", 120), step=120)
    assert (again.number, again.worst) == (1, Severity.CRITICAL)
    assert (again.warning_time, again.critical_time) == (120.0, 110.0), "it is a warning now"


def test_what_is_over_is_one_with_what_is_open_when_a_finding_has_kin_in_both() -> None:
    log = IncidentLog("train")
    spike, late = an_episode("loss_spike", 50), an_episode("oscillation", 223, told=422)
    taken(log, spike, step=50)
    taken(log, over(spike, 73), step=73)
    taken(log, an_episode("dead_units", 301), step=301)

    taken(log, late, step=422)

    (incident,) = log.open
    assert incident.number == 2, "the one that people know of takes the other in"
    assert {member.rule for member in incident.episodes} == {"loss_spike", "dead_units", "oscillation"}
    assert [i.is_merged for i in log if i.number == 1] == [True]


def test_what_was_over_too_long_ago_stays_over() -> None:
    log = IncidentLog("train")
    spike = an_episode("loss_spike", 50)
    taken(log, spike, step=50)
    taken(log, over(spike, 73), step=73)
    taken(log, an_episode("dead_units", 901), step=901)
    taken(log, an_episode("oscillation", 823, told=1022), step=1022)

    assert [(i.number, i.is_open) for i in log] == [(2, True), (1, False)]


def test_what_is_for_the_record_opens_nothing_but_joins_what_it_belongs_to() -> None:
    log = IncidentLog("train")
    assert taken(log, an_episode("gradient_explosion", severity=Severity.INFO), step=100) == []

    (incident,) = taken(log, an_episode("loss_spike", 101), step=101)

    assert (incident.rule, incident.onset_step) == ("loss_spike", 101)
    assert [m.rule for m in incident.episodes] == ["loss_spike", "gradient_explosion"]


def test_what_merely_goes_on_is_no_news() -> None:
    log = IncidentLog("train")
    first = an_episode("loss_spike", id_=1)
    taken(log, first, step=100)

    assert taken(log, an_episode("loss_spike", id_=1, last=101), step=101) == []


def test_steps_of_a_log_that_writes_one_in_fifty_lie_fifty_times_as_far_apart() -> None:
    log = IncidentLog("log.csv", gap=50)
    taken(log, over(an_episode("gradient_explosion", 10_000), 10_050), step=10_000)
    taken(log, an_episode("loss_spike", 14_000), step=14_000)

    assert len(list(log)) == 1


# Closing, and opening again


def test_is_over_when_nothing_worth_a_ticket_is_open_and_says_why() -> None:
    log = IncidentLog("train")
    spike, aside = an_episode("loss_spike"), an_episode("dead_units", severity=Severity.INFO)
    taken(log, spike, aside, step=100)

    (incident,) = taken(log, over(spike, 130, "loss is back at 2"), step=130)

    assert (incident.state, incident.reason, incident.closed_step) == ("resolved", "loss is back at 2", 130)
    assert log.open == []


def test_a_page_ends_with_what_was_critical_and_a_ticket_may_remain() -> None:
    log = IncidentLog("train")
    spike = an_episode("loss_spike", severity=Severity.CRITICAL)
    taken(log, spike, an_episode("oscillation"), step=100)

    (incident,) = taken(log, over(spike, 130), step=130)

    assert (incident.severity, incident.worst, incident.is_open) == ("warning", "critical", True)


def test_recovers_when_all_that_is_open_does() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("loss_spike", id_=1), step=100)

    (incident,) = taken(log, an_episode("loss_spike", id_=1, state="recovering"), step=110)

    assert incident.state == "recovering"


def test_the_same_fault_soon_after_opens_it_again() -> None:
    log = IncidentLog("train")
    spike = an_episode("loss_spike")
    taken(log, spike, step=100)
    taken(log, over(spike, 130), step=130)

    (incident,) = taken(log, an_episode("loss_spike", 300), step=300)

    assert (incident.number, incident.num_reopened, incident.state) == (1, 1, "open")
    assert incident.closed_step is None


def test_the_same_fault_long_after_is_a_new_incident() -> None:
    log = IncidentLog("train")
    spike = an_episode("loss_spike")
    taken(log, spike, step=100)
    taken(log, over(spike, 130), step=130)

    (incident,) = taken(log, an_episode("loss_spike", 431), step=431)

    assert (incident.number, incident.num_reopened) == (2, 0)


def test_what_comes_back_in_the_next_attempt_is_the_same_incident() -> None:
    log = IncidentLog("train")
    nan = an_episode("non_finite", ranks=(3,))
    taken(log, nan, step=100)
    log.update([over(nan, 110)], at(110), reason="attempt 2 began", is_cut=True)

    (incident,) = log.update([an_episode("non_finite", ranks=(3,), attempt=2)], at(100, 2))
    assert (incident.number, incident.num_reopened) == (1, 1)

    log.update([over(incident.episodes[-1], 120)], at(120, 2))  # the rule saw it end: that was it
    assert log.update([an_episode("non_finite", 101, ranks=(3,), attempt=3)], at(101, 3))[0].number == 2


def test_of_what_a_journal_kept_open_that_has_nothing_open_in_it_is_over() -> None:
    log = IncidentLog("train")
    nan = an_episode("non_finite")
    (incident,) = taken(log, nan, step=100)
    ended = over(nan, 130, "all numbers are finite again")

    restored = IncidentLog("train")
    restored.restore([msgspec.structs.replace(incident, episodes=(ended, ended))], [ended])

    (healed,) = restored
    assert (healed.state, healed.reason, healed.closed_step) == ("resolved", "all numbers are finite again", 130)
    assert len(healed.episodes) == 1


def test_an_episode_that_ends_after_its_incident_opens_nothing() -> None:
    log = IncidentLog("train")
    nan = an_episode("non_finite")
    taken(log, nan, step=100)
    log.close_all(at(110), "the run ended")

    assert taken(log, over(nan, 110), step=110) == []
    (incident,) = log
    assert (incident.state, incident.num_reopened) == ("resolved", 0)
    assert [member.is_open for member in incident.episodes] == [False]


def test_acknowledged_until_it_is_over_and_not_when_it_comes_back() -> None:
    log = IncidentLog("train")
    spike = an_episode("loss_spike", id_=1)
    taken(log, spike, step=100)

    held = log.acknowledge(1, Acknowledgement(5.0, "ada", "known data switch"))
    assert held is not None
    assert held.state == "acknowledged"
    assert taken(log, an_episode("loss_spike", id_=1, state="recovering"), step=101) == []
    (closed,) = taken(log, over(spike, 130), step=130)
    assert closed.acknowledged is not None
    (again,) = taken(log, an_episode("loss_spike", 140), step=140)
    assert (again.state, again.acknowledged) == ("open", None)
    assert log.acknowledge(7, None) is None


def test_an_acknowledgement_holds_for_the_severity_it_was_given_at() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("loss_spike", id_=1), step=100)
    log.acknowledge(1, Acknowledgement(5.0, "ada", "a noisy shard"))
    assert taken(log, an_episode("oscillation", id_=2), step=105)[0].state == "acknowledged", "no worse than before"

    (worse,) = taken(log, an_episode("divergence", 106, id_=3, severity=Severity.CRITICAL), step=106)

    assert (worse.severity, worse.state, worse.acknowledged) == ("critical", "open", None)
    assert worse.outgrown is not None
    assert (worse.outgrown.by, worse.outgrown.severity) == ("ada", "warning")

    again = log.acknowledge(1, Acknowledgement(6.0, "ada", "rolling back"))
    assert again is not None
    assert (again.state, again.outgrown) == ("acknowledged", None)


def test_an_acknowledgement_at_critical_outlives_a_lull() -> None:
    log = IncidentLog("train")
    nan = an_episode("non_finite", severity=Severity.CRITICAL)
    taken(log, nan, an_episode("loss_spike"), step=100)
    log.acknowledge(1, Acknowledgement(5.0, "ada", "a bad host"))
    taken(log, over(nan, 110), step=110)

    (worse,) = taken(log, an_episode("non_finite", 115, severity=Severity.CRITICAL), step=115)

    assert (worse.severity, worse.state) == ("critical", "acknowledged")


def test_memory_is_bounded_however_long_a_rule_flutters() -> None:
    log = IncidentLog("train")
    taken(log, an_episode("divergence", 1, id_=1), step=1)
    for number in range(2, 400):
        spike = an_episode("loss_spike", number, id_=number)
        taken(log, spike, step=number)
        taken(log, over(spike, number), step=number)
    for number in range(1000, 1000 + 2 * MAX_KEPT):
        nan = an_episode("straggler", 10_000 * number, id_=number, ranks=(number,))
        taken(log, nan, step=10_000 * number)
        taken(log, over(nan, 10_000 * number), step=10_000 * number)

    assert len(log.open[0].episodes) == MAX_EPISODES
    assert log.open[0].episodes[0].rule == "divergence"
    assert len(list(log)) == MAX_KEPT + 1


# The first witness


def test_the_first_witness_is_the_earliest_sign_that_names_a_place() -> None:
    log = IncidentLog("train")

    (incident,) = log.update(
        [an_episode("loss_spike", 104), an_episode("gradient_explosion", 100, layers=("h.3.weight",), ranks=(5,))],
        at(104, host_of=lambda rank: f"node{rank}", regimes=frozenset({"warmup"})),
    )

    witness = incident.witness
    assert witness is not None
    assert (witness.rule, witness.ranks, witness.host, witness.layers) == (
        "gradient_explosion",
        (5,),
        "node5",
        ("h.3.weight",),
    )
    assert witness.steps_before_loss == 4
    assert incident.regimes == ("warmup",)


def test_where_nothing_names_a_place_there_is_no_witness() -> None:
    (incident,) = taken(IncidentLog("train"), an_episode("plateau"), step=100)

    assert incident.witness is None
