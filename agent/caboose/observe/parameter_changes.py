"""Notices that the optimizers hold other parameters than before: layers unfrozen, a head replaced.

Design
------
Asked once in each step, on the training thread, so it looks at little: how many parameters each group has, and which is
the last. On sampled steps it looks at every parameter, and whether it takes a gradient.
"""

from collections.abc import Sequence

import torch


class ParameterChanges:
    """What the optimizers held when last asked."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._brief = self._look()
        self._whole = self._look_closely()

    def have_changed(self, *, is_sampled: bool) -> bool:
        """Whether they hold something else than at the last time this was so."""
        brief = self._look()
        if brief == self._brief and not is_sampled:
            return False
        whole = self._look_closely()
        has_changed = whole != self._whole
        self._brief, self._whole = brief, whole
        return has_changed

    def _look(self) -> list[tuple[int, int]]:
        held = [group["params"] for optimizer in self._optimizers for group in optimizer.param_groups]
        return [(len(parameters), id(parameters[-1]) if parameters else 0) for parameters in held]

    def _look_closely(self) -> list[list[tuple[int, bool]]]:
        return [
            [(id(p), p.requires_grad) for p in group["params"]]
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]
