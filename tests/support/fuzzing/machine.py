"""The state machine that hypothesis drives: a job's ranks, its readers and writers, and a daemon that may restart."""

import random
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from support.fuzzing import operations
from support.fuzzing.chosen import Chosen
from support.fuzzing.tally import Tally

NUM_OPERATIONS = 4
"""Per example, besides the ranks' introduction and a first step."""
BATCH = 500
"""Examples of one run of hypothesis; the next one has another seed."""
CHOICES = st.binary(max_size=32)
"""One draw for all choices of an operation: a draw takes longer than a choice."""
SETTINGS = settings(
    max_examples=BATCH,
    stateful_step_count=NUM_OPERATIONS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


class Watched(RuleBasedStateMachine):
    """A daemon that watches a job."""

    tally = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.world = self.tally.begin()
        self.is_over = False

    def _do(self, generator: operations.Generator, chosen: Chosen) -> None:
        if self.is_over:
            return
        try:
            for operation in generator(chosen, self.world):
                self.world.do(operation)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.is_over = True
        if not self.tally.is_kept(self.world, error):
            raise error

    @initialize(content=CHOICES)
    def begins(self, content: bytes) -> None:
        chosen = Chosen(content)
        self._do(operations.join, chosen)
        self._do(operations.step, chosen)

    def teardown(self) -> None:
        if self.is_over:
            return
        try:
            self.tally.end(self.world)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)


def _rule_of(generator: operations.Generator) -> Any:
    def method(self: Watched, content: bytes) -> None:
        self._do(generator, Chosen(content))

    method.__name__ = generator.__name__
    return rule(content=CHOICES)(method)


for _generator in operations.GENERATORS:
    setattr(Watched, f"does_{_generator.__name__}", _rule_of(_generator))


def run(directory: Path, minutes: float, first_seed: int, counts: Path) -> None:
    """Plays examples for so many minutes; failures are kept in `directory`, counts are written to `counts`."""
    Watched.tally = Tally(directory / "crashers")
    generating = settings(SETTINGS, database=None, phases=(Phase.generate,))  # failures are kept, and do not end it
    end, seeds = time.monotonic() + 60.0 * minutes, random.Random(first_seed)
    while time.monotonic() < end:
        machine = seed(seeds.randrange(2**32))(Watched)
        run_state_machine_as_test(machine, settings=generating)
        Watched.tally.write(counts)
    Watched.tally.discard()
