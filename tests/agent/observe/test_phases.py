"""Time goes to exactly one phase."""

import math
from itertools import chain, repeat

import pytest
import torch

from caboose.observe.phases import PhaseClock
from caboose.tensors.readback import Utilization, device_phases, seconds_by_phase


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


def test_the_time_between_forward_and_backward_is_its_own_phase() -> None:
    clock = ticking(0, 0, 1, 4, 6)
    for phase in ("forward", "loss", "backward", "other"):
        clock.mark(phase)  # type: ignore[arg-type]  # a plain tuple of phases
    phases = clock.take()
    assert (phases.forward, phases.loss, phases.backward) == (1, 3, 2)


def test_without_a_backward_that_was_seen_the_time_after_the_forward_is_the_backwards() -> None:
    clock = ticking(0, 0, 1, 4)
    for phase in ("forward", "loss", "optimizer"):
        clock.mark(phase)  # type: ignore[arg-type]  # a plain tuple of phases
    phases = clock.take()
    assert (phases.forward, phases.backward) == (1, 3)
    assert math.isnan(phases.loss)


def test_waiting_is_counted_beside_the_phase_it_is_in_and_once() -> None:
    clock = ticking(0, 0, 2, 3, 5, 6, 10, 12)
    clock.mark("forward")
    clock.begin_wait()  # at 2
    clock.begin_wait()
    clock.end_wait()
    clock.end_wait()  # at 3
    clock.mark("backward")
    clock.begin_wait()  # at 6
    clock.end_wait()  # at 10
    phases = clock.take()
    assert (phases.forward, phases.backward) == (5, 7)
    assert (phases.forward_wait, phases.backward_wait) == (1, 4)
    assert math.isnan(clock.take().backward_wait), "a step without a wait that was seen"


class Moment:
    """A moment of a device's clock, as an event of torch's gives it: in milliseconds."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def elapsed_time(self, later: "Moment", /) -> float:
        return later.milliseconds - self.milliseconds


def test_a_device_is_timed_by_its_own_marks() -> None:
    marks = [("other", 0), ("forward", 100), ("backward", 400), ("forward", 1000), ("backward", 1300), ("other", 2000)]
    times = seconds_by_phase([(phase, Moment(at)) for phase, at in marks])
    assert times == pytest.approx({"other": 0.1, "forward": 0.6, "backward": 1.3})


def test_on_the_cpu_host_and_device_are_one() -> None:
    device = torch.device("cpu")
    assert device_phases(device) is None
    assert Utilization(device).read() is None


def test_a_driver_library_that_is_not_there_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="caboose")
    utilization = Utilization(torch.device("cuda"))
    assert [utilization.read(), utilization.read()] == [None, None]
    assert len(caplog.records) == 1
