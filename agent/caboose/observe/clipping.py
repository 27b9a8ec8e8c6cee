"""Observes gradient clipping, by wrapping the clippers.

Design
------
torch's clippers are thin wrappers around an inner function that they hold in a closure. That cell is replaced: so a
clipper is seen however it was imported, by name too, and its work, result and errors stay the same. Gradients are
read when a clipper is entered, before it changes them; the total norm that it computed is reused, not computed again.
FSDP's own `clip_grad_norm_` is a method and is wrapped on its class. So is that of a DeepSpeed engine without ZeRO,
which does not pass on the norm that it computes.

The wraps are process-wide: installed by the first observer, removed by the last; each observer handles only its own
parameters. If this torch builds its clippers differently, that is reported as blind.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CellType
from typing import Any

import torch
import torch.nn.utils.clip_grad as clippers

from caboose.guard import Protect
from caboose.tensors.engines import ENGINE_MODULE
from caboose.tensors.placement import own

FSDP_MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"


@dataclass(slots=True)
class Clipped:
    """What the clippers did in one step."""

    total_norms: list[torch.Tensor] = field(default_factory=list)
    """Norms before clipping, as the clippers computed them, still on the device; no parameter is in two of them. Empty
    where one is not known.
    """
    max_norm: float | None = None
    """None if the gradients were not clipped; an engine computes their norm all the same."""


NOT_CLIPPED = Clipped()
"""Of most steps; nothing is added to it."""


class ClipTotals:
    """The total norms that clippers computed in one step.

    Of parameters that are clipped twice the first norm counts, since the second is of gradients that were clipped
    already; unless the first clipping was not used: another forward came after it, and no step in between.
    """

    def __init__(self) -> None:
        self._norms: dict[int, torch.Tensor | None] = {}
        self._first: Sequence[torch.Tensor] = ()
        self._clipping_of: dict[int, int] = {}
        self.num = 0
        """Clippings so far."""
        self._num_used = 0
        self._num_unused = 0

    def add(self, parameters: Sequence[torch.Tensor], norm: torch.Tensor | None) -> None:
        """These parameters are clipped, and this is their norm, if it is known."""
        number, self.num = self.num, self.num + 1
        if number == 0:
            self._first = parameters  # most steps have one clipping: its members matter only if there is a second
            self._norms[0] = norm
            return
        if number == 1:
            self._clipping_of = dict.fromkeys(map(id, self._first), 0)
        ids = [id(parameter) for parameter in parameters]
        earlier = {self._clipping_of[i] for i in ids if i in self._clipping_of}
        if all(self._num_used <= each < self._num_unused for each in earlier):
            for each in earlier:
                self._norms.pop(each, None)
            self._norms[number] = norm
            self._clipping_of.update(dict.fromkeys(ids, number))

    def note_forward(self) -> None:
        """A clipping that no step has used until now may never be used."""
        self._num_unused = self.num

    def note_step(self) -> None:
        """An optimizer uses the clipped gradients."""
        self._num_used = self.num

    def known(self) -> list[torch.Tensor]:
        """All norms, or none if one of them is not known."""
        norms = [norm for norm in self._norms.values() if norm is not None]
        return norms if len(norms) == len(self._norms) else []


class ClippingObserver:
    """Calls its owner before its parameters are clipped, and records the limits."""

    def __init__(
        self,
        owned: frozenset[int],
        before_clip: Callable[[Sequence[torch.Tensor]], None],
        protect: Protect,
    ) -> None:
        self.owned = owned
        self._before_clip = before_clip
        self._seen = Clipped()
        self.totals = ClipTotals()
        self._norm_type = 2.0
        self.on_total: Callable[[Sequence[torch.Tensor], torch.Tensor | None], None] | None = None
        """Called with the parameters and the total norm of each clipping; None where it is spread over ranks."""
        self.norm_clipped = protect("clipping", self._norm_clipped)
        self.total_computed = protect("clipping", self._total_computed)
        self.norm_clips = protect("clipping", self._norm_clips)
        self.value_clips = protect("clipping", self._value_clips)
        self.is_blind = not _watch(self)

    def _total_computed(self, norm_type: Any) -> None:
        self._norm_type = float(norm_type)

    def _norm_clips(self, parameters: Sequence[torch.Tensor], max_norm: Any, total: Any) -> None:
        if self._owns(parameters):
            self._before_clip(parameters)
            self._seen.max_norm = float(max_norm)
            if self.on_total is None:  # with a callback, nothing is kept here
                is_known = self._norm_type == 2.0 and isinstance(total, torch.Tensor)
                self.totals.add(parameters, _whole(total.detach()) if is_known else None)

    def _norm_clipped(self, parameters: Sequence[torch.Tensor], total: Any) -> None:
        if self.on_total is not None and self._owns(parameters):
            self.on_total(parameters, _whole(total.detach()) if isinstance(total, torch.Tensor) else None)

    def _value_clips(self, parameters: Sequence[torch.Tensor], max_value: Any) -> None:
        if self._owns(parameters):
            self._before_clip(parameters)

    def turn(self, *, on: bool) -> None:
        """Whether clippings are seen from now on; called between two steps."""
        for seen in (self.norm_clipped, self.total_computed, self.norm_clips, self.value_clips):
            seen.is_on = on

    def engine_stepped(self, max_norm: float | None, total: torch.Tensor | None) -> None:
        """An engine has clipped its gradients itself, or has only computed their norm."""
        self._seen.max_norm = max_norm
        self.totals.add((), total)

    def _owns(self, parameters: Sequence[torch.Tensor]) -> bool:
        return any(id(parameter) in self.owned for parameter in parameters)

    @property
    def has_seen(self) -> bool:
        """Whether a norm was clipped since `take` was last called."""
        return self._seen.max_norm is not None or self.totals.num > 0

    def take(self) -> Clipped:
        """The clippings since the last call."""
        if not self.has_seen:
            return NOT_CLIPPED
        seen, self._seen = self._seen, Clipped()
        totals, self.totals = self.totals, ClipTotals()
        seen.total_norms = totals.known()
        return seen

    def close(self) -> None:
        """Stops; the wraps are removed with the last observer."""
        _unwatch(self)


def _whole(total: torch.Tensor) -> torch.Tensor | None:
    """A total norm that is complete on this rank; completing a partial one would take a collective."""
    placements = getattr(total, "placements", None)
    if placements is None:
        return total
    return own(total) if all(p.is_replicate() for p in placements) else None


_watching: list[ClippingObserver] = []
_undo: list[Callable[[], None]] = []


def _watch(observer: ClippingObserver) -> bool:
    _watching.append(observer)
    if not _undo:
        _wrap_functions()
    if FSDP_MODULE in sys.modules:
        _wrap_fsdp(sys.modules[FSDP_MODULE].FullyShardedDataParallel)
    if ENGINE_MODULE in sys.modules:
        _wrap_engine(sys.modules[ENGINE_MODULE].DeepSpeedEngine)
    return bool(_undo)


def _unwatch(observer: ClippingObserver) -> None:
    if observer in _watching:
        _watching.remove(observer)
    if not _watching:
        while _undo:
            _undo.pop()()


def _wrap_functions() -> None:
    cells = [
        _inner(getattr(clippers, name, None))
        for name in ("_get_total_norm", "_clip_grads_with_norm_", "clip_grad_value_")
    ]
    if any(cell is None for cell in cells):
        return
    total_cell, norm_cell, value_cell = (cell for cell in cells if cell is not None)
    total_inner, norm_inner, value_inner = total_cell.cell_contents, norm_cell.cell_contents, value_cell.cell_contents

    def total(tensors: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> Any:
        for observer in _watching:
            observer.total_computed(norm_type)
        return total_inner(tensors, norm_type, *args, **kwargs)

    def by_norm(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = _listed(parameters)
        for observer in _watching:
            observer.norm_clips(parameters, max_norm, total_norm)
            observer.norm_clipped(parameters, total_norm)
        return norm_inner(parameters, max_norm, total_norm, *args, **kwargs)

    def by_value(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = _listed(parameters)
        for observer in _watching:
            observer.value_clips(parameters, clip_value)
        return value_inner(parameters, clip_value, *args, **kwargs)

    for cell, inner, wrapped in (
        (total_cell, total_inner, total),
        (norm_cell, norm_inner, by_norm),
        (value_cell, value_inner, by_value),
    ):
        cell.cell_contents = wrapped
        _undo.append(lambda cell=cell, inner=inner: setattr(cell, "cell_contents", inner))  # type: ignore[misc]


def _inner(function: Any) -> CellType | None:
    """The closure cell that holds the clipper's inner function."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index("func")] if "func" in names else None


