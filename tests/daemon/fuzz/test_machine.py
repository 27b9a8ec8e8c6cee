"""The state machine of `make fuzz`, with few examples, the same every time."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from support.fuzzing.machine import SETTINGS, Watched
from support.fuzzing.tally import Tally

NUM_EXAMPLES = 100
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's: in a daemon they are no errors


def test_no_example_fails() -> None:
    Watched.tally = Tally()
    few = settings(SETTINGS, max_examples=NUM_EXAMPLES, derandomize=True, database=None)
    try:
        run_state_machine_as_test(Watched, settings=few)
        assert Watched.tally.num_past_close >= NUM_EXAMPLES * 0.9
    finally:
        Watched.tally.discard()
