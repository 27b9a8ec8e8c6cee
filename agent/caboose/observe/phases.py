"""Splits a step's wall time into phases.

Design
------
One clock, one current phase: each mark adds the time since the last mark to the phase that was current. So phases
never overlap, need no nesting, and add up over micro-batches. The time after the forward counts as backward (the loss,
`backward()` and the all-reduce inside it) until the optimizer or the next forward begins. An accelerator runs behind
the host, so its own clock is marked as well (`device_phases`), and the sender replaces the host's times by the device's
once they can be read; nothing waits for them.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from caboose_wire import Phases

if TYPE_CHECKING:
    from caboose.tensors.readback import DevicePhases

Phase = Literal["other", "data", "forward", "backward", "optimizer"]


class PhaseClock:
    """The time of each phase since the last step boundary."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._current: Phase = "other"
        self._since = clock()
        self._seconds: dict[Phase, float] = {}
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

    def take(self) -> Phases:
        """The phases of the step that ends now; the next step begins."""
        self.mark("other")
        seconds, self._seconds = self._seconds, {}
        nan = float("nan")
        return Phases(
            total=sum(seconds.values()),
            data=seconds.get("data", nan),
            forward=seconds.get("forward", nan),
            backward=seconds.get("backward", nan),
            optimizer=seconds.get("optimizer", nan),
        )
