"""Whether a loop never sets its gradients to zero, so that each step adds to those before it.

Design
------
Autograd adds to a gradient that exists in place, and counts each change of a tensor in its version. A loop that clears
its gradients makes new ones, or changes them once more. So the smallest trained parameter's gradient is compared from
one optimizer step to the next: the same tensor, changed by the backward passes alone (and by the clippers that were
seen in between), has kept what it had. The passes are counted, since an accumulation has several.

DDP copies the reduced gradient over the local one, which is a change as well. How many such changes a pass brings
shows in the first gradient, which is new and was never cleared. Gradients that are views of DDP's buckets share their
versions with other parameters': these are not judged.

The first new gradient ends it: a loop that clears its gradients does so at every step. Nothing waits for the device.
"""

from collections.abc import Sequence

import torch

ENOUGH = 5
"""Steps in a row that kept their gradients."""


class KeptGradients:
    """Follows one parameter's gradient until it is known whether gradients are kept."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        trained = [p for p in parameters if p.requires_grad and p.numel()]
        self._parameter = min(trained, key=lambda p: p.numel(), default=None)
        self._gradient: torch.Tensor | None = None
        self._version = self._num_passes = self._num_clips = self._num_kept = 0
        self._num_copies: int | None = None
        """Changes of a gradient in a step beside the additions."""
        self.is_watching = self._parameter is not None
        self.are_kept = False

    def note_backward(self) -> None:
        self._num_passes += 1

    def note_clip(self) -> None:
        self._num_clips += 1

    def before_step(self) -> None:
        """An optimizer's step begins: judges what happened to the gradient since the last one."""
        gradient = None if self._parameter is None else self._parameter.grad
        if self._num_copies is None and gradient is not None:
            self._num_copies = max(0, gradient._version - self._num_clips - max(0, self._num_passes - 1))
            if gradient._is_view():  # noqa: SLF001 - torch has no other name for it
                self._end()
        if self._parameter is None or self._gradient is None:
            return
        if gradient is None or gradient is not self._gradient:
            self._end()
            return
        changes = gradient._version - self._version - (self._num_copies or 0)
        added = self._num_passes + self._num_clips
        if self._num_passes and changes == added + 1:
            self._end()  # it was set to zero in place
        elif self._num_passes and changes == added:
            self._num_kept += 1
            if self._num_kept >= ENOUGH:
                self.are_kept = True
                self._end()
        else:
            self._num_kept = 0

    def after_step(self) -> None:
        """The step has ended: what the gradient is now is all that was used."""
        self._gradient = None if self._parameter is None else self._parameter.grad
        self._version = 0 if self._gradient is None else self._gradient._version
        self._num_passes = self._num_clips = 0

    def _end(self) -> None:
        self.is_watching, self._gradient, self._parameter = False, None, None
