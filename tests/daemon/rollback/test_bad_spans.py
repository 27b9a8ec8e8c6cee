"""What lies between two times that a run's numbers broke was sound, also where one incident tells of both."""

import dataclasses

from msgspec.structs import replace

from caboose_daemon.jobs.job import Job
from caboose_daemon.rollback import bad_spans
from caboose_daemon.rollback_state.triage import Triage
from support.cases import a_case, a_finding


def a_job(*spans: tuple[int, int | None]) -> Job:
    """With one incident, whose findings lasted from step to step; None: still open."""
    incident = a_case(*(a_finding("loss_spike", onset=began) for began, _ in spans)).incident
    members = tuple(
        dataclasses.replace(
            member,
            is_open=ended is None,
            last=a_finding("loss_spike", onset=began, step=began + 5 if ended is None else ended),
        )
        for member, (began, ended) in zip(incident.episodes, spans, strict=True)
    )
    job = Job(name="train", created=0.0, num_attempts=1)
    job.incidents.restore([replace(incident, episodes=members)], members)
    return job


def spans_of(job: Job) -> list[tuple[int, int | None]]:
    return [(trouble.began, trouble.ended) for trouble in bad_spans.of(job)]


def test_two_breaks_far_apart_are_two_stretches() -> None:
    assert spans_of(a_job((6, 9), (150, None))) == [(6, 9), (150, None)]


def test_breaks_that_touch_are_one() -> None:
    assert spans_of(a_job((100, 120), (130, 140), (135, 160), (171, None))) == [(100, 160), (171, None)]
    assert spans_of(a_job((100, None), (400, None))) == [(100, None)]


def test_what_triage_knows_to_have_begun_earlier_reaches_back_in_its_own_stretch_only() -> None:
    job = a_job((6, 9), (150, None))
    job.rollback.triages[1] = Triage(verdict="lingering", step=170, began=120)
    assert spans_of(job) == [(6, 9), (120, None)]
