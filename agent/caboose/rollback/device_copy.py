"""Copies a snapshot's bytes off the device while training continues.

Design
------
On the CPU a copy is a copy. On an accelerator copies run on their own stream into pinned memory, and the host
continues at once. The training's stream must not write a tensor before it is copied: what may change at any time
(buffers, extras, the scaler) is copied first, and the stream waits for that much at once; parameters and optimizer
states change only in an optimizer's step, so a hook before the next step waits for those, with a forward and a
backward in between. These are waits between streams: the host never waits. The events also time the copy, which is the
upper bound of its cost.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle


class PendingCopy:
    """A copy in progress."""

    def __init__(self, began: "torch.Event | None" = None, ended: "torch.Event | None" = None) -> None:
        self._began = began
        self._ended = ended

    def wait(self) -> float:
        """Waits for the bytes; on a helper's thread. Returns the seconds that the device took."""
        if self._began is None or self._ended is None:
            return 0.0
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1e3


class Lane:
    """Copies between a device and host memory."""

    def __init__(self, device: torch.device, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._device = device
        self._stream = None if device.type == "cpu" else torch.Stream(device)
        self._pending: torch.Event | None = None
        self._handles: list[RemovableHandle] = []
        if self._stream is not None:
            self._handles = [optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers]

    @property
    def is_pinned(self) -> bool:
        """Whether host memory should be pinned."""
        return self._stream is not None

    def out(
        self, names: Sequence[str], to: Callable[[Sequence[str]], Any], tensors: dict[str, torch.Tensor]
    ) -> PendingCopy:
        """Copies tensors to their places in a slot."""
        stream = self._stream
        if stream is None:
            torch._foreach_copy_(to(names), [tensors[name] for name in names])
            return PendingCopy()
        late = [name for name in names if name.startswith(("parameter/", "optimizer/"))]
        early = [name for name in names if not name.startswith(("parameter/", "optimizer/"))]
        current = torch.accelerator.current_stream(self._device)
        stream.wait_stream(current)
        began = torch.Event(self._device, enable_timing=True)
        ended = torch.Event(self._device, enable_timing=True, blocking=True)  # the inspector sleeps and uses no core
        with stream:
            began.record(stream)
            if early:
                torch._foreach_copy_(to(early), [tensors[name] for name in early], non_blocking=True)
            current.wait_event(stream.record_event())
            if late:
                torch._foreach_copy_(to(late), [tensors[name] for name in late], non_blocking=True)
            ended.record(stream)
        self._pending = ended
        return PendingCopy(began, ended)

    def _before_step(self, *_: Any) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            torch.accelerator.current_stream(self._device).wait_event(pending)

    def back(self, targets: Sequence[torch.Tensor], views: Sequence[torch.Tensor]) -> None:
        """Writes the tensors of a slot into their targets, and waits for it."""
        self._before_step()
        if targets:
            torch._foreach_copy_(list(targets), list(views), non_blocking=self._stream is not None)
        if self._stream is not None:
            torch.accelerator.synchronize(self._device)

    def close(self) -> None:
        """Removes the hooks."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
