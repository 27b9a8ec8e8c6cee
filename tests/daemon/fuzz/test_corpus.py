"""Examples that once failed, and those known to be hostile: none fails now."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from caboose_wire import (
    Ack,
    Bye,
    Event,
    Heartbeat,
    Hello,
    Holdings,
    PlanRequest,
    StepReport,
    StepReports,
    StepRun,
)
from caboose_wire.messages import Up
from support.fuzzing import corpus, hostile
from support.fuzzing.chosen import Chosen
from support.fuzzing.errors import Wrong
from support.fuzzing.tally import Tally
from support.fuzzing.world import OPERATIONS, Operation, World

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's: in a daemon they are no errors
FILES = sorted(corpus.GOLDEN.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_example_of_the_corpus_passes(path: Path) -> None:
    corpus.play(corpus.read(path))


# The fuzzer itself


CHOSEN = {
    Hello: {*hostile.HELLO, "job", "rank", "config", "facts"},
    StepReport: {*hostile.REPORT, "arrays"},
    Event: {"attempt", "step", "time", "kind", "fields"},
    PlanRequest: {*hostile.OTHERS["PlanRequest"], "job"},
    **{kind: set(hostile.OTHERS[kind.__name__]) for kind in (Heartbeat, Bye, Ack, Holdings)},
}
"""The fields that examples vary, by message; messages of several reports are made of these."""


def test_every_message_of_an_agent_and_every_field_of_it_is_varied() -> None:
    assert {*CHOSEN, StepReports, StepRun} == set(get_args(Up))
    for kind, varied in CHOSEN.items():
        assert {field.name for field in msgspec.structs.fields(kind)} == varied, kind.__name__
    assert {"reports", "run"} < set(OPERATIONS)


def test_the_corpus_is_there() -> None:
    assert len(FILES) >= 10


def test_bytes_that_are_used_up_choose_the_simplest() -> None:
    chosen = Chosen(b"\x05\x01")
    assert [chosen.pick(range(4)) for _ in range(3)] == [1, 1, 0]
    assert chosen.is_used_up


def test_what_fails_inside_is_seen_and_the_example_is_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = World.turn

    def turn(world: World, seconds: float) -> None:
        real(world, seconds)
        job = world.job()
        if job is not None and job.num_steps >= 2:
            world.daemon.state.guard.failed("step", job, ZeroDivisionError(), world.now)

    monkeypatch.setattr(World, "turn", turn)
    operations: list[Operation] = [
        ["get", "/api/v1/jobs"],
        *(["hello", rank, {"facts": {"a": 1}}] for rank in (0, 1)),
        ["event", 0, "note", {"text": "x"}],
        ["healthy", 1],
        ["scrape", ""],
        ["healthy", 1],
        ["restart"],
    ]
    tally = Tally(tmp_path)
    with tally.example() as world:
        for operation in operations:
            world.do(operation)
    tally.discard()

    ((kind, path),) = ((failure[0], path) for failure, path in tally.crashers.items())
    assert kind == "ZeroDivisionError"
    assert corpus.read(path) == [["hello", 0, {}], ["hello", 1, {}], ["healthy", 1], ["healthy", 1]]
    with pytest.raises(Wrong, match="failed in stage step"):
        corpus.play(corpus.read(path))


def test_a_job_that_a_restart_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with World() as world:
        world.begin()
        for operation in (["hello", 0, {}], ["hello", 1, {}], ["healthy", 2]):
            world.do(operation)
        world.daemon._journal.database.connection.execute("DELETE FROM steps WHERE step = 2")
        with pytest.raises(Wrong, match="after the restart"):
            world.do(["restart"])
