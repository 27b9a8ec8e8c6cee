"""A job of several models: each part has numbers, rules, curves and metrics of its own."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caboose_daemon.incidents.episodes import Episode
from caboose_daemon.jobs.state import State
from caboose_daemon.out.metrics.collector import StateCollector
from caboose_daemon.store.history import HistoryReader, restore
from caboose_wire import Group, Layer, Module, Part
from support.ranks import a_hello, a_report
from support.recorder import Core
from support.scenario import JournaledCore

PARTS = (Part("critic", (0, 2), (0, 1)), Part("actor", (2, 4), (1, 3)))
HELLO: dict[str, Any] = {
    "world": 1,
    "layers": tuple(Layer(name=f"{part}.{n}.weight", numel=100) for part in ("critic", "actor") for n in (0, 1)),
    "groups": (
        Group("critic.0", "Adam", num_parameters=200),
        Group("actor.0", "Adam", num_parameters=10),
        Group("actor.1", "Adam", num_parameters=190),
    ),
    "modules": (Module("critic.0", "Linear"), Module("actor.0", "Linear"), Module("critic.0.relu", "relu")),
    "visible": ("loss", "lr", "phases", "gradients", "weights"),
    "parts": PARTS,
}
NORMS = (3.0, 4.0, 5.0, 12.0)


def a_step(step: int, critic: float | None = 1.0, actor: float | None = -2.0, *, norms: Any = NORMS) -> Any:
    def scattered(loss: float | None) -> float | None:
        return None if loss is None else loss + 0.01 * math.sin(step)

    return a_report(
        step,
        loss=scattered(critic),
        part_losses=(scattered(critic), scattered(actor)),
        lr=(1e-3, 3e-4, 2e-4),
        arrays={"grad_norm": np.array(norms, dtype=np.float32)},
    )


def play(core: Core, first: int, last: int, **changes: Any) -> None:
    for step in range(first, last + 1):
        core.say(b"0", a_step(step, **changes), 1000.0 + step)
        core.pass_time(1000.0 + step)


@pytest.fixture
def core() -> Core:
    core = Core()
    core.say(b"0", a_hello(**HELLO), 1000.0)
    return core


def found(core: Core) -> set[tuple[str, str]]:
    return {(episode.rule, episode.part) for episode in core.state.jobs["train"].episodes if _is_serious(episode)}


def _is_serious(episode: Episode) -> bool:
    return str(episode.severity) != "info"


def test_each_part_has_its_loss_norm_and_learning_rate(core: Core) -> None:
    play(core, 1, 3)

    last = core.sink.steps[-1]
    critic, actor = last.parts
    assert (critic.name, actor.name) == ("critic", "actor")
    assert (critic.grad_norm, actor.grad_norm) == (5.0, 13.0)
    assert (critic.lr, actor.lr) == (1e-3, 2e-4), "that of the largest group"
    assert critic.loss == last.loss
    assert actor.loss == pytest.approx(-2.0, abs=0.02)
    assert last.grad_norm == pytest.approx(math.hypot(*NORMS))


def test_a_job_with_one_model_has_no_parts() -> None:
    core = Core()
    core.say(b"0", a_hello(**{**HELLO, "parts": PARTS[:1]}), 1000.0)
    play(core, 1, 3)

    assert core.sink.steps[-1].parts == ()
    assert core.state.jobs["train"].parts == ()


def test_a_nan_in_one_parts_loss_names_that_part_and_no_other(core: Core) -> None:
    play(core, 1, 40)
    assert found(core) == set()
    play(core, 41, 43, actor=math.nan)

    assert found(core) == {("non_finite", "actor")}
    (incident,) = core.state.jobs["train"].incidents.open
    assert (incident.rule, incident.part, incident.onset_step) == ("non_finite", "actor", 41)
    assert incident.witness is not None
    assert incident.witness.part == "actor"
    assert incident.summary.startswith("actor: ")
    assert core.state.jobs["train"].num_non_finite == 3


def test_a_part_without_a_loss_in_a_step_is_not_bad(core: Core) -> None:
    for step in range(1, 80):
        core.say(b"0", a_step(step, actor=None if step % 2 else -2.0), 1000.0 + step)
        core.pass_time(1000.0 + step)

    assert found(core) == set()


@pytest.mark.parametrize(("norms", "part"), [((3e6, 4e6, 5.0, 12.0), "critic"), ((3.0, 4.0, 5e6, 12e6), "actor")])
def test_an_explosion_is_found_in_its_part(core: Core, norms: Any, part: str) -> None:
    play(core, 1, 200)
    play(core, 201, 206, norms=norms)

    assert ("gradient_explosion", part) in found(core)
    assert {of for rule, of in found(core) if rule == "gradient_explosion"} == {part}


def test_what_breaks_in_one_part_and_spreads_to_the_other_is_one_incident(core: Core) -> None:
    play(core, 1, 40)
    play(core, 41, 42, actor=math.nan)
    play(core, 43, 45, actor=math.nan, critic=math.nan)

    assert found(core) == {("non_finite", "actor"), ("non_finite", "critic")}
    (incident,) = core.state.jobs["train"].incidents.open
    assert incident.part == "actor", "where it began"
    assert {episode.part for episode in incident.episodes} == {"actor", "critic"}


def test_an_incident_of_a_part_is_diagnosed_by_the_parts_own_curve(core: Core) -> None:
    play(core, 1, 40)
    play(core, 41, 43, actor=math.nan)

    job = core.state.jobs["train"]
    case = job.case(job.incidents.open[0])
    assert [layer.name for layer in case.layers] == ["actor.0.weight", "actor.1.weight"]
    assert [module.name for module in case.modules] == ["actor.0"]
    assert case.recent[0].loss == pytest.approx(-2.0, abs=0.02)
    assert case.recent[0].lr == 2e-4


def test_a_part_that_joins_later_is_judged_from_then_on(core: Core) -> None:
    """As in a GAN whose second optimizer steps later: the layers of the first keep their rows."""
    alone = {**HELLO, "layers": HELLO["layers"][:2], "groups": HELLO["groups"][:1], "parts": ()}
    core = Core()
    core.say(b"0", a_hello(**alone), 1000.0)
    for step in range(1, 21):
        core.say(b"0", a_report(step, loss=math.nan, arrays={"grad_norm": np.ones(2, np.float32)}), 1000.0 + step)
        core.pass_time(1000.0 + step)
    assert found(core) == {("non_finite", "")}
    core.say(b"0", a_hello(**HELLO), 1021.0)
    play(core, 21, 60)

    job = core.state.jobs["train"]
    assert job.num_attempts == 1
    assert not [episode for episode in job.episodes.open if episode.part == "" and episode.rule == "non_finite"]
    assert [part.name for part in core.sink.steps[-1].parts] == ["critic", "actor"]
    play(core, 61, 62, actor=math.nan)
    assert ("non_finite", "actor") in found(core)


def test_ranges_outside_of_the_tables_are_harmless() -> None:
    core = Core()
    odd = (Part("critic", (3, 99), (7, 2)), Part("actor", (2**53, 2**53), (0, 2**53)))
    core.say(b"0", a_hello(**{**HELLO, "parts": odd}), 1000.0)
    play(core, 1, 5)

    critic, actor = core.sink.steps[-1].parts
    assert (critic.grad_norm, critic.lr) == (12.0, None)
    assert (actor.grad_norm, actor.lr) == (None, 1e-3)


def test_a_scrape_has_the_numbers_of_each_part(core: Core) -> None:
    play(core, 1, 3)
    play(core, 4, 4, actor=None)

    families = {family.name: family for family in StateCollector(core.state, lambda: 1004.0).collect()}
    losses = {sample.labels["part"]: sample.value for sample in families["caboose_part_loss"].samples}
    assert losses["actor"] == pytest.approx(-2.0, abs=0.02), "the last one known"
    norms = {sample.labels["part"]: sample.value for sample in families["caboose_part_gradient_norm"].samples}
    assert norms == {"critic": 5.0, "actor": 13.0}
    rates = {sample.labels["part"]: sample.value for sample in families["caboose_part_learning_rate"].samples}
    assert rates == {"critic": 1e-3, "actor": 2e-4}


def test_curves_and_open_findings_of_parts_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    before = JournaledCore(path)
    before.say(b"0", a_hello(**HELLO), 1000.0)
    play(before, 1, 40)
    play(before, 41, 43, actor=math.nan)
    before.commit(2000.0)
    before.journal.close(2000.0)
    before.close()

    reader = HistoryReader(path)
    steps = reader.series("train", 1000)
    assert [row["parts"]["critic"]["loss"] for row in steps] == [row["loss"] for row in steps]
    assert steps[41]["parts"]["actor"]["loss"] is None
    assert steps[41]["parts"]["actor"]["num_bad"] == 1
    thinned = reader.series("train", 4)
    assert thinned[0]["parts"]["actor"]["grad_norm_max"] == 13.0
    reader.close()

    core = Core()
    state: State = core.state
    restore(path, state, core.pipeline, 2000.0)
    job = state.jobs["train"]
    assert [part.name for part in job.parts] == ["critic", "actor"]
    assert job.recent[10].parts[1].grad_norm == 13.0
    assert math.isnan(job.recent[-1].parts[1].loss or 0.0)
    (open_one,) = [episode for episode in job.episodes.open if episode.rule == "non_finite"]
    assert open_one.part == "actor"
    core.say(b"0", a_hello(**HELLO), 2000.0)
    for step in range(44, 160):
        core.say(b"0", a_step(step), 2000.0 + step)
        core.pass_time(2000.0 + step)
    assert not [episode for episode in job.episodes.open if episode.rule == "non_finite"]
