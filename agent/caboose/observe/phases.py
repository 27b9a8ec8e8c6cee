"""Splits a step's wall time into phases.

Design
------
One clock, one current phase: each mark adds the time since the last mark to the phase that was current. So phases
never overlap, need no nesting, and add up over micro-batches. The time after the forward is that of the loss, until
the backward begins; in a step whose backward was not seen, all of it counts as backward. Waiting for other ranks
(`waits`) is part of the phase that it happens in, and is added up beside.

An accelerator runs behind the host, so its own clock is marked as well (`device_phases`), and the sender replaces the
host's times by the device's once they can be read; nothing waits for them.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from caboose_wire import Phases

if TYPE_CHECKING:
    from caboose.tensors.readback import DevicePhases

Phase = Literal["other", "data", "forward", "loss", "backward", "optimizer"]
WAIT = "+wait"
"""Ends the name under which a device's clock marks waiting in a phase."""


class PhaseClock:
    """The time of each phase since the last step boundary."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._current: Phase = "other"
        self._since = clock()
        self._seconds: dict[str, float] = {}
        self._depth = 0
        self._wait_began = 0.0
        self._waits: dict[Phase, float] = {}
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
        seconds[self._current] = seconds.get(self._current, 0.0) + (now - self._since)
        self._current = phase
        self._since = now
        if self.device_phases is not None:
            self.device_phases.mark(phase)

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
        """The phases of the step that ends now; the next step begins."""
        self.mark("other")
        seconds, self._seconds = self._seconds, {}
        waits, self._waits = self._waits, {}
        nan = float("nan")
        none = 0.0 if waits else nan
        times = folded(seconds)
        return Phases(
            total=sum(times.values()),
            data=times.get("data", nan),
            forward=times.get("forward", nan),
            backward=times.get("backward", nan),
            optimizer=times.get("optimizer", nan),
            loss=times.get("loss", nan),
            forward_wait=waits.get("forward", none),
            backward_wait=waits.get("backward", none),
        )


def folded(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Without a backward that was seen, the time after the forward is the backward's."""
    if "loss" in seconds and "backward" not in seconds:
        return {("backward" if phase == "loss" else phase): time for phase, time in seconds.items()}
    return seconds
