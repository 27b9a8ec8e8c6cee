"""The history of samples: what is kept of each, for how long, and the map that is read from it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from caboose_daemon.cli import caboose
from caboose_daemon.out.api.layer_map import layer_history, layer_map
from caboose_daemon.steps.samples.stats import STATS
from caboose_daemon.store import journal as journal_module
from caboose_daemon.store import retention, sample_retention
from caboose_daemon.store.history import HistoryReader
from caboose_daemon.store.sample_history import SampleReader
from caboose_daemon.store.sample_retention import MAX_BYTES, MAX_SAMPLES, NUM_NEWEST, superfluous
from caboose_wire import Layer, Module
from support.old_journals import make_old
from support.ranks import LAYERS
from support.scenario import INF, NAN, JournaledCore, Scenario, scenario

Make = Callable[..., JournaledCore]
MODULES = (
    Module(name="blocks.0", kind="Linear", num_units=8),
    Module(name="blocks.0.act", kind="ReLU", num_units=8),
    Module(name="head.act", kind="Tanh", num_units=4),
)
EVER = (0, 2**53)


@contextmanager
def reading(path: Path, job: str = "train") -> Iterator[SampleReader]:
    with closing(sqlite3.connect(path / "journal.sqlite")) as connection:
        yield SampleReader(connection, job)


def a_map(path: Path, stat: str = "grad_norm", **changes: Any) -> dict[str, Any]:
    asked = {"points": 100, "rows": 100, "first": 0, "last": 2**53, **changes}
    with reading(path) as reader:
        return layer_map(reader, STATS[stat], **asked)


def looked_at(path: Path) -> list[tuple[int, int, int]]:
    """Attempt, step, and whether it is an onset."""
    with closing(sqlite3.connect(path / "journal.sqlite")) as connection:
        return connection.execute("SELECT attempt, step, is_onset FROM samples ORDER BY number").fetchall()


def a_story(core: JournaledCore, **settings: Any) -> Scenario:
    return scenario(ranks=2, core=core, **settings)


def again(core: JournaledCore, **settings: Any) -> Scenario:
    """The same job, launched once more."""
    return a_story(core, about="none", launch="run-2", incarnation="second-launch", **settings)


# What is kept


def test_every_look_is_kept_with_what_its_own_step_showed(journaled: Make, tmp_path: Path) -> None:
    story = a_story(journaled()).healthy(3)
    story.sampled(weight_norm=[1.0, 2.0, 3.0, 4.0], update_ratio=[1e-3] * 4).healthy(3)
    story.gradients(1.0, 2.0, 3.0, 4.0).sampled(weight_norm=[-1.0, 2.5, 3.5, 4.5])

    norms, weights, ratios = (a_map(tmp_path, stat) for stat in ("grad_norm", "weight_norm", "update_ratio"))

    assert norms["samples"]["step"] == [4, 8]
    assert [row[1] for row in norms["values"]] == [1.0, 2.0, 3.0, 4.0]
    assert weights["values"] == [[1.0, None], [2.0, 2.5], [3.0, 3.5], [4.0, 4.5]]
    assert ratios["samples"]["step"] == [4], "the second sample did not show it, and nothing is carried over"
    assert norms["rows"]["name"] == [layer.name for layer in LAYERS]


@pytest.mark.parametrize(("value", "told"), [(NAN, "NaN"), (INF, "Infinity")])
def test_a_gradient_that_is_not_finite_is_seen_as_such_in_the_very_step(
    journaled: Make, tmp_path: Path, value: float, told: str
) -> None:
    story = a_story(journaled()).healthy(3).sampled()
    story.nan_gradient(2, at=10, steps=5, value=value).healthy(2).nan_gradient(1, at=18).healthy(1)

    seen = a_map(tmp_path)

    assert looked_at(tmp_path) == [(1, 4, 0), (1, 10, 1)], "its first step, and not again so soon after"
    assert [row[1] for row in seen["values"]] == [0.1, 0.2, told, 0.4]
    assert seen["num_bad"] == 1


def test_a_gradient_that_goes_bad_again_much_later_is_told_again(journaled: Make, tmp_path: Path) -> None:
    a_story(journaled()).nan_gradient(2, at=10, steps=30).nan_gradient(1, at=60)

    assert [step for _, step, is_onset in looked_at(tmp_path) if is_onset] == [10, 60], "nor while it stays bad"


def test_modules_are_reduced_over_the_ranks_in_the_order_of_execution(journaled: Make, tmp_path: Path) -> None:
    story = a_story(journaled(), modules=MODULES)
    story.sampled(
        activation_std=lambda rank: [1.0, 2.0 + rank, NAN if rank else 3.0],
        activation_order=[2, 0, 1],
        activation_saturated=[-1.0, -1.0, 0.25],
        activation_dead=[-1.0, -1.0, -1.0],
    )
    story.sampled(activation_std=[1.0, 2.0, 3.0], activation_max=[1.0, INF, 9.0], activation_order=[2, 0, 1])

    spread, flat = a_map(tmp_path, "activation_std"), a_map(tmp_path, "saturated")

    assert spread["rows"]["name"] == ["blocks.0.act", "head.act", "blocks.0"]
    assert spread["values"] == [[2.0, "NaN"], ["NaN", 3.0], [1.0, 1.0]]
    assert flat["rows"]["name"] == ["head.act"], "the others are of no such kind"
    assert flat["values"] == [[0.25]]
    with reading(tmp_path) as reader:
        assert reader.counts()["dead"] == 0


def test_dead_units_of_the_last_window_stand_until_the_next(journaled: Make, tmp_path: Path) -> None:
    story = a_story(journaled(), modules=MODULES)
    for dead in (-1.0, 0.5, -1.0, -1.0, 0.75):
        story.sampled(activation_std=[1.0, 1.0, 1.0], activation_dead=[-1.0, dead, -1.0])

    seen = a_map(tmp_path, "dead")

    assert seen["rows"]["name"] == ["blocks.0.act"]
    assert seen["values"] == [[0.5, 0.5, 0.5, 0.75]]
    assert seen["samples"]["step"] == [2, 3, 4, 5]


# For how long


def test_the_last_looks_are_all_there_and_older_ones_are_even_from_the_first_on() -> None:
    rows: list[tuple[int, int, int]] = []
    for number in range(1, 5001):
        rows.append((number, int(number == 1234), 1000))
        gone = set(superfluous(rows))
        rows = [row for row in rows if row[0] not in gone]
        assert len(rows) <= MAX_SAMPLES
        assert {row[0] for row in rows} >= set(range(max(1, number - NUM_NEWEST + 1), number + 1))
    numbers = [number for number, _, _ in rows]

    assert numbers[0] == 1
    assert 1234 in numbers, "where a gradient went bad is kept"
    gaps = np.diff([number for number in numbers[:200] if number != 1234])
    assert max(gaps) <= 32, "no part of the run is left to a few samples"


def test_a_look_of_a_large_model_counts_by_its_bytes() -> None:
    size = MAX_BYTES // 200
    rows = [(number, 0, size) for number in range(1, 202)]

    left = len(rows) - len(superfluous(rows))

    assert NUM_NEWEST <= left <= 200
    assert superfluous([(number, 1, size) for number in range(1, 202)]), "also where all are onsets"


def test_the_journal_stays_within_its_bounds_and_numbers_go_on_after_a_restart(
    journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_retention, "MAX_SAMPLES", 40)
    monkeypatch.setattr(sample_retention, "NUM_NEWEST", 10)
    monkeypatch.setattr(sample_retention, "NUM_OLDER", 20)
    story = a_story(journaled(), about="none").sampled(120, weight_norm=[1.0] * 4)
    story.daemon_restarts()
    story.sampled(120, weight_norm=[2.0] * 4)

    steps = [step for _, step, _ in looked_at(tmp_path)]

    assert len(steps) <= 40
    assert steps[0] == 1
    assert steps[-10:] == list(range(231, 241))
    assert a_map(tmp_path, "weight_norm")["values"][0][0] == 1.0, "what was seen before the restart is there"


def test_looks_older_than_the_retention_go_with_the_steps(
    journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP_EVERY", 10)
    story = a_story(journaled(retention_days=1.0)).sampled(3).healthy(6)
    story.now += 2 * 86_400

    story.sampled(2).healthy(10)

    assert [step for _, step, _ in looked_at(tmp_path)] == [10, 11]


def test_a_full_disk_keeps_few_looks_waiting_and_counts_the_others(
    journaled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_WAITING_SAMPLES", 5)
    core = journaled()
    story = a_story(core, about="none").sampled(2)
    (pages,) = core.execute("PRAGMA page_count").fetchone()
    core.execute(f"PRAGMA max_page_count = {pages}")
    story.sampled(90)
    lost = core.state.journal_lost
    core.execute("PRAGMA max_page_count = 1000000")
    story.sampled(1)

    assert lost > 0
    assert len(looked_at(tmp_path)) == 93 - core.state.journal_lost


def test_a_journal_without_the_history_is_read_and_reported_as_before(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    a_story(core).healthy(30).sampled(weight_norm=[1.0] * 4).healthy(5)
    core.execute("DROP TABLE samples")

    with reading(tmp_path) as reader:
        assert reader.samples(STATS, *EVER) == []
        assert not any(reader.counts().values())
    target = tmp_path / "report.html"
    done = CliRunner().invoke(caboose, ["report", str(tmp_path / "journal.sqlite"), "-o", str(target)])

    assert done.exit_code == 0, done.output
    assert "blocks.3.weight" in target.read_text()
    core.close()
    journaled()
    assert looked_at(tmp_path) == [], "and a daemon that starts on it adds the table"


def test_the_samples_of_a_journal_of_schema_5_are_kept(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    a_story(core).healthy(30).sampled(weight_norm=[1.0] * 4).healthy(5)
    kept = looked_at(tmp_path)
    core.close()
    make_old(tmp_path / "journal.sqlite", 5)

    journaled()

    assert kept
    assert looked_at(tmp_path) == kept
    with closing(HistoryReader(tmp_path / "journal.sqlite")) as reader:
        assert reader.latest_sample("train") is not None


def test_a_look_costs_no_more_than_its_numbers(journaled: Make, tmp_path: Path) -> None:
    layers = tuple(Layer(name=f"decoder.layers.{i}.mlp.experts.weight", numel=64) for i in range(2000))
    modules = tuple(Module(name=f"decoder.layers.{i}.mlp.act", kind="ReLU", num_units=8) for i in range(1400))
    story = a_story(journaled(), about="none", layers=layers, modules=modules, norms=np.full(2000, 0.1))
    story.sampled(
        weight_norm=np.ones(2000),
        update_ratio=np.ones(2000),
        grad_zero_fraction=np.zeros(2000),
        activation_std=np.ones(1400),
        activation_dead=np.zeros(1400),
        activation_order=np.arange(1400),
    )

    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        (size,) = connection.execute("SELECT length(body) FROM samples").fetchone()

    assert 30_000 < size < 45_000


# The map


def test_neighbouring_looks_and_layers_share_a_cell_that_shows_the_most_extreme(
    journaled: Make, tmp_path: Path
) -> None:
    story = a_story(journaled(), about="none")
    for step in range(1, 11):
        ratios = [0.1, 0.1, 0.1, 0.1]
        if step == 7:
            ratios[2] = 5.0
        if step == 3:
            ratios[1] = NAN
        story.sampled(update_ratio=ratios)

    seen = a_map(tmp_path, "update_ratio", points=5, rows=2)

    assert seen["values"] == [[0.1, "NaN", 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 5.0, 0.1]]
    assert seen["samples"]["first_step"] == [1, 3, 5, 7, 9]
    assert seen["samples"]["step"] == [2, 4, 6, 8, 10]
    assert seen["samples"]["num"] == [2] * 5
    assert (seen["rows"]["name"], seen["rows"]["last_name"]) == (
        ["blocks.0.weight", "blocks.2.weight"],
        ["blocks.1.weight", "blocks.3.weight"],
    )
    assert seen["rows"]["num"] == [2, 2]
    smallest = a_map(tmp_path, "update_ratio", points=5, rows=2, keep="smallest")
    assert smallest["values"] == [[0.1, "NaN", 0.1, 0.1, 0.1], [0.1] * 5]


def test_the_smallest_of_a_cell_is_no_gap_and_an_infinity_stands_out_even_there(
    journaled: Make, tmp_path: Path
) -> None:
    story = a_story(journaled(), about="none")
    story.sampled(update_ratio=[0.3, 0.2, -1.0, -1.0]).sampled(update_ratio=[0.3, -1.0, INF, 0.1])

    assert a_map(tmp_path, "update_ratio", rows=2, keep="smallest")["values"] == [[0.2, 0.3], [None, "Infinity"]]
    assert a_map(tmp_path, "update_ratio", rows=2)["values"] == [[0.3, 0.3], [None, "Infinity"]]


def test_attempts_are_told_apart_and_never_share_a_column(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    a_story(core, about="none").sampled(5).leaves(0, 1)
    again(core).sampled(3)

    seen = a_map(tmp_path, points=4)["samples"]

    assert (seen["attempt"], seen["num"], seen["step"]) == ([1, 1, 2], [3, 2, 3], [3, 5, 3])


def test_another_model_in_a_later_attempt_takes_over_by_name(journaled: Make, tmp_path: Path) -> None:
    core = journaled()
    a_story(core, about="none").sampled(weight_norm=[1.0, 2.0, 3.0, 4.0]).leaves(0, 1)
    fewer = (Layer(name="stem.weight", numel=1), LAYERS[3], LAYERS[1])
    again(core, layers=fewer, norms=[0.1] * 3).sampled(weight_norm=[9.0, 8.0, 7.0])

    seen = a_map(tmp_path, "weight_norm")

    assert seen["rows"]["name"] == ["stem.weight", "blocks.3.weight", "blocks.1.weight"]
    assert seen["values"] == [[None, 9.0], [4.0, 8.0], [2.0, 7.0]]


def test_one_layer_shows_all_its_numbers_with_those_of_its_module(journaled: Make, tmp_path: Path) -> None:
    story = a_story(journaled(), about="none", modules=MODULES)
    story.sampled(weight_norm=[1.23456, 2.0, 3.0, 4.0], activation_std=[0.5, 0.6, 0.7])
    story.nan_gradient(0, at=5)

    with reading(tmp_path) as reader:
        found = layer_history(reader, 0, 0, *EVER)

    assert found["samples"]["step"] == [1, 5]
    assert found["stats"]["weight_norm"] == [1.23456, None]
    assert found["stats"]["grad_norm"] == [0.1, "NaN"]
    assert found["stats"]["activation_std"] == [0.5, None]
