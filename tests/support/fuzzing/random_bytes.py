"""Examples from random bytes: nothing is learned from them, so they are many."""

import random
import time
from pathlib import Path

from support.fuzzing import operations
from support.fuzzing.chosen import Chosen
from support.fuzzing.tally import Tally

NUM_OPERATIONS = 5
SIZES = (8, 16, 24, 40, 80, 200)
WRITE_EVERY = 50


def play(content: bytes, tally: Tally) -> None:
    """The example that these bytes make: all ranks join and report a step, then some operations."""
    chosen = Chosen(content)
    with tally.example() as world:
        generators = [operations.join, operations.step]
        for _ in range(NUM_OPERATIONS):
            for generator in generators:
                for operation in generator(chosen, world):
                    world.do(operation)
            if chosen.is_used_up:
                break
            generators = [chosen.pick(operations.GENERATORS)]


def run(directory: Path, minutes: float, seed: int, counts: Path) -> None:
    """Plays examples for so many minutes; failures are kept in `directory`, counts are written to `counts`."""
    tally, drawn = Tally(directory / "crashers"), random.Random(seed)
    end = time.monotonic() + 60.0 * minutes
    while time.monotonic() < end:
        play(drawn.randbytes(drawn.choice(SIZES)), tally)
        if tally.num_examples % WRITE_EVERY == 0:
            tally.write(counts)
    tally.write(counts)
    tally.discard()
