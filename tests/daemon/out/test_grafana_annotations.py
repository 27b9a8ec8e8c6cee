"""A running daemon tells Grafana of incidents while they happen, and does not mind a Grafana that is ill."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.out.api import json_shapes
from caboose_daemon.out.grafana.annotations import of_attempt, of_incident, of_rollback
from caboose_daemon.out.grafana.connection import GrafanaConnection
from caboose_daemon.out.grafana.poster import Poster
from caboose_wire import Bye
from support.grafana import TOKEN, StandIn, standing_in
from support.guarded import guarded
from support.obedient import obedient_ranks
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import SimulatedRank, a_hello, a_report, simulated_ranks
from support.scenario import NAN, scenario

PATIENCE = 20.0


@pytest.fixture
def grafana() -> Iterator[StandIn]:
    with standing_in() as stand_in:
        yield stand_in


@pytest.fixture
def watched(tmp_path: Path, grafana: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonProcess]:
    """A daemon that posts to the stand-in."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "caboose.toml").write_text(f"[grafana]\nurl = '{grafana.url}'\ntoken_file = '{tmp_path / 'token'}'\n")
    with running_daemon(tmp_path) as daemon:
        yield daemon


def play(rank: SimulatedRank, first: int, *losses: float) -> None:
    for step, loss in enumerate(losses, start=first):
        rank.send(a_report(step, loss=loss))


def incidents(story: Any) -> list[Incident]:
    """Every state of the incidents of a story, as the pipeline gave them out."""
    found: list[Incident] = story.core.sink.incidents
    assert found
    return found


# In a daemon


def test_an_incident_is_posted_when_it_opens_and_ends_when_it_closes(watched: DaemonProcess, grafana: StandIn) -> None:
    with simulated_ranks(watched.endpoint, 1) as (rank,):
        play(rank, 1, 2.0, 2.0, 2.0, NAN)
        assert wait_until(lambda: len(grafana.annotations) == 1, PATIENCE), watched.log.read_text()
        opened = dict(grafana.annotations[1])
        play(rank, 5, *[2.0] * 20)
        assert wait_until(lambda: grafana.annotations[1]["timeEnd"] > opened["time"], PATIENCE)
        rank.send(Bye(step=24))
        rank.send(a_hello(world=1, launch="run-2", incarnation="incarnation-b", start_step=10))
        assert wait_until(lambda: len(grafana.annotations) == 2, PATIENCE)

    assert opened["timeEnd"] == opened["time"], "not over yet"
    assert opened["text"].startswith("warning non_finite in train: ")
    assert "began at step 4" in opened["text"]
    assert "closed at step " in grafana.annotations[1]["text"]
    assert grafana.annotations[2]["text"] == "train: attempt 2 began"
    assert 'caboose_exports_total{target="grafana"}' in watched.text("/metrics")


def test_a_grafana_that_fails_is_counted_and_logged_once_and_watching_goes_on(
    watched: DaemonProcess, grafana: StandIn
) -> None:
    grafana.fails("GET /api/annotations", 503, {"message": "starting"})
    with simulated_ranks(watched.endpoint, 1) as (rank,):
        for start in range(1, 91, 30):
            play(rank, start, NAN, *[2.0] * 29)
        failed = 'caboose_export_failures_total{target="grafana"} '
        assert wait_until(lambda: number_after(watched.text("/metrics"), failed) >= 2, PATIENCE)
        assert wait_until(lambda: watched.get("/api/v1/jobs/train")["step"] == 90, PATIENCE)

    log = watched.log.read_text()
    assert log.count("grafana failed: ") == 1
    assert f"Grafana at {grafana.url} failed (503, reading annotations)" in log
    assert grafana.annotations == {}


@pytest.mark.slow
@pytest.mark.long
def test_a_grafana_that_hangs_delays_nothing(watched: DaemonProcess, grafana: StandIn) -> None:
    never = threading.Event()
    grafana.fails("GET", 200, until=never)
    with simulated_ranks(watched.endpoint, 1) as (rank,):
        play(rank, 1, NAN, *[2.0] * 99)

        assert wait_until(lambda: watched.get("/api/v1/jobs")["jobs"][0:1], PATIENCE)
        assert wait_until(lambda: watched.get("/api/v1/jobs/train")["step"] == 100, PATIENCE)
    never.set()


def number_after(text: str, start: str) -> float:
    return float(text.partition(start)[2].partition("\n")[0] or 0)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("url = 'http://127.0.0.1:1'", "[grafana] no token for Grafana: put a service account's token into a file"),
        ("url = 'http://127.0.0.1:1'\ntoken_file = 'nowhere'", "[grafana] Grafana's token: nowhere: No such file"),
        ("url = 'http://a:b@c'", "[grafana] "),
    ],
)
def test_a_section_that_cannot_work_is_one_line(
    table: str, line: str, refused_start: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "caboose.toml").write_text(f"[grafana]\n{table}\n")

    assert refused_start().startswith(line)


