"""The optimizers' learning rates and the gradient scaler's state, read without waiting for a device."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import is_
from typing import Any

import torch

from caboose.observe.step_vector import StepVector
from caboose_wire.fields import MAX_GROUPS


def reported_groups(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[dict[str, Any]]:
    """The parameter groups that are reported: at most as many as a message may have."""
    return islice((group for optimizer in optimizers for group in optimizer.param_groups), MAX_GROUPS)


class OptimizerState:
    """Reads learning rates and the scaler."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], scaler: Any) -> None:
        self._optimizers = optimizers
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._kept_scale: torch.Tensor | None = None
        self._num_skipped = 0
        self._num_fused_skipped: torch.Tensor | None = None
        self._has_noted_skip = False
        self.noted: tuple[float, ...] | None = None
        """The learning rates of this step, if they were noted."""
        self.read: tuple[float, ...] = ()
        """The learning rates as they were read last ..."""
        self.values: list[Any] = []
        """... from these values of the groups, if all are numbers, which do not change in place."""

    @property
    def has_scaler(self) -> bool:
        """Whether a gradient scaler is in use."""
        return self._scaler is not None

    def note_learning_rates(self) -> None:
        """An optimizer's step begins: records its learning rates, before a scheduler changes them."""
        if self.noted is None:
            self.noted = self._learning_rates()

    def learning_rates(self) -> tuple[float, ...]:
        """The learning rate of every group in the step; the current ones if there was no step."""
        rates, self.noted = self.noted, None
        return self._learning_rates() if rates is None else rates

    def read_again(self) -> None:
        """The learning rates now."""
        self._learning_rates()

    def _learning_rates(self) -> tuple[float, ...]:
        """Empty if no group has a number, as with an optimizer that finds its own."""
        values = [group.get("lr") for optimizer in self._optimizers for group in optimizer.param_groups]
        known = self.values
        if known and len(values) == len(known) and all(map(is_, values, known)):
            return self.read  # the same objects: on most steps no rate has changed
        self.values = values if all(type(value) in (float, int) for value in values) else []
        if len(values) == 1 and type(values[0]) is float and values[0] == values[0]:
            self.read = (values[0],)  # as most programs have it, some at every step
        else:
            self.read = learning_rates(self._optimizers)
        return self.read

    def is_scaled(self, number: int) -> bool:
        """Whether this optimizer's gradients, about to be read, are still multiplied by the scaler's scale.

        If so the scale is copied now: the scaler's `update` changes it in place, before the boundary.
        """
        if self._scaler is None:
            return False
        optimizer = self._optimizers[number]
        # A fused optimizer removes the scale in its step; for any other the scaler does, and records it.
        if getattr(optimizer, "grad_scale", None) is None:
            stage = self._scaler._per_optimizer_states[id(optimizer)]["stage"]
            if stage.name != "READY":
                return False
        self.keep_scale()
        return True

    def keep_scale(self) -> None:
        """Copies the scale of this step's gradients, once."""
        scale = getattr(self._scaler, "_scale", None)
        if self._kept_scale is None and isinstance(scale, torch.Tensor):
            self._kept_scale = scale.clone()

    def note_fused_skip(self, number: int) -> None:
        """A step begins: counts, on the device, one that a fused optimizer will skip."""
        found = getattr(self._optimizers[number], "found_inf", None)
        if self._scaler is not None and isinstance(found, torch.Tensor) and not self._has_noted_skip:
            self._has_noted_skip = True
            self._num_fused_skipped = found if self._num_fused_skipped is None else self._num_fused_skipped + found

    def add_scale(self, pieces: StepVector) -> None:
        """Adds the current scale, the one of the gradients that were read, and the skipped steps, all on the device."""
        kept, self._kept_scale = self._kept_scale, None
        self._has_noted_skip = False
        scale = getattr(self._scaler, "_scale", None)
        if isinstance(scale, torch.Tensor):
            pieces.add_scalar("scale", scale)
            if kept is not None:
                pieces.add_scalar("kept_scale", kept)
            if self._num_fused_skipped is not None:
                pieces.add_scalar("num_fused_skipped", self._num_fused_skipped)

    def count_skipped(self, *, did_step: bool, had_forward: bool) -> int | None:
        """Steps the scaler has skipped: a forward, and no step of any optimizer. None without a scaler.

        A fused optimizer's step is always called; `note_fused_skip` counts those.
        """
        if self._scaler is None:
            return None
        self._num_skipped += had_forward and not did_step
        return self._num_skipped


def learning_rates(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[float, ...]:
    """The current learning rate of every group; empty if no group has a number."""
    rates = tuple(_number(group.get("lr")) for group in reported_groups(optimizers))
    return () if all(map(math.isnan, rates)) else rates


def _number(value: Any) -> float:
    """As a float; NaN for what is not a number, and for a tensor on a device, which would take a wait."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # None, a text, a tensor of several elements
        return math.nan
