"""Gets values off their device without making the training thread wait.

Design
------
A tensor is copied to host memory without blocking and an event is recorded behind the copy; the sender's thread
asks the event later. On CPU the value is there already. These are the only lines that differ between devices.
"""

import numpy as np
import torch

from caboose_wire.messages import Float32


class Readback:
    """A float32 vector on its way to the host."""

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


def memory_bytes(device: torch.device) -> int | None:
    """Memory allocated on an accelerator, as its allocator counts it, without waiting; None on the CPU."""
    if device.type == "cpu":
        return None
    return int(torch.accelerator.memory_allocated(device))
