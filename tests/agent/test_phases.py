"""Time goes to exactly one phase."""

import math
from itertools import chain, repeat

from caboose.phases import PhaseClock


def ticking(*times: float) -> PhaseClock:
    moments = chain(times, repeat(times[-1]))
    return PhaseClock(clock=lambda: next(moments))


def test_phases_follow_one_another_and_add_up() -> None:
    clock = ticking(0, 1, 3, 6, 10, 11)
    clock.mark("data")
    clock.mark("forward")
    clock.mark("backward")
    clock.mark("optimizer")
    phases = clock.take()
    assert (phases.data, phases.forward, phases.backward, phases.optimizer) == (2, 3, 4, 1)
    assert phases.total == 11


def test_micro_batches_add_up() -> None:
    clock = ticking(0, 0, 1, 3, 4, 6, 7)
    for phase in ("forward", "backward", "forward", "backward", "optimizer"):
        clock.mark(phase)  # type: ignore[arg-type]  # a plain tuple of phases
    phases = clock.take()
    assert (phases.forward, phases.backward) == (2, 4)


def test_a_phase_that_was_not_seen_is_nan_and_nothing_carries_over() -> None:
    clock = ticking(0, 1, 2, 3, 4)
    clock.mark("forward")
    clock.take()
    phases = clock.take()
    assert math.isnan(phases.forward)
    assert math.isnan(phases.data)
    assert phases.total == 1
