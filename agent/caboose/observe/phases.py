"""Splits a step's wall time into phases.

Design
------
One clock, one current phase: each mark adds the time since the last mark to the phase that was current. So phases
never overlap, need no nesting, and add up over micro-batches. The time after the forward is that of the loss, until
the backward begins; in a step whose backward was not seen, all of it counts as backward. Waiting for other ranks
(`waits`) is part of the phase that it happens in, and is added up beside.

An accelerator runs behind the host, so its own clock is marked as well (`device_phases`), and the sender replaces the
host's times by the device's once they can be read; nothing waits for them.

On a step whose phases are not measured (`is_on`) nobody marks, so that it costs nothing: it has only its total.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from caboose_wire import Phases

if TYPE_CHECKING:
    from caboose.tensors.readback import DevicePhases

Phase = Literal["other", "data", "forward", "loss", "backward", "optimizer"]
NAN = float("nan")
WAIT = "+wait"
"""Ends the name under which a device's clock marks waiting in a phase."""


NOTHING: Mapping[str, float] = {}


class PhaseClock:
    """The time of each phase since the last step boundary."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._current: Phase = "other"
        self.since = clock()
        """When the current phase began; in a step whose phases are not measured, when the step did."""
        self._seconds: dict[str, float] = {}
        self._depth = 0
        self._wait_began = 0.0
        self._waits: dict[str, float] = {}
        self.is_on = True
        """Whether this step's phases are measured."""
        self.device_phases: DevicePhases | None = None
        """The device's clock, if it has one."""

    @property
    def current(self) -> Phase:
        """The phase the step is in."""
        return self._current

    def mark(self, phase: Phase) -> None:
        """From now on, time belongs to this phase."""
        now = self._clock()
        seconds = self._seconds
        seconds[self._current] = seconds.get(self._current, 0.0) + (now - self.since)
        self._current = phase
        self.since = now
        if self.device_phases is not None:
            self.device_phases.mark(phase)

    def leave_out(self, seconds: float) -> None:
        """The last `seconds` are not of the training."""
        self.since += seconds

    def begin_wait(self) -> None:
        """From now on, this rank waits for others; a wait within a wait is one."""
        self._depth += 1
        if self._depth == 1:
            self._wait_began = self._clock()
            if self.device_phases is not None:
                self.device_phases.mark(self._current + WAIT)

    def end_wait(self) -> None:
        """Goes on with its own work."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            waits = self._waits
            waits[self._current] = waits.get(self._current, 0.0) + (self._clock() - self._wait_began)
            if self.device_phases is not None:
                self.device_phases.mark(self._current)

    def take(self) -> Phases:
        """As `take_times`, in the form in which they are reported."""
        return self.take_times().phases()

    def take_times(self) -> "Times":
        """The times of the step that ends now; the next step begins."""
        if not self.is_on and self.device_phases is None:
            now = self._clock()
            total, self.since = now - self.since, now
            return Times(total, NOTHING, NOTHING)
        self.mark("other")
        seconds, self._seconds = self._seconds, {}
        waits, self._waits = self._waits, {}
        return Times(sum(seconds.values()), seconds, waits)


class Times(NamedTuple):
    """Seconds of one step: in all, by phase, and of each the waiting for other ranks."""

    total: float
    by_phase: Mapping[str, float]
    waits: Mapping[str, float]

    def phases(self) -> Phases:
        """As they are reported; called on the sender's thread."""
        times, waits = folded(self.by_phase), self.waits
        none = 0.0 if waits else NAN
        return Phases(
            self.total,
            times.get("data", NAN),
            times.get("forward", NAN),
            times.get("backward", NAN),
            times.get("optimizer", NAN),
            times.get("loss", NAN),
            waits.get("forward", none),
            waits.get("backward", none),
        )


def folded(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Without a backward that was seen, the time after the forward is the backward's."""
    if "loss" in seconds and "backward" not in seconds:
        return {("backward" if phase == "loss" else phase): time for phase, time in seconds.items()}
    return seconds
