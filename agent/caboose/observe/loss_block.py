"""The losses of plain steps on the host: copied into one small tensor, which the sender's thread reads.

Design
------
A step without norms and samples has one device value, its loss. A vector of its own for it takes a handful of
operations and objects; here it takes two operations: the value is detached and copied into the next row of a block, at
once, since the program may change the loss in place afterwards. A block is not used again, so the sender may read a row
at any later time. On the host a row can be read as soon as it is written. On an accelerator it could not, so there a
step's loss stays in the step's own vector.
"""

import torch

from caboose.tensors.readable import mean
from caboose_wire.fields import Float32

NUM_ROWS = 64

Place = tuple[Float32, int]
"""A block's values, and the row."""


class LossBlock:
    """Where the next losses go. Used on the training thread."""

    def __init__(self) -> None:
        self._rows: tuple[torch.Tensor, ...] = ()
        self._values: Float32 | None = None
        self._next = 0

    def put(self, loss: torch.Tensor) -> Place | None:
        """Copies a loss on the host; None if it cannot be read."""
        if type(loss) is torch.Tensor and loss.dtype is torch.float32 and loss.dim() == 0:
            value = loss.detach()
        else:
            readable = mean(loss)
            if readable is None:
                return None
            value = readable.reshape(1)
        row = self._next
        if row >= len(self._rows):
            row = 0
            self._begin()
        self._rows[row].copy_(value)
        self._next = row + 1
        assert self._values is not None, "made with its rows"
        return self._values, row

    def _begin(self) -> None:
        with torch.inference_mode(False):  # its tensors could not be written outside of it
            block = torch.zeros(NUM_ROWS, dtype=torch.float32, device="cpu")
        self._values = block.numpy()
        self._rows = block.view(NUM_ROWS, 1).unbind()