def _listed(parameters: Any) -> Sequence[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _wrap_fsdp(fsdp: Any) -> None:
    original = fsdp.clip_grad_norm_
    if getattr(original, "caboose_original", None) is not None:
        return

    def clip_grad_norm_(self: Any, max_norm: Any, norm_type: Any = 2.0) -> Any:
        parameters = list(self.parameters())
        for observer in _watching:
            observer.total_computed(norm_type)
            observer.norm_clips(parameters, max_norm, None)
        total = original(self, max_norm, norm_type)
        for observer in _watching:
            observer.norm_clipped(parameters, total)
        return total

    clip_grad_norm_.caboose_original = original  # type: ignore[attr-defined]
    fsdp.clip_grad_norm_ = clip_grad_norm_
    _undo.append(lambda: setattr(fsdp, "clip_grad_norm_", original))


def _wrap_engine(engine: Any) -> None:
    original = getattr(engine, "clip_fp32_gradients", None)
    if original is None or getattr(original, "caboose_original", None) is not None:
        return

    def clip_fp32_gradients(self: Any) -> Any:
        parameters = list(self.module.parameters())
        for observer in _watching:
            observer.norm_clips(parameters, self.gradient_clipping(), None)
        return original(self)

    clip_fp32_gradients.caboose_original = original  # type: ignore[attr-defined]
    engine.clip_fp32_gradients = clip_fp32_gradients
    _undo.append(lambda: setattr(engine, "clip_fp32_gradients", original))
