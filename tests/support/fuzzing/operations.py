"""How an example is put together: every function makes a few operations of a world from choices.

The choices are made by a `Chooser`: by hypothesis, or from the bytes that atheris gives.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from support.fuzzing import hostile
from support.fuzzing.hostile import INF, NAN, NUM_RANKS, Arrays, Fields, frames_of
from support.fuzzing.world import JOBS, OPENMETRICS, Operation, World

T = TypeVar("T")
RANKS = range(NUM_RANKS)
PAUSES = (0.5, 0.1, 3.0, 12.0, 45.0, 200.0, 4000.0)
Pairs = Sequence[tuple[str, Any]]


class Chooser(Protocol):
    """Whoever makes the choices; the first of a sequence is the simplest."""

    def pick(self, options: Sequence[T]) -> T: ...

    def some_bytes(self) -> bytes: ...


def _pairs(table: dict[str, tuple[Any, ...]]) -> Pairs:
    return [(name, value) for name, values in table.items() for value in values]


HELLO, REPORT = _pairs(hostile.HELLO), _pairs(hostile.REPORT)
STEADY = [pair for pair in REPORT if pair[0] not in ("step", "attempt", "time")]
"""Changes of a report after which it is still a report of its step."""
OTHERS = {kind: _pairs(table) for kind, table in hostile.OTHERS.items()}
MALFORMED = {
    "StepReport": tuple(hostile.REPORT),
    "Hello": (*hostile.HELLO, "facts", "config", "job", "rank"),
    "Event": ("attempt", "step", "time", "kind", "fields"),
    **{kind: tuple(table) or ("number",) for kind, table in hostile.OTHERS.items()},
}
REQUIRED: dict[str, Fields] = {
    "Heartbeat": {"step": 1},
    "Holdings": {"group": "group-of-these-ranks", "budget_left": 3},
    "Ack": {"command": 1, "outcome": "accepted"},
    "Bye": {"step": 1},
    "PlanRequest": {},
    "Command": {"number": 1, "kind": "stop", "incarnation": "group-of-these-ranks"},
    "Terms": {},
}


def _changes(choose: Chooser, pairs: Pairs, most: int = 3) -> Fields:
    return dict(choose.pick(pairs) for _ in range(choose.pick(range(most + 1)))) if pairs else {}


def _scalars(choose: Chooser, names: Sequence[str], values: Sequence[Any], most: int = 3) -> Fields:
    return {choose.pick(names): choose.pick(values) for _ in range(choose.pick(range(most + 1)))}


def _arrays(choose: Chooser) -> Arrays:
    found = {}
    for _ in range(choose.pick(range(4))):
        name = choose.pick(hostile.ARRAY_NAMES)
        found[name] = [name, choose.pick(hostile.SHAPES), choose.pick(hostile.FILLS)]
    return list(found.values())


def _good_arrays(choose: Chooser) -> Arrays:
    """Arrays of the right shape, whatever is in them."""
    names = {choose.pick(hostile.ARRAY_NAMES[:-2]) for _ in range(choose.pick(range(5)))}
    return [[name, None, choose.pick(hostile.FILLS)] for name in sorted(names)]


def join(choose: Chooser, world: World) -> list[Operation]:
    """All ranks of a job introduce themselves, with one description."""
    facts = _scalars(choose, hostile.FACT_NAMES, hostile.FACT_VALUES)
    changes = {"facts": facts, **_changes(choose, [pair for pair in HELLO if pair[0] != "incarnation"], 2)}
    return [["hello", rank, changes] for rank in RANKS]


def hello(choose: Chooser, world: World) -> list[Operation]:
    """A rank introduces itself, once more perhaps, or of another job."""
    job = {"job": choose.pick(JOBS)}
    facts = {"config": _scalars(choose, hostile.FACT_NAMES, hostile.FACT_VALUES)}
    return [["hello", choose.pick(RANKS), {**job, **facts, **_changes(choose, HELLO)}]]


def step(choose: Chooser, world: World) -> list[Operation]:
    """All ranks report the next step, alike or not, and it is closed."""
    changes = _changes(choose, STEADY, 5)
    arrays = _good_arrays(choose)
    number = world.latest + choose.pick((1, 1, 2, 1000))
    made: list[Operation] = [["report", rank, number, changes, arrays] for rank in RANKS]
    if choose.pick((False, True)):
        made[-1] = ["report", RANKS[-1], number, _changes(choose, REPORT), _good_arrays(choose)]
    return [*made, ["turn", choose.pick(PAUSES[:4])]]


def extreme(choose: Chooser, world: World) -> list[Operation]:
    """Some steps in which all numbers of all ranks are the same extreme one, but for a few."""
    value = choose.pick(hostile.FLOATS)
    names = hostile.ARRAY_NAMES[:-2] if choose.pick((True, False)) else ()
    arrays = {name: [name, None, value] for name in names} | {made[0]: made for made in _good_arrays(choose)}
    changes = {**hostile.extreme(value), **_changes(choose, STEADY)}
    return [["steps", choose.pick((1, 1, 2, 6)), changes, list(arrays.values())]]


def spike(choose: Chooser, world: World) -> list[Operation]:
    """The loss leaves its level for so long that the policy decides."""
    changes = {"loss": choose.pick((9.0, NAN, 50.0, INF)), **_changes(choose, STEADY, 2)}
    arrays = _good_arrays(choose)
    num_before, num = choose.pick(((5, 3), (5, 3), (5, 12), (5, 12), (40, 40)))
    return [["healthy", num_before], ["steps", num, changes, arrays]]


def answer(choose: Chooser, world: World) -> list[Operation]:
    """The ranks answer the last command, and begin anew if it was a rollback."""
    job = world.job()
    command = None if job is None else job.rollback.last_command
    number = 1 if command is None else command.command
    acks: list[Operation] = [
        ["message", rank, "Ack", {"outcome": "done", **_changes(choose, OTHERS["Ack"], 2), "command": number}]
        for rank in RANKS
    ]
    if command is None or job is None or job.attempt is None or choose.pick((True, False)):
        return acks
    begun = {"attempt": job.attempt.agent_attempt + 1, "start_step": command.boundary or 0}
    hellos: list[Operation] = [["hello", rank, {**begun, **_changes(choose, HELLO, 1)}] for rank in RANKS]
    return [*acks, *hellos, ["turn", choose.pick(PAUSES[:4])], ["healthy", 1]]


def report(choose: Chooser, world: World) -> list[Operation]:
    """A rank reports something on its own."""
    number = max(0, world.latest + choose.pick((1, 0, -1, 2, 1025, 10**6)))
    return [["report", choose.pick(RANKS), number, _changes(choose, REPORT), _arrays(choose)]]


def together(choose: Chooser, world: World) -> list[Operation]:
    """All ranks report some steps in one message each, not all of which are in order or right."""
    numbers = [world.latest + offset for offset in choose.pick(((1, 2), (1, 2, 3), (1, 3), (2, 1), (1, 1), (1, 1025)))]
    parts = [[number, _changes(choose, STEADY, 2), _good_arrays(choose)] for number in numbers]
    if choose.pick((False, True)):
        parts[-1] = [numbers[-1], _changes(choose, REPORT), _arrays(choose)]
    return [*(["reports", rank, parts] for rank in RANKS), ["turn", choose.pick(PAUSES[:4])]]


def run(choose: Chooser, world: World) -> list[Operation]:
    """All ranks report a run of thin steps, alike or not."""
    number = world.latest + choose.pick((1, 1, 2, 0, 1025, 2**53 - 3))
    steps = [choose.pick(hostile.THIN_STEPS) for _ in range(choose.pick((1, 3, 0, 20)))]
    first = {"phases": [0.01], **_changes(choose, STEADY, 2)}
    made: list[Operation] = [["run", rank, number, first, steps] for rank in RANKS]
    if choose.pick((False, True)):
        made[-1] = ["run", RANKS[-1], number, {**first, **_changes(choose, REPORT)}, [*steps, *hostile.THIN_STEPS[:1]]]
    return [*made, ["turn", choose.pick(PAUSES[:4])]]


def healthy(choose: Chooser, world: World) -> list[Operation]:
    return [["healthy", choose.pick((1, 1, 1, 2, 2, 5, 5, 12))]]


def event(choose: Chooser, world: World) -> list[Operation]:
    fields = _scalars(choose, hostile.EVENT_NAMES, hostile.EVENT_VALUES, 5)
    return [["event", choose.pick(RANKS), choose.pick(hostile.EVENT_KINDS), fields]]


def message(choose: Chooser, world: World) -> list[Operation]:
    kind = choose.pick(tuple(hostile.OTHERS))
    return [["message", choose.pick(RANKS), kind, {**REQUIRED[kind], **_changes(choose, OTHERS[kind])}]]


def holdings(choose: Chooser, world: World) -> list[Operation]:
    """All ranks hold the same snapshots, so that a rollback is possible."""
    fields = {
        **REQUIRED["Holdings"],
        "snapshots": hostile.SNAPSHOT_LISTS[-1],
        **_changes(choose, OTHERS["Holdings"], 1),
    }
    return [["message", rank, "Holdings", fields] for rank in RANKS]


def malformed(choose: Chooser, world: World) -> list[Operation]:
    """A field of the wrong type."""
    kind = choose.pick(tuple(MALFORMED))
    changes = {choose.pick(MALFORMED[kind]): choose.pick(hostile.ODD)}
    rank = choose.pick(RANKS)
    if kind == "StepReport":
        return [["report", rank, world.latest + 1, changes, []]]
    if kind == "Hello":
        changes.pop("job", None)
        return [["hello", rank, changes]]
    if kind == "Event":
        header = {"attempt": 0, "step": 1, "time": 1.0, "kind": "note", **changes}
        return [["raw", rank, [frame.hex() for frame in frames_of("Event", header)]]]
    return [["message", rank, kind, {**REQUIRED[kind], **changes}]]


def raw(choose: Chooser, world: World) -> list[Operation]:
    """Bytes in the place of a message's body, or of all of it."""
    code = bytes((1, choose.pick(tuple(hostile.CODES.values()))))
    frames = choose.pick(([code, choose.some_bytes()], [choose.some_bytes()], [code, b"\x80", choose.some_bytes()], []))
    return [["raw", choose.pick(range(NUM_RANKS + 1)), [frame.hex() for frame in frames]]]


def turn(choose: Chooser, world: World) -> list[Operation]:
    return [["turn", choose.pick(PAUSES)]]


def get(choose: Chooser, world: World) -> list[Operation]:
    return [["get", choose.pick(hostile.PATHS)], ["status"]]


def post(choose: Chooser, world: World) -> list[Operation]:
    path, body = choose.pick(hostile.POSTS)
    return [["post", path, body]]


def scrape(choose: Chooser, world: World) -> list[Operation]:
    """Rarely: it takes as long as ten examples."""
    return [["scrape", choose.pick(("", OPENMETRICS))]] if choose.pick(range(6)) == 0 else []


def restart(choose: Chooser, world: World) -> list[Operation]:
    """Rarely: likewise."""
    return [["restart"], ["sweep"]] if choose.pick(range(8)) == 0 else []


Generator = Callable[[Chooser, World], list[Operation]]
GENERATORS: tuple[Generator, ...] = (
    *(step, together, run, healthy, extreme, spike, answer, report, event, message, holdings, hello),
    *(post, get, turn, malformed, raw, scrape, restart),
)
