"""The hooks on model and optimizers, and what they saw of the step that is ending.

Design
------
All of it runs on the training thread. Gradients are read in an optimizer step pre-hook: by then they are reduced,
accumulated and clipped, exactly what the optimizer will apply. One `_foreach_norm` covers every layer; its
results, the local norms of a sampled step and the loss are packed into one small float32 vector, which leaves
the device in a single copy (see `readback`). Nothing here waits for a device and nothing communicates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from caboose.layers import LayerTable, group_table
from caboose.local_gradients import LocalGradients
from caboose.phases import PhaseClock
from caboose.readback import Readback

Protect = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(slots=True)
class Seen:
    """What one step left behind: scalars at once, device values as a vector still on its way."""

    loss: float | None
    lr: tuple[float, ...]
    rows: Sequence[int]
    local_rows: Sequence[int]
    has_loss: bool
    """Whether the vector begins with the loss; then come the norms of `rows`, then those of `local_rows`."""
    vector: Readback | None


class Observer:
    """Owns every hook of this agent; `close` takes them all out again."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        clock: PhaseClock,
        protect: Protect,
        sample_every: int,
        world: int,
    ) -> None:
        self.optimizers = list(optimizers)
        self.table = LayerTable(model, optimizers)
        self.groups = group_table(optimizers)
        self.wrapper = type(model).__name__
        self._clock = clock
        self._sample_every = sample_every
        self._step = 0
        self._norms: list[torch.Tensor] = []
        self._rows: list[int] = []
        is_double = any(p.dtype is torch.float64 for p in self.table.parameters)
        self._norm_type = torch.float64 if is_double else torch.float32  # a norm must not be narrower than its input
        self._watched = [self._watched_parameters(o) for o in optimizers]
        is_reduced = world > 1 and isinstance(model, torch.nn.parallel.DistributedDataParallel)
        self._local = LocalGradients(self.table.parameters, protect, self._norm_type) if is_reduced else None
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(protect("forward hook", self._before_forward)),
            model.register_forward_hook(protect("forward hook", self._after_forward)),
        ]
        for number, optimizer in enumerate(self.optimizers):
            before = protect("optimizer hook", self._before_optimizer_step(number))
            after = protect("optimizer hook", self._after_optimizer_step)
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))

    @property
    def visible(self) -> tuple[str, ...]:
        """What Hello says this agent sees."""
        seen = ["loss", "lr", "phases", "gradients"]
        return (*seen, "local_gradients") if self._local is not None else tuple(seen)

    def _watched_parameters(self, optimizer: torch.optim.Optimizer) -> list[tuple[int, torch.Tensor]]:
        return [
            (row, p)
            for group in optimizer.param_groups
            for p in group["params"]
            if (row := self.table.index.get(id(p))) is not None and self.table.layers[row].placement != "unknown"
        ]

    def _before_forward(self, module: torch.nn.Module, _args: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return  # an evaluation inside the loop is not part of the step's forward
        self._clock.mark("forward")
        if self._local is not None and self._step % self._sample_every == 0 and not self._local.is_armed:
            self._local.arm()

    def _after_forward(self, module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if self._clock.current == "forward":
            self._clock.mark("backward")

    def _before_optimizer_step(self, number: int) -> Callable[..., None]:
        def read_gradients(*_: Any) -> None:
            self._clock.mark("optimizer")
            rows = []
            gradients = []
            for row, parameter in self._watched[number]:
                gradient = parameter.grad
                if gradient is not None and gradient.layout is torch.strided:
                    rows.append(row)
                    gradients.append(gradient)
            if gradients:
                self._norms += torch._foreach_norm(gradients, 2, dtype=self._norm_type)
                self._rows += rows

        return read_gradients

    def _after_optimizer_step(self, *_: Any) -> None:
        self._clock.mark("other")

    def take(self, loss: torch.Tensor | float | None) -> Seen:
        """What was seen since the last call; a new step begins."""
        norms, self._norms = self._norms, []
        rows, self._rows = self._rows, []
        local_rows: list[int] = []
        if self._local is not None and self._local.is_armed:
            local_rows, local_norms = self._local.take()
            norms += local_norms
        self._step += 1
        has_loss = isinstance(loss, torch.Tensor)
        if isinstance(loss, torch.Tensor):
            detached = loss.detach()
            norms.insert(0, (detached if detached.dim() == 0 else detached.mean()).to(self._norm_type))
        return Seen(
            loss=None if loss is None or isinstance(loss, torch.Tensor) else float(loss),
            lr=self._learning_rates(),
            rows=rows,
            local_rows=local_rows,
            has_loss=has_loss,
            vector=Readback(_pack(norms)) if norms else None,
        )

    def _learning_rates(self) -> tuple[float, ...]:
        rates = []
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                rate = group["lr"]
                on_device = isinstance(rate, torch.Tensor) and rate.device.type != "cpu"
                rates.append(float("nan") if on_device else float(rate))  # reading a device would be a sync
        return tuple(rates)

    def close(self) -> None:
        """Takes every hook out; the model and the optimizers are as before."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if self._local is not None:
            self._local.disarm()


def _pack(values: list[torch.Tensor]) -> torch.Tensor:
    device = values[-1].device  # a loss on the CPU beside a model on a device travels with the model's norms
    together = torch.stack([v if v.device == device else v.to(device, non_blocking=True) for v in values])
    return together.to(torch.float32)
