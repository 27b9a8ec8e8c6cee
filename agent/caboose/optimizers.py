"""The optimizers' own settings and the gradient scaler's state, read without asking a device."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from caboose.pieces import Pieces
from caboose_wire.fields import MAX_GROUPS

SETTINGS = ("momentum", "weight_decay", "betas")


def told_groups(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[dict[str, Any]]:
    """The parameter groups that are reported: as many as a message may have."""
    return islice((group for optimizer in optimizers for group in optimizer.param_groups), MAX_GROUPS)


class OptimizerState:
    """Reads what schedules change, and what a scaler does."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], scaler: Any) -> None:
        self._optimizers = optimizers
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._last: dict[str, tuple[float, ...]] = {}
        self._is_scaled = False
        self._num_skipped = 0
        self._rates: tuple[float, ...] | None = None

    def note_learning_rates(self) -> None:
        """An optimizer's step begins: these are the rates it is taken with, whatever a scheduler does next."""
        if self._rates is None:
            self._rates = self._learning_rates()

    def learning_rates(self) -> tuple[float, ...]:
        """Of every group, as the step was taken with; those in force now if there was no step."""
        rates, self._rates = self._rates, None
        return self._learning_rates() if rates is None else rates

    def _learning_rates(self) -> tuple[float, ...]:
        """Empty where no group has one that is a number, as with an optimizer that finds its own."""
        rates = tuple(_number(group.get("lr")) for group in told_groups(self._optimizers))
        return () if all(map(math.isnan, rates)) else rates

    def settings(self, *, is_wanted: bool) -> dict[str, tuple[float, ...]]:
        """Momentum, betas and weight decay of every group, if they changed since the last call or are wanted anyway."""
        now: dict[str, tuple[float, ...]] = {}
        for group in told_groups(self._optimizers):
            for name in SETTINGS:
                value = group.get(name)
                if isinstance(value, tuple | list):
                    for i, part in enumerate(value):
                        now[f"{name}{i}"] = (*now.get(f"{name}{i}", ()), _number(part))
                elif value is not None:
                    now[name] = (*now.get(name, ()), _number(value))
        has_changed, self._last = now != self._last, now
        return now if is_wanted or has_changed else {}

    def note_scaling(self) -> None:
        """Gradients are about to be read: remembers whether the scaler has taken its scale out of them yet."""
        if self._scaler is None:
            return
        for optimizer in self._optimizers:
            if getattr(optimizer, "grad_scale", None) is not None:
                self._is_scaled = True  # a fused optimizer takes the scale out itself, in its step
                return
            stage = self._scaler._per_optimizer_states[id(optimizer)]["stage"]
            if stage.name == "READY":
                self._is_scaled = True

    def take_scaling(self) -> bool:
        """Whether gradients were read with the scale still in them."""
        is_scaled, self._is_scaled = self._is_scaled, False
        return is_scaled

    def add_scale(self, pieces: Pieces) -> None:
        """The scale, as it lies on its device."""
        scale = getattr(self._scaler, "_scale", None)
        if isinstance(scale, torch.Tensor):
            pieces.add_scalar("scale", scale)

    def count_skipped(self, *, did_step: bool, had_forward: bool) -> int | None:
        """Steps the scaler has skipped: a forward, and no step of any optimizer. None without a scaler."""
        if self._scaler is None:
            return None
        self._num_skipped += had_forward and not did_step
        return self._num_skipped


def _number(value: Any) -> float:
    """As a float; NaN for what is no number, and for a tensor on a device: to read that would be to wait for it."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # None, a text, a tensor of several elements
        return math.nan
