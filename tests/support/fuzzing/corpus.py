"""Examples as files: how one is played alone, made smaller, kept and read.

Every file of `tests/golden/fuzz` is an example that once failed, or that is known to be hostile:

    {"about": "why it is here", "operations": [["hello", 0, {}], ["report", 0, 1, {"loss": NaN}, []], ["turn", 0.5]]}

The operations are methods of `World`. NaN and Infinity are written as Python's JSON writes them.
"""

import contextlib
import hashlib
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.fuzzing.world import Operation, World

GOLDEN = Path(__file__).parents[2] / "golden" / "fuzz"
Failure = tuple[str, str]
"""The class of an exception, and the place in the product that it came from."""


def play(operations: list[Operation]) -> int:
    """Plays an example in a daemon of its own; the number of steps that were closed. Raises what it raises."""
    world = World()
    try:
        world.begin()
        for operation in operations:
            world.do(operation)
        num_steps = world.end()
    except BaseException:
        with contextlib.suppress(Exception):  # what counts is why it failed
            world.close()
        raise
    world.close()
    return num_steps


def failure_of(error: BaseException) -> Failure:
    """What identifies a failure, so that a smaller example of it can be told from another failure."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "caboose" in frame.filename and "support" not in frame.filename]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else str(error)[:60]
    return type(error).__name__, place


def failure(operations: list[Operation]) -> Failure | None:
    """How an example fails; None if it does not."""
    try:
        play(operations)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        return failure_of(error)
    return None


def minimised(operations: list[Operation], is_failing: Callable[[list[Operation]], bool]) -> list[Operation]:
    """The example without all that it fails without."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(operations):
            if is_failing(candidate):
                operations, is_smaller = candidate, True
                break
    return operations


def _smaller(operations: list[Operation]) -> Iterator[list[Operation]]:
    half = len(operations) // 2
    if half > 1:
        yield operations[half:]
        yield operations[:half]
    for place in reversed(range(len(operations))):
        yield operations[:place] + operations[place + 1 :]
    for place, operation in enumerate(operations):
        for simpler in _simpler(operation):
            yield [*operations[:place], simpler, *operations[place + 1 :]]


def _simpler(value: Any) -> Iterator[Any]:
    """The same operation with an entry less, anywhere in its arguments."""
    if isinstance(value, dict):
        for name in value:
            yield {key: item for key, item in value.items() if key != name}
        for name, item in value.items():
            yield from ({**value, name: other} for other in _simpler(item))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            if isinstance(item, list):
                yield value[:place] + value[place + 1 :]
            yield from ([*value[:place], other, *value[place + 1 :]] for other in _simpler(item))


def keep(directory: Path, operations: list[Operation], about: str, name: str = "") -> Path:
    """Writes an example; without a name, under one made from its content."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"    {json.dumps(operation)}" for operation in operations)
    path = directory / f"{name or hashlib.sha256(lines.encode()).hexdigest()[:12]}.json"
    path.write_text(f'{{\n  "about": {json.dumps(about)},\n  "operations": [\n{lines}\n  ]\n}}\n')
    return path


def read(path: Path) -> list[Operation]:
    operations: list[Operation] = json.loads(path.read_text())["operations"]
    return operations
