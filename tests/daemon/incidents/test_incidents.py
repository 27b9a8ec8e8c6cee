"""One cause is one incident in a whole daemon: named, kept through restarts, served, acknowledged."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from caboose_daemon.config import Config
from caboose_daemon.incidents.incident import Acknowledgement, Incident
from caboose_daemon.incidents.incident_log import MAX_KEPT
from caboose_daemon.ingest.admission import PATIENCE_SECONDS
from caboose_daemon.out.api import json_shapes
from caboose_wire import Event, Group
from support.old_journals import make_old
from support.processes import running_daemon, wait_until
from support.ranks import EVERYTHING, LAYERS, a_report, simulated_ranks
from support.scenario import JournaledCore, Scenario, scenario, watching

Make = Callable[..., JournaledCore]


def one(story: Scenario) -> Incident:
    (incident,) = story.job.incidents
    return incident


def test_one_nan_on_one_of_64_ranks_spread_by_the_all_reduce_is_one_incident_that_names_rank_and_layer() -> None:
    story = scenario(ranks=64).healthy(40)
    story.nan_gradient(*range(len(LAYERS)), at=41, local={37: [2]})
    story.nan_loss(*range(64), at=42, steps=5, spreads=True)

    incident = one(story)
    witness = incident.witness
    assert witness is not None
    assert (incident.rule, incident.severity, incident.onset_step) == ("non_finite", "critical", 41)
    assert (witness.ranks, witness.layers, witness.phase) == ((37,), (LAYERS[2].name,), "backward")
    assert (witness.host, witness.steps_before_loss) == (story.members[37].hello.host, 1)


def test_a_spike_and_its_gradient_are_one_incident() -> None:
    story = scenario().loss_spike(at=60, height=4.0, steps=5, grad_height=50.0).healthy(60)

    incident = one(story)
    assert {member.rule for member in incident.reportable} >= {"loss_spike", "gradient_explosion"}
    assert incident.state == "resolved"
    assert incident.diagnosis is not None
    assert sum(c.confidence for c in incident.diagnosis.causes) + incident.diagnosis.unknown == pytest.approx(1.0)


def told_of(story: Scenario) -> list[set[str]]:
    """The rules worth a ticket of each incident, the oldest first."""
    return [{m.rule for m in i.reportable} for i in sorted(story.job.incidents, key=lambda i: i.number)]


def trained(curve: Sequence[float], lr: Callable[[int], float], updates: float = 1.0, **settings: Any) -> Scenario:
    """One rank with this loss and rate, whose weights move by `updates` times the rate; looked at now and then."""
    story = scenario(ranks=1, visible=EVERYTHING, **settings)
    for step, loss in enumerate(curve, start=1):
        moved = np.full(len(LAYERS), updates * lr(step), dtype=np.float32)
        look = {"is_sampled": True, "arrays": {"grad_norm": story.norms.astype(np.float32), "update_ratio": moved}}
        story.plays(1, loss=float(loss), lr=(lr(step),), **(look if step % 20 == 1 else {}))
    return story


def noise(size: int, scale: float) -> Any:
    return scale * np.random.default_rng(0).standard_normal(size)


def test_a_rate_that_is_too_high_is_one_incident_with_the_advice_on_it() -> None:
    story = trained(2.3 + np.abs(noise(300, 1.5)), lambda step: 0.1, 3.0, groups=ADAM_AT_A_TENTH)

    assert told_of(story) == [{"config_advice", "lr_too_high"}]
    assert one(story).rule == "lr_too_high"
    assert one(story).diagnosis is not None
    assert one(story).diagnosis.causes[0].id == "lr_too_high"  # type: ignore[union-attr]  # as above


def test_a_rate_that_is_too_low_is_one_incident_with_the_advice_on_it() -> None:
    groups = (Group(name="0", optimizer="Adam", settings={"lr": 1e-8}),)
    story = trained(2.3 + noise(520, 0.01), lambda step: 1e-8, groups=groups)

    assert told_of(story) == [{"config_advice", "lr_too_low", "not_learning"}]


def test_a_rate_that_decayed_away_is_one_incident_without_validation_too() -> None:
    story = trained(2.3 + noise(520, 0.005), lambda step: float(1e-3 * 0.97**step))

    assert told_of(story) == [{"lr_schedule", "plateau", "not_learning"}]


def test_what_breaks_long_after_advice_was_given_is_an_incident_of_its_own() -> None:
    story = scenario(ranks=1, groups=ADAM_AT_A_TENTH).healthy(150).nan_loss(0, at=400, steps=3)

    assert told_of(story) == [{"config_advice"}, {"non_finite"}]


def test_a_loss_that_swings_is_one_incident_with_the_validation_that_swings_with_it() -> None:
    story = scenario(ranks=1)
    for step in range(1, 1001):
        story.losses((0.5 + 2.5 * 0.997**step) * (1.3 if step % 2 else 0.7))
        if not step % 50:
            loss = max(1.5 - 0.001 * step, 0.0025 * step - 0.6)
            story.says(0, Event(attempt=0, step=step, time=story.now, kind="validation", fields={"loss": loss}))

    assert told_of(story) == [{"oscillation", "overfitting"}]
    assert one(story).rule == "oscillation"


def test_a_rank_that_was_silent_is_one_incident_with_the_reports_that_were_lost_meanwhile() -> None:
    story = scenario(ranks=3).healthy(60).falls_silent(1).healthy(40).skips(1, reports=40).speaks(1).healthy(20)

    assert told_of(story) == [{"rank_silent", "monitor_blind"}]
    assert one(story).rule == "rank_silent"


@pytest.mark.slow
@pytest.mark.long
def test_a_nan_long_after_a_scheduler_was_found_idle_is_an_incident_of_its_own() -> None:
    story = scenario(falling=2.0, noise=0.02, facts={"scheduler": "CosineAnnealingLR", "num_batches": 100})
    story.meanwhile(lr=(1e-3,)).nan_loss(2, at=1001, steps=5, spreads=True)

    assert told_of(story) == [{"lr_schedule"}, {"non_finite"}]
    (nan, idle) = story.job.incidents
    assert (nan.severity, nan.onset_step, idle.severity) == ("critical", 1001, "warning")
    assert nan.diagnosis is not None
    assert "scheduler_idle" not in [cause.id for cause in nan.diagnosis.causes]


def test_a_jobs_health_is_that_of_its_open_incidents_and_not_of_what_is_for_the_record() -> None:
    story = scenario(ranks=2, blind={"activations": "inside a full-graph compile"}).healthy(10).wait(2.0)
    assert [str(episode.severity) for episode in story.job.episodes.open] == ["info"]
    assert story.job.health == "ok"

    story.nan_loss(1, at=story.step + 1, steps=3)
    assert story.job.health == "critical"


def test_closes_when_the_run_ends() -> None:
    story = scenario(ranks=2).nan_loss(1, at=10, steps=5).leaves(0, 1).wait(3.0)

    assert (one(story).state, one(story).reason, one(story).is_unresolved) == ("resolved", "the run ended", True)
    assert story.wait(5.0).job.incidents.open == []


ADAM_AT_A_TENTH = (Group(name="0", optimizer="Adam", settings={"lr": 0.1}),)


def the_next_launch(story: Scenario, steps: int, after: float = 60.0, **settings: Any) -> Scenario:
    """The same job, started anew a while later, and healthy."""
    again = scenario(story.ranks, core=story.core, launch="run-2", incarnation="incarnation-new", joined=(), **settings)
    again.now = again.boundary = story.now + after
    return again.joins(*range(story.ranks)).healthy(steps)


@pytest.mark.parametrize("pause", [3.0, 0.0], ids=["seen to end", "started anew at once"])
def test_what_was_open_at_a_clean_end_stays_over_in_the_next_launch(pause: float) -> None:
    story = scenario(ranks=2).nan_loss(1, at=10, steps=5).leaves(0, 1).wait(pause)

    again = the_next_launch(story, 300, after=0.1)

    assert again.job.num_attempts == 2
    assert (one(again).state, one(again).reason, one(again).num_reopened) == ("resolved", "the run ended", 0)
    assert [(member.id, member.is_open) for member in one(again).episodes] == [(1, False)]
    assert (again.job.health, again.job.episodes.open) == ("ok", [])


def test_what_was_open_at_a_clean_end_stays_over_after_a_restart_of_the_daemon(journaled: Make) -> None:
    story = scenario(ranks=2, core=journaled()).nan_loss(1, at=10, steps=5).leaves(0, 1).wait(3.0).daemon_restarts()
    assert (one(story).state, story.job.episodes.open) == ("resolved", [])

    again = the_next_launch(story, 50).daemon_restarts()

    assert (one(again).state, one(again).num_reopened, again.job.health) == ("resolved", 0, "ok")


def test_a_journal_whose_ended_run_was_left_with_open_findings_closes_them_without_opening_anything(
    journaled: Make,
) -> None:
    story = scenario(ranks=2, core=journaled()).nan_loss(1, at=10, steps=5).leaves(0, 1).wait(3.0)
    story.core.execute("UPDATE episodes SET is_open = 1")  # type: ignore[attr-defined]  # as above

    story.daemon_restarts().wait(2.0)

    assert (one(story).state, one(story).num_reopened, story.job.episodes.open) == ("resolved", 0, [])
    assert the_next_launch(story, 20).job.health == "ok"


def test_advice_on_a_run_that_ended_is_over_and_is_given_anew_only_to_a_launch_that_needs_it(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled(), groups=ADAM_AT_A_TENTH).healthy(40).leaves(0).wait(3.0)
    assert (one(story).rule, one(story).reason) == ("config_advice", "the run ended")

    cured = the_next_launch(story, 50)
    assert (one(cured).state, cured.job.health) == ("resolved", "ok")

    cured.leaves(0).wait(3.0)
    sick = scenario(1, core=cured.core, launch="run-3", incarnation="incarnation-third", groups=ADAM_AT_A_TENTH)
    assert [(i.number, i.state) for i in sick.healthy(3).job.incidents] == [(2, "open"), (1, "resolved")]


def test_closes_when_nobody_has_been_heard_for_an_hour_and_opens_again_with_the_next_word() -> None:
    story = scenario(ranks=2).healthy(30).falls_silent(0, 1).wait(3500.0)
    incident = one(story)
    assert (incident.severity, incident.rule, incident.is_open) == ("warning", "rank_silent", True), "one for all"

    story.wait(200.0)
    assert one(story).state == "resolved"
    assert one(story).reason == "no message from any rank for 1.0 h: killed, or not reachable"
    assert story.job.num_missing(story.now) == 0, "nobody waits for them"
    assert story.job.state == "lost"

    story.speaks(0).says(0, story.heartbeat(0)).wait(20.0)

    assert (one(story).state, one(story).num_reopened, story.job.state) == ("open", 1, "running")


def test_one_rank_that_stays_silent_while_others_train_is_told_for_as_long_as_it_lasts() -> None:
    story = scenario(ranks=2).healthy(30).falls_silent(1).wait(4000.0)

    assert one(story).is_open


def test_a_daemon_that_was_away_for_hours_does_not_take_that_for_its_jobs_silence() -> None:
    story = scenario(ranks=2).healthy(30).falls_silent(1).wait(60.0)
    assert one(story).is_open

    story.daemon_sleeps(2 * 3600.0).wait(30.0)

    assert (one(story).is_open, one(story).num_reopened) == (True, 0)


def test_survives_a_restart_of_the_daemon_and_goes_on(journaled: Make) -> None:
    story = scenario(core=journaled()).nan_loss(1, at=10, spreads=True).nan_loss(0, 1, 2, 3, at=11, spreads=True)
    before = list(story.job.incidents)

    story.daemon_restarts()
    assert list(story.job.incidents) == before

    story.nan_loss(0, 1, 2, 3, at=12, spreads=True)
    assert [i.number for i in story.job.incidents] == [1]
    story.healthy(5)
    assert (one(story).state, one(story).num_reopened) == ("resolved", 0)
    assert one(story).reason.startswith("all numbers finite again")
    assert not one(story).is_unresolved


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_an_open_incident_survives_a_restart_however_much_was_found_since(journaled: Make) -> None:
    core = journaled(config=Config(rules=watching("config_advice non_finite", {})))
    story = scenario(1, core=core, groups=(Group(name="0", optimizer="Adam", settings={"lr": 1e-9}),))
    story.plays(200, lr=(1e-9,))
    for _ in range(MAX_KEPT + 5):
        story.nan_loss(0, at=story.step + 1).healthy(3)
    before = list(story.job.incidents)
    assert [(i.number, i.rule) for i in story.job.incidents.open] == [(1, "config_advice")]

    assert list(story.daemon_restarts().job.incidents) == before
    assert [episode.rule for episode in story.job.episodes.open] == ["config_advice"]


def test_an_open_incident_survives_a_restart_however_many_came_after_it(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled(), groups=ADAM_AT_A_TENTH).healthy(40)
    log = story.job.incidents
    (advice,) = log
    for number in range(2, MAX_KEPT + 12):
        story.core.pipeline._sink.incident_changed(  # written as they would be in the course of weeks
            story.job, msgspec.structs.replace(advice, number=number, state="resolved", closed_time=1.0)
        )
    story.wait(1.0).daemon_restarts()

    assert [(i.number, i.rule) for i in story.job.incidents.open] == [(1, "config_advice")]
    assert story.job.incidents.num_opened == MAX_KEPT + 11


def test_a_relaunch_closes_it_and_the_same_nan_opens_it_again(journaled: Make) -> None:
    story = scenario(core=journaled()).nan_loss(1, at=10, steps=3, spreads=True).daemon_restarts(60.0)
    later = story.now + PATIENCE_SECONDS
    again = scenario(core=story.core, launch="run-2", incarnation="incarnation-new", now=later).healthy(9)
    assert (one(again).state, one(again).reason) == ("resolved", "attempt 2 began")

    again.nan_loss(1, at=10, steps=2, spreads=True)

    assert (one(again).state, one(again).number, one(again).num_reopened) == ("open", 1, 1)


def test_a_journal_of_the_first_schema_is_taken_over(tmp_path: Path, journaled: Make) -> None:
    story = scenario(core=journaled()).nan_loss(1, at=10, steps=3)
    story.core.close()  # type: ignore[attr-defined]  # a JournaledCore
    path = story.core.journal.path  # type: ignore[attr-defined]  # a JournaledCore
    make_old(path, 1)

    story.daemon_restarts()
    assert [e.rule for e in story.job.episodes.open] == ["non_finite"]
    story.nan_loss(1, at=13)

    assert one(story).rule == "non_finite"


def test_a_warning_in_hand_that_turns_critical_pages(journaled: Make) -> None:
    story = scenario(ranks=2, core=journaled()).healthy(40).nan_gradient(0, at=41)
    assert one(story).severity == "warning"
    story.core.pipeline.acknowledge(story.job, 1, Acknowledgement(story.now, "ada", "known"))

    story.wait(0.5).daemon_restarts().nan_loss(0, 1, at=42, steps=5, spreads=True).daemon_restarts()

    told = json_shapes.incident(one(story))
    assert (told["state"], told["severity"], told["acknowledged"]) == ("open", "critical", None)
    assert (told["outgrown"]["by"], told["outgrown"]["severity"]) == ("ada", "warning")


# The stretch of the run


def test_what_is_found_between_steps_has_the_regime_of_the_last_one() -> None:
    begun, settled = (scenario().healthy(steps).falls_silent(2).wait(40.0) for steps in (10, 60))

    assert (one(begun).rule, one(begun).regimes) == ("rank_silent", ("startup",))
    assert (one(settled).rule, one(settled).regimes) == ("rank_silent", ())


@pytest.mark.parametrize(
    ("start", "steps", "regimes"),
    [(0, 1000, ()), (0, 5, ("startup",)), (50_000, 5, ("resume",)), (50_000, 0, ("resume",)), (50_000, 100, ())],
)
def test_a_run_does_not_start_up_anew_because_the_daemon_did(
    journaled: Make, start: int, steps: int, regimes: tuple[str, ...]
) -> None:
    core = journaled(config=Config(rules=watching("non_finite", {})))
    story = scenario(ranks=2, core=core, start_step=start)
    story.step = start
    story.healthy(steps).wait(1.0).daemon_restarts().healthy(5)

    story.nan_loss(1, at=story.step + 1, steps=3, spreads=True)

    assert (one(story).rule, one(story).regimes) == ("non_finite", regimes)


def test_a_warm_up_and_a_declared_switch_outlast_the_daemon(journaled: Make) -> None:
    story = scenario(ranks=1, core=journaled()).plays(40, lr=lambda rank, step: (1e-6 * step,))
    story.declares("data_switch").plays(5, lr=lambda rank, step: (1e-6 * step,)).daemon_restarts()

    story.plays(1, lr=lambda rank, step: (1e-6 * step,), loss=float("nan"))

    assert one(story).regimes == ("data_switch", "warmup")


# Over HTTP


def test_incidents_and_diagnosis_are_served_and_one_is_acknowledged(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 2) as ranks:
        for step in range(1, 31):
            for rank in ranks:
                rank.send(a_report(step, loss=float("nan") if step >= 25 and rank is ranks[1] else 2.0))
        assert wait_until(lambda: daemon.get("/api/v1/jobs/train/incidents")["incidents"], 10)

        (incident,) = daemon.get("/api/v1/jobs/train/incidents")["incidents"]
        assert (incident["id"], incident["rule"], incident["state"]) == ("train/1", "non_finite", "open")
        assert incident["witness"]["ranks"] == [1]
        answer = daemon.get("/api/v1/jobs/train/diagnosis")
        assert answer["num_open"] == 1
        assert answer["incidents"][0]["diagnosis"]["causes"]

        status, body = daemon.post("/api/v1/jobs/train/incidents/1/ack", {"reason": "", "by": "ada"})
        assert (status, "reason is empty" in body["error"]) == (400, True)
        status, body = daemon.post("/api/v1/jobs/train/incidents/9/ack", {"reason": "x"})
        assert (status, "train/1" in body["error"]) == (404, True)
        status, body = daemon.post("/api/v1/jobs/train/incidents/1/ack", {"reason": "known", "by": "ada"})
        assert (status, body["state"], body["acknowledged"]["by"]) == (200, "acknowledged", "ada")
