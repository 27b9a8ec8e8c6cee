"""A limit of the gradient norm that a command sets on a run, as a line with `clip_grad_norm_` in the loop would.

Design
------
The limit is a hook before the steps of the optimizers. It calls torch's own clipper, so what the monitor sees (the norm
before clipping, the share of clipped steps) is the same as with that line. It is registered for all optimizers and
passes by those of others: torch calls such hooks before those of one optimizer, so the monitor reads clipped gradients.
A closure that makes the gradients is clipped after it has made them.

All ranks set the limit at one boundary. Gradients of replicas are equal on all ranks before a step, so every rank gets
the same factor without a collective. Sharded gradients would need one in each step, so a sharded run refuses. Clipping
in the loop stays; the lower of the two limits is in force. Without a limit there is no hook.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from caboose.observe.engine_optimizer import EngineOptimizer
from caboose.observe.step_hooks import before_step
from caboose.tensors.placement import Placements

logger = logging.getLogger("caboose")


class AppliedClip:
    """The limit of one run."""

    def __init__(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, scaler: Any, world: int
    ) -> None:
        self._optimizers = tuple(optimizers)
        self._handle: RemovableHandle | None = None
        self._has_warned = False
        self.why_not = _why_not(model, self._optimizers, scaler, world)
        """Why no limit can be set; empty where it can."""
        self.max_norm = 0.0
        """The limit in force; 0 where there is none."""

    def set(self, max_norm: float) -> str:
        """From the next step on, this limit, or none for 0; returns what was changed."""
        before = f"{self.max_norm:g}" if self.max_norm else "none"
        self.close()
        if max_norm:
            self._handle = register_optimizer_step_pre_hook(self._hook())
            self.max_norm = max_norm
        return f"gradient norm limited to {f'{max_norm:g}' if max_norm else 'none'}, was {before}"

    def close(self) -> None:
        """Takes the limit away."""
        if self._handle is not None:
            self._handle.remove()
        self._handle, self.max_norm = None, 0.0

    def _hook(self) -> Callable[..., Any]:
        hooks = {id(one): self._hook_of(one) for one in self._optimizers}

        def hook(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            own = hooks.get(id(optimizer))
            return None if own is None else own(optimizer, args, kwargs)

        return hook

    def _hook_of(self, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def clip() -> None:
            if getattr(optimizer, "grad_scale", None) is not None:
                self._warn_of_scale()
                return
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)

        return before_step(clip, clip)

    def _warn_of_scale(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("caboose: gradients are not clipped: a scaler passes them to a fused optimizer while scaled")


def _why_not(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], scaler: Any, world: int) -> str:
    if any(isinstance(optimizer, EngineOptimizer) for optimizer in optimizers):
        return "an engine owns the gradients: set gradient_clipping in its configuration"
    placements = Placements(model, world)
    if any(p.requires_grad and placements.of(p).placement != "replicated" for p in model.parameters()):
        return "the gradients are sharded, and their norm would need a collective in each step: clip in the loop"
    if scaler is not None and any(getattr(one, "_step_supports_amp_scaling", False) for one in optimizers):
        return "a fused optimizer gets scaled gradients: clip in the loop, after scaler.unscale_(optimizer)"
    return ""
