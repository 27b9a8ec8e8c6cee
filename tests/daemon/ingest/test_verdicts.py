"""What rank 0 is sent about its job."""

from caboose_daemon.ingest.verdicts import Verdicts
from caboose_wire import Verdict
from support.ranks import a_hello
from support.recorder import Core
from support.scenario import Scenario, scenario


def sent(verdicts: Verdicts, story: Scenario) -> list[Verdict]:
    return [verdict for _, verdict in verdicts.changed(story.now)]


def test_it_is_sent_at_first_and_when_another_incident_is_the_worst_but_not_at_every_step_of_it() -> None:
    story = scenario(ranks=2).healthy(30)
    story.core.state.url = "http://node0:8080/"
    verdicts = Verdicts(story.core.state)

    (first,) = sent(verdicts, story)
    assert (first.job, first.health, first.summary) == ("train", "ok", "")
    assert first.url == "http://node0:8080/?job=train"

    assert sent(verdicts, story.healthy(10)) == []
    (bad,) = sent(verdicts, story.nan_loss(0, 1, at=41, steps=5).wait(2.0))
    assert bad.health == "critical"
    assert "non_finite" in bad.summary
    assert sent(verdicts, story.nan_loss(0, 1, at=46, steps=20).wait(2.0)) == []


def test_a_rank_that_has_just_introduced_itself_does_not_wait_for_the_next_second() -> None:
    story = scenario(ranks=2)
    verdicts = Verdicts(story.core.state)
    assert len(sent(verdicts, story)) == 1
    story.leaves(0, 1)
    story.hello = {"incarnation": "of-the-next-launch", "launch": "the-next"}
    story.joins(0)
    assert sent(verdicts, story) == [], "the second is not over"
    verdicts.hurry()
    assert [verdict.job for verdict in sent(verdicts, story)] == ["train"]


def test_a_job_without_a_live_rank_0_gets_none() -> None:
    story = scenario(ranks=2).healthy(30).leaves(0)

    assert sent(Verdicts(story.core.state), story) == []


def test_a_job_whose_verdict_fails_keeps_no_other_job_from_its_own() -> None:
    core = Core()
    for name in ("bad", "good"):
        core.say(name.encode(), a_hello(job=name, world=1, incarnation=f"incarnation-{name}"), 0.0)
    core.may_fail = True
    core.state.jobs["bad"].incidents = None  # type: ignore[assignment]  # whatever is read of it fails

    verdicts = Verdicts(core.state)

    assert [job.name for job, _ in verdicts.changed(1.0)] == ["good"]
    assert core.state.num_errors == {("send", "AttributeError"): 1}
    assert verdicts.changed(3.0) == [], "it is not sent again because the other job failed"
