"""Skips an update whose gradient is not finite, or is an outlier. Needs no command and no daemon.

Design
------
All ranks must skip the same steps without communicating. So the decision depends on one number that is equal on them
bit for bit: the total norm that `clip_grad_norm_` computed. It is taken from the clipper (see `clipping`), and a hook
before the optimizer's step reads it. That is one host sync per step, which is why this is off by default. A norm that
is not complete on this rank would take a collective to complete: then this switches itself off, on all ranks.

It has its own guard: if the rest of the agent fails on one rank and is switched off there, that rank still skips what
the others skip.

A step is skipped by setting every `.grad` to None: no optimizer of torch touches a parameter without a gradient, decays
its weight, or counts the step for it.

`outlier` compares with the norms of the last `WINDOW` steps that were taken. After `MAX_IN_ROW` skipped steps in a row
the norms have reached a new level: they are cleared and collected again. Norms that are not finite are always skipped.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from caboose.guard import Guard
from caboose.observe.clipping import ClippingObserver
from caboose.settings.options import SkipMode

logger = logging.getLogger("caboose")

WINDOW = 128
MIN_NORMS = 32
SIGMAS = 6.0
MIN_RATIO = 2.0
MAX_IN_ROW = 3
PATIENCE = 3
"""Steps without a clipper's norm before this switches itself off."""


class NormGate:
    """Decides from the norms alone, so that equal norms give equal decisions."""

    def __init__(self, mode: SkipMode) -> None:
        self._mode = mode
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._num_in_row = 0

    def objection(self, norm: float) -> str:
        """Why a step with this norm is skipped, or nothing: then the norm is recorded."""
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        if self._mode == "nonfinite":
            return ""
        reason = self._outlier(norm)
        if reason:
            self._num_in_row += 1
            if self._num_in_row <= MAX_IN_ROW:
                return reason
            self._norms.clear()
        self._num_in_row = 0
        self._norms.append(norm)
        return ""

    def _outlier(self, norm: float) -> str:
        if len(self._norms) < MIN_NORMS:
            return ""
        median = _median(self._norms)
        if norm <= MIN_RATIO * median:  # the usual case, decided without computing the scatter
            return ""
        sigma = 1.4826 * _median([abs(each - median) for each in self._norms])
        if norm <= median + SIGMAS * sigma:
            return ""
        return f"the gradient's norm {norm:.4g} is far from the {median:.4g} of the last {len(self._norms)} steps"


def _median(values: Sequence[float] | deque[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


class StepSkipper:
    """Observes the clipper, and acts before each optimizer's step."""

    def __init__(
        self,
        mode: SkipMode,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        scaler: Any = None,
    ) -> None:
        self._mode = mode
        self._optimizers = list(optimizers)
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._number_of = {
            id(p): n
            for n, optimizer in enumerate(optimizers)
            for group in optimizer.param_groups
            for p in group["params"]
        }
        self._gates = [NormGate(mode) for _ in optimizers]
        self._totals: dict[int, dict[int, torch.Tensor]] = {}
        """By optimizer, and by the first parameter that was clipped.

        A loop that clips and skips the step clips the same parameters again; the first norm is not the next step's.
        """
        self._num_without = 0
        self.num_skipped = 0
        self.last_reason = ""
        self.why_off = ""
        """Why this is off, if it is."""
        self.guard = Guard(on_trip=lambda: self._switch_off("it failed too often"))
        """Catches failures here, and times them."""
        self._clipping = ClippingObserver(frozenset(self._number_of), lambda _: None, self.guard.protect)
        if self._clipping.is_blind:
            self._clipping.close()
            raise ValueError(
                f"Rollback(skip_step={mode!r}): the clippers of this torch cannot be watched; leave it out"
            )
        self._clipping.on_total = self._see_total
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self.guard.protect("skip_step", self._before_step(number)))
            for number, optimizer in enumerate(optimizers)
        ]

    def _see_total(self, parameters: Sequence[torch.Tensor], total: torch.Tensor | None) -> None:
        numbers = sorted({self._number_of[id(p)] for p in parameters if id(p) in self._number_of})
        if numbers and total is None:
            self._switch_off("the norm that the clipper computed is not complete on this rank")
        elif self._mode == "outlier" and any(self._is_scaled(self._optimizers[number]) for number in numbers):
            self._switch_off("gradients are clipped with the scaler's scale in them: unscale_ them before clipping")
        elif total is not None:
            for number in numbers:
                self._totals.setdefault(number, {})[id(parameters[0])] = total

    def _is_scaled(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._scaler is None:
            return False
        return bool(self._scaler._per_optimizer_states[id(optimizer)]["stage"].name == "READY")

    def _before_step(self, number: int) -> Callable[..., None]:
        gate = self._gates[number]

        def decide(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            totals = self._totals.pop(number, None)
            if self.why_off:
                return
            if totals is None:
                self._miss(optimizer, args, kwargs)
                return
            self._num_without = 0
            norm = math.hypot(*(float(total) for total in totals.values()))
            reason = gate.objection(norm)
            if not reason:
                return
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self.num_skipped += 1
            self.last_reason = reason
            logger.warning("caboose: update skipped (%d so far): %s", self.num_skipped, reason)

        return decide

    def _miss(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        own = 1 if args and args[0] is optimizer else 0
        if len(args) > own or kwargs.get("closure") is not None:
            self._switch_off("gradients are made inside the optimizer's step, by a closure")
            return
        self._num_without += 1
        if self._num_without >= PATIENCE:
            self._switch_off(f"{PATIENCE} steps without torch.nn.utils.clip_grad_norm_, whose norm decides")

    def end_step(self) -> None:
        """The boundary: a norm that no step used (a scaler skipped it) is not the next step's."""
        self._totals.clear()
        if self.why_off:  # now, since torch raises if a hook is removed while it calls them
            self.close()

    def _switch_off(self, reason: str) -> None:
        if not self.why_off:
            self.why_off = reason
            logger.warning("caboose: skip_step=%r is off: %s", self._mode, reason)
        self._clipping.close()

    def close(self) -> None:
        """Removes the hooks."""
        self._clipping.close()
        self._totals.clear()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
