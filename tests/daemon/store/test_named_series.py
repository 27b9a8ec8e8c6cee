"""The user's metrics, validations and parameter groups: admitted, written, read in buckets, exported, bounded."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.steps.named import MAX_NAMES
from caboose_daemon.store.history import HistoryReader
from caboose_wire import Event, Group, Layer
from support.http import http
from support.processes import DaemonProcess, running_daemon, wait_until
from support.ranks import LAYERS, send_steps, simulated_ranks
from support.scenario import INF, NAN, JournaledCore, scenario

Make = Callable[..., JournaledCore]
GROUPS = (Group("decay", "AdamW"), Group("no_decay", "AdamW"))


@pytest.fixture
def reader(tmp_path: Path, journaled: Make) -> Iterator[HistoryReader]:
    journaled()
    reader = HistoryReader(tmp_path / "journal.sqlite")
    yield reader
    reader.close()


def curve(reader: HistoryReader, source: str, name: str, points: int = 1000, **window: int) -> dict[str, Any]:
    _, named = reader.curves("train", points, **window)
    return next(each for each in named if (each["source"], each["name"]) == (source, name))


def test_a_metric_is_the_mean_over_ranks_and_its_spike_survives_the_buckets(
    journaled: Make, reader: HistoryReader
) -> None:
    def accuracy(rank: int, step: int) -> dict[str, float]:
        return {"accuracy": 50.0 if step == 77 else 0.1 * rank}

    scenario(ranks=2, core=journaled()).plays(100, metrics=accuracy)

    fine, coarse = curve(reader, "metric", "accuracy"), curve(reader, "metric", "accuracy", points=10)
    assert fine["step"] == list(range(1, 101))
    assert fine["value"][0] == pytest.approx(0.05)
    assert len(coarse["step"]) <= 11
    assert max(coarse["max"]) == 50.0
    assert curve(reader, "metric", "accuracy", first=70, last=79)["step"] == list(range(70, 80))


def test_a_number_that_is_not_finite_is_counted_and_left_out_of_the_mean(
    journaled: Make, reader: HistoryReader
) -> None:
    values = iter((1.0, NAN, INF, 3.0))
    scenario(ranks=1, core=journaled()).plays(4, metrics=lambda rank, step: {"x": next(values)})

    window = {"points": 1, "first": 1, "last": 4}
    assert [curve(reader, "metric", "x", **window)[key][0] for key in ("value", "min", "max")] == [1.0, 1.0, 1.0]
    assert curve(reader, "metric", "x", **window)["num_bad"] == [2, 0]


def test_a_validation_that_every_rank_declares_is_one_point(journaled: Make, reader: HistoryReader) -> None:
    story = scenario(ranks=4, core=journaled()).healthy(10)
    for rank in range(4):
        story.says(
            rank, Event(attempt=0, step=10, time=story.now, kind="validation", fields={"loss": 1.5, "top1": 0.7})
        )
    story.healthy(1)

    assert curve(reader, "validation", "loss")["step"] == [10]
    assert curve(reader, "validation", "top1")["value"] == [0.7]


def test_groups_have_their_rates_and_norms_only_if_there_are_several(journaled: Make, reader: HistoryReader) -> None:
    layers = tuple(Layer(layer.name, layer.numel, layer.kind, group=row % 2) for row, layer in enumerate(LAYERS))
    norms = np.array([3.0, 1.0, 4.0, 0.0], dtype=np.float32)
    story = scenario(ranks=2, core=journaled(), groups=GROUPS, layers=layers, norms=norms)
    story.plays(3, lr=(0.1, 0.2))

    assert curve(reader, "group_lr", "no_decay")["value"] == [pytest.approx(0.2)] * 3
    assert curve(reader, "group_norm", "decay")["value"] == [pytest.approx(5.0)] * 3
    assert curve(reader, "group_norm", "no_decay")["value"] == [pytest.approx(1.0)] * 3


def test_one_group_has_no_curves_of_its_own(journaled: Make, reader: HistoryReader) -> None:
    scenario(ranks=1, core=journaled()).healthy(3)
    assert reader.curves("train", 100)[1] == []


def test_ever_new_names_are_bounded_in_memory_journal_and_metrics(journaled: Make, reader: HistoryReader) -> None:
    core = journaled()
    story = scenario(ranks=1, core=core).plays(50, metrics=lambda rank, step: {f"m{step}": 1.0, "kept": float(step)})

    _, named = reader.curves("train", 1000)
    assert len(named) == MAX_NAMES
    assert story.job.named.num_left_out == 1
    assert story.job.named.metrics["kept"] == 50.0
    families = {family.name: family for family in StateCollector(core.state, lambda: story.now).collect()}
    assert len(families["caboose_user_metric"].samples) == 16
    (hidden,) = families["caboose_names_hidden"].samples
    assert hidden.value >= MAX_NAMES - 16 + 1


def test_a_restarted_daemon_keeps_the_names_that_had_a_place(journaled: Make, reader: HistoryReader) -> None:
    story = scenario(ranks=1, core=journaled()).plays(MAX_NAMES, metrics=lambda rank, step: {f"m{step}": 1.0})
    story.daemon_restarts().plays(1, metrics=lambda rank, step: {"m1": 2.0, "new": 2.0})

    assert len(reader.curves("train", 1000)[1]) == MAX_NAMES
    assert curve(reader, "metric", "m1")["value"] == [1.0, 2.0]


def test_validations_of_an_earlier_version_become_curves_on_opening(journaled: Make, reader: HistoryReader) -> None:
    story = scenario(ranks=2, core=journaled()).healthy(10)
    for rank in range(2):
        story.says(rank, Event(attempt=0, step=10, time=story.now, kind="validation", fields={"loss": 1.5, "at": "x"}))
    story.healthy(1)
    assert isinstance(story.core, JournaledCore)
    story.core.execute("DROP TABLE named_steps")
    story.daemon_restarts()

    assert curve(reader, "validation", "loss")["value"] == [1.5]


def test_old_named_numbers_go_with_their_steps(journaled: Make, reader: HistoryReader) -> None:
    core = journaled(max_steps=20)
    story = scenario(ranks=1, core=core).plays(100, metrics=lambda rank, step: {"x": 1.0})
    core.journal.retention.advance(story.now + 4000.0)
    core.journal.retention.advance(story.now + 8000.0)

    assert min(curve(reader, "metric", "x")["step"]) == min(row["step"] for row in reader.series("train", 1000)) > 1


@pytest.mark.slow
def test_api_and_metrics_of_a_real_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, simulated_ranks(daemon.endpoint, 2) as ranks:
        for step in range(1, 6):
            send_steps(ranks, step, step, metrics={"accuracy": 0.1 * step, "bad": math.nan})
        for rank in ranks:
            rank.send(Event(attempt=0, step=5, time=1005.0, kind="validation", fields={"loss": 1.25}))
        assert wait_until(lambda: daemon.step("train") == 5, 10)
        assert wait_until(lambda: len(_named(daemon)) == 3 and len(_named(daemon)[0]["step"]) == 5, 10)

        first, bad, validation = _named(daemon)
        assert (first["source"], first["name"], first["value"][-1]) == ("metric", "accuracy", pytest.approx(0.5))
        assert (bad["name"], bad["value"], bad["num_bad"]) == ("bad", [None] * 5, [1] * 5)
        assert (validation["source"], validation["step"], validation["value"]) == ("validation", [5], [1.25])
        metrics = http.get(f"{daemon.url}metrics", timeout=10).text
        assert 'caboose_user_metric{name="accuracy",training_job="train"} 0.5' in metrics or (
            'caboose_user_metric{training_job="train",name="accuracy"} 0.5' in metrics
        )


def _named(daemon: DaemonProcess) -> Any:
    return http.get(f"{daemon.url}api/v1/jobs/train/series", timeout=10).json()["named"]
