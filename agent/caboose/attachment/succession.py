"""Whether training goes on with another optimizer than those that are watched, and what it did before that was clear.

Design
------
An optimizer that is not watched may be a late partner of those that are, work inside one of them (the inner one of a
wrapper), train something else for a while (a probe), or begin a new phase of training. Only what follows tells which.
The last is certain at once if it was made after the last step of those that are watched, for parameters that they hold:
then it is watched from its first step on. Else it must have taken `PATIENCE` steps while those took none; its losses
and learning rates are kept until then, and reported when it is watched. Of several optimizers in turn it is not known
which steps make one; theirs are not reported, and that is stated.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from caboose.attachment.turns import PATIENCE
from caboose.report.past_steps import PastStep

if TYPE_CHECKING:
    import torch


class Succession:
    """What optimizers that are not watched have done since the last step of those that are."""

    def __init__(self) -> None:
        self.num_steps = 0
        """Their steps."""
        self._made_after: dict[int, int] = {}
        """The number of steps before each optimizer was made, by identity."""
        self._outer = 0
        self._inside: set[int] = set()
        self._steps: list[PastStep] = []
        self._by: set[int] = set()
        self._last_end: float | None = None

    def note_made(self, optimizer: int, num_steps: int) -> None:
        """An optimizer was made, after so many steps of those that are watched."""
        self._made_after[optimizer] = num_steps

    def was_made_after(self, optimizer: int, num_steps: int) -> bool:
        """Whether it was made after so many steps."""
        return self._made_after.get(optimizer, -1) >= num_steps

    def is_inside(self, optimizer: int, outer: int) -> bool:
        """Whether it has stepped inside the step of the other one, which began and has not ended.

        If that one's step was left with an exception it never ends: then this one steps again, and is not inside.
        """
        if outer != self._outer:
            self._outer, self._inside = outer, set()
        is_again = optimizer in self._inside
        self._inside.add(optimizer)
        return not is_again

    def keep(self, optimizer: "torch.optim.Optimizer", loss: "torch.Tensor | None") -> bool:
        """An optimizer that is not watched has stepped; returns whether training goes on with it."""
        from caboose.observe.optimizers import learning_rates

        now = time.perf_counter()
        seconds = None if self._last_end is None else now - self._last_end
        self._last_end = now
        self.num_steps += 1
        self._by.add(id(optimizer))
        self._steps.append(PastStep(loss, learning_rates([optimizer]), time.time(), seconds))
        return self.num_steps >= PATIENCE

    def clear(self) -> None:
        """One that is watched has stepped: these were no new phase."""
        self.num_steps, self._last_end = 0, None
        self._steps, self._by = [], set()

    def take(self, optimizers: "Sequence[torch.optim.Optimizer]") -> list[PastStep]:
        """The steps of a phase, if all were steps of one of these, which are watched now; else none."""
        steps, by = self._steps, self._by
        self.clear()
        if len(by) != 1 or by.isdisjoint(map(id, optimizers)):
            return []
        return steps if len(optimizers) == 1 else [step._replace(lr=()) for step in steps]
