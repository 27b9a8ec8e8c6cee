"""This rank's own gradients before the all-reduce, on sampled steps.

Design
------
A tensor hook on a parameter runs before DDP's reducer gets the gradient, whatever the bucket size and whether the model
was wrapped before or after. A hook costs microseconds per tensor, so hooks exist only during a sampled step: installed
at its first forward, removed at its boundary. A parameter whose hook runs twice in one step (gradient accumulation) has
no single local gradient; the step's local norms are then left out.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from caboose.tensors.placement import own


class LocalGradients:
    """Norms of the gradients this rank computed itself, in one sampled step."""

    def __init__(self, parameters: Sequence[torch.Tensor], protect: Any, norm_type: torch.dtype) -> None:
        self._parameters = parameters
        self._protect = protect
        self._norm_type = norm_type
        self._handles: list[RemovableHandle] = []
        self._norms: dict[int, torch.Tensor] = {}
        self._is_ambiguous = False

    @property
    def is_armed(self) -> bool:
        """Whether the hooks are in place."""
        return bool(self._handles)

    def arm(self) -> None:
        """Puts a hook on every parameter that takes a gradient."""
        for row, parameter in enumerate(self._parameters):
            if parameter.requires_grad:
                hook = self._protect("local gradient hook", self._hook_for(row))
                self._handles.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]  # torch gives no types

    def _hook_for(self, row: int) -> Any:
        def see(gradient: torch.Tensor) -> None:
            if row in self._norms:
                self._is_ambiguous = True
            elif gradient.layout is torch.strided:
                self._norms[row] = torch.linalg.vector_norm(own(gradient.detach()), dtype=self._norm_type)

        return see

    def take(self) -> tuple[list[int], list[torch.Tensor]]:
        """Rows and norms since `arm`; removes the hooks."""
        self.disarm()
        norms, self._norms = self._norms, {}
        ambiguous, self._is_ambiguous = self._is_ambiguous, False
        return ([], []) if ambiguous else (list(norms), list(norms.values()))

    def disarm(self) -> None:
        """Removes the hooks."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
