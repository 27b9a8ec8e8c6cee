"""Everything that differs between devices: reading values and times off one without making the training thread wait.

Design
------
A tensor is copied to host memory without blocking and an event is recorded behind the copy; the sender's thread
queries the event later. On the CPU the value is there already. Phases on an accelerator are timed by events, recorded
where the host changes phase and read by the sender too, since the host runs ahead of the device.
"""

import itertools
import logging
from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import torch

from caboose_wire.fields import Float32

logger = logging.getLogger("caboose")


class Readback:
    """A float32 vector that is being copied to the host."""

    __slots__ = ("_event", "_host")

    def __init__(self, values: torch.Tensor) -> None:
        self._event: torch.Event | None = None
        if values.device.type == "cpu":
            self._host = values
            return
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._event = torch.Event(values.device)
        self._event.record()

    def is_ready(self) -> bool:
        """Whether `read` would return at once."""
        return self._event is None or bool(self._event.query())

    def read(self) -> Float32:
        """The values; only when ready."""
        result: Float32 = self._host.numpy().astype(np.float32, copy=False)
        return result


class Mark(Protocol):
    """A point in a device's stream of work, like `torch.Event`."""

    def elapsed_time(self, later: Self, /) -> float:
        """Milliseconds from this point to a later one."""


Marks = Sequence[tuple[str, Mark]]


class DevicePhases:
    """The points at which the device reached each phase of a step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, Mark]] = []

    def mark(self, phase: str) -> None:
        """Work queued from now on belongs to this phase."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        self._marks.append((phase, event))

    def take(self) -> Marks:
        """The marks of the step that ends now; its last one begins the next step."""
        marks, self._marks = self._marks, self._marks[-1:]
        return marks


def device_phases(device: torch.device) -> DevicePhases | None:
    """The device's clock; None on the CPU."""
    return None if device.type == "cpu" else DevicePhases(device)


def seconds_by_phase(marks: Marks) -> dict[str, float]:
    """Seconds per phase; only once the device has passed the last mark."""
    seconds: dict[str, float] = {}
    for (phase, begin), (_, end) in itertools.pairwise(marks):
        seconds[phase] = seconds.get(phase, 0.0) + begin.elapsed_time(end) / 1000.0
    return seconds


class Utilization:
    """The device's utilisation, from its driver's library; read by the sender's thread at each heartbeat."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._can_tell = device.type in ("cuda", "hip")

    def read(self) -> float | None:
        """Between 0 and 1; None if there is no such device or library."""
        if not self._can_tell:
            return None
        try:
            return float(torch.cuda.utilization(self._device)) / 100.0
        except Exception as error:  # noqa: BLE001 - the library raises errors of its own; without it nothing is lost
            logger.info("caboose: the device's utilisation cannot be read: %r", error)
            self._can_tell = False
            return None


def memory_bytes(device: torch.device) -> int | None:
    """Memory allocated on an accelerator, as its allocator counts it, without waiting; None on the CPU."""
    if device.type == "cpu":
        return None
    return int(torch.accelerator.memory_allocated(device))