@pytest.mark.slow
def test_a_rollback_is_a_stretch_from_what_it_went_back_to_until_it_was_done(
    tmp_path: Path, grafana: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "caboose.toml").write_text(f"[grafana]\nurl = '{grafana.url}'\ntoken_file = '{tmp_path / 'token'}'\n")
    with running_daemon(tmp_path) as daemon, obedient_ranks(daemon.endpoint) as job:
        assert wait_until(lambda: len(job.snapshots) >= 3, PATIENCE)
        assert wait_until(lambda: daemon.post("/api/v1/jobs/train/rollback", {"by": "ada"})[0] == 202, PATIENCE)
        assert wait_until(lambda: "rollback" in told(grafana), PATIENCE), daemon.log.read_text()
        annotation = told(grafana)["rollback"]
        (decision,) = [d for d in daemon.get("/api/v1/jobs/train/decisions")["decisions"] if d["state"] == "committed"]
        rows = daemon.get("/api/v1/jobs/train/series?points=5000")["steps"]

    assert annotation["text"].startswith(f"train: {decision['summary']}: committed\nrequested by ada")
    assert annotation["timeEnd"] == round(decision["closed_time"] * 1000)
    (taken,) = [row["time"] for row in rows if row["step"] == decision["target"]]
    assert annotation["time"] == round(taken * 1000) < annotation["timeEnd"]


def told(grafana: StandIn) -> dict[str, Any]:
    return {tag: annotation for annotation in grafana.annotations.values() for tag in annotation["tags"]}


# The poster


@pytest.fixture
def poster(grafana: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Poster]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Poster(GrafanaConnection(grafana.url, TOKEN))
    yield made
    made.close()


def test_what_is_posted_already_is_not_posted_twice(poster: Poster, grafana: StandIn) -> None:
    story = incidents(scenario(ranks=2).nan_loss(1, at=3).healthy(20))
    for incident in [*story, *story[-1:]]:
        poster.take(incident)
    num_writes = len(grafana.writes)

    assert len(grafana.annotations) == 1
    another = Poster(GrafanaConnection(grafana.url, TOKEN))  # a daemon that was restarted
    another.take(story[-1])
    another.close()
    assert (len(grafana.annotations), len(grafana.writes)) == (1, num_writes)


def test_an_incident_of_the_same_number_in_another_journal_is_another(poster: Poster, grafana: StandIn) -> None:
    incident = incidents(scenario(ranks=2).nan_loss(1, at=3))[-1]
    poster.take(incident)
    poster.take(replace(incident, opened_time=incident.opened_time + 86_400))

    assert len(grafana.annotations) == 2


def test_what_could_not_be_posted_is_made_good_with_the_next_change(poster: Poster, grafana: StandIn) -> None:
    story = incidents(scenario(ranks=2).nan_loss(1, at=3).healthy(20))
    grafana.fails("POST", 500)
    with pytest.raises(RuntimeError):
        poster.take(story[0])
    grafana.works()
    poster.take(story[-1])

    (annotation,) = grafana.annotations.values()
    assert annotation["timeEnd"] > annotation["time"]


def test_the_text_tells_who_where_and_why_and_cannot_be_html() -> None:
    story = scenario(ranks=2, about="non_finite").nan_loss(1, at=3)
    incident = json_shapes.incident(incidents(story)[-1])
    incident["witness"]["host"] = "<b>node</b>"

    text = of_incident("train", incident).text

    assert "on rank 1 (&lt;b&gt;node&lt;/b&gt;)" in text


def test_a_rollback_says_why_and_how_it_went_on_and_its_stretch_stays_the_same() -> None:
    run = guarded().healthy(100).losses(*[9.0] * 30).healthy(60)
    first, *_, last = [d for d in run.core.sink.decisions if d.state == "committed"]
    (taken,) = [s.time for s in run.job.recent if s.step == last.target]

    early, late = of_rollback(first, taken), of_rollback(last, taken)

    assert (early.key, early.start, early.end) == (late.key, late.start, late.end), "found again, not made twice"
    assert early.start == round(taken * 1000) < early.end
    assert "rollback is cheaper" in early.text
    assert "loss continues from there" in late.text
    assert of_rollback(last, None).start == late.end, "a moment, where its beginning is forgotten"


def test_a_new_attempt_is_a_moment() -> None:
    annotation = of_attempt("train", 2, 12.5)

    assert (annotation.start, annotation.end, annotation.text) == (12_500, 12_500, "train: attempt 2 began")
