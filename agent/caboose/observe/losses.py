"""The loss of a step, taken where `backward()` is called on it: for loops that do not pass their loss.

Design
------
`Tensor.backward` calls `torch.autograd.backward` by its name in the module, so replacing that one function sees
every backward pass. The scalar it starts from is the loss of a micro-batch; a backward inside a backward (activation
checkpointing) does not count. Values stay on their device.

Where several models are trained in turn (a GAN, an actor and its critic), a loss belongs to the next optimizer that
steps and that its graph reaches (`loss_owners`): `settle` takes it. A loss that was taken still counts for another one
that it reaches and that has no loss of its own, as where one loss trains an encoder and a decoder. Losses from several
places of the code are parts of one objective and are added (a discriminator's loss of real and of fake data); those
from one place are micro-batches, and their mean counts. Until the second optimizer is made nothing of this is done:
losses before a step of an optimizer that is not watched are set aside.

A loss is often scaled before `backward`:

* by a `GradScaler`: its `scale` is replaced too, and its input is taken instead of its output;
* by the number of micro-batches or of tokens: `loss_scale` reads that from the loss's graph;
* by a DeepSpeed engine, whose `backward` is replaced on its class: it divides by its number of micro-batches.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from caboose.guard import Protect
from caboose.observe.loss_owners import LossOwners
from caboose.observe.loss_scale import UNSCALED, Scale, StepLoss, mean, scale_of
from caboose.observe.patches import Patches
from caboose.observe.sites import Site, site_of
from caboose.tensors.engines import ENGINE_MODULE
from caboose.tensors.readable import whole

MAX_BOUNDARIES = 1
"""Steps for which a loss waits for its optimizer."""
MAX_KEPT = 4096
"""Micro-batches kept of one step: the bound for a loop that never steps its optimizer."""


@dataclass(slots=True, eq=False)
class MicroBatch:
    """One backward pass: the loss it started from, and what it had been scaled by."""

    loss: torch.Tensor
    scale: Scale = UNSCALED
    site: Site = ()
    """Where in the user's code, where several models are trained."""
    reach: frozenset[int] | None = None
    """The optimizers whose parameters it reaches, by their keys; None where that is not known."""
    is_seen: bool = True
    """Whether its own graph shows that, and not those of earlier losses from that place."""
    takers: set[int] = field(default_factory=set)
    """The parts that it was a loss of."""
    num_boundaries: int = 0
    """Steps that ended since."""


class BackwardLosses:
    """Collects the losses that backward passes start from."""

    def __init__(self, protect: Protect) -> None:
        self._patches = Patches()
        self._seen: deque[MicroBatch] = deque(maxlen=MAX_KEPT)
        self._aside: deque[MicroBatch] = deque(maxlen=MAX_KEPT)
        self._scaled: deque[tuple[weakref.ref[torch.Tensor], MicroBatch]] = deque(maxlen=64)
        self._step_loss = StepLoss()
        self._is_inside = False
        self._is_on = False
        self.scaler: Any = None
        """The GradScaler that scaled a loss last."""
        self.owners: LossOwners | None = None
        """Set where several models are trained."""
        self.protect_with(protect)

    def protect_with(self, protect: Protect) -> None:
        """From now on this guard handles failures."""
        self._note_backward = protect("loss", self._began)
        self._note_scaled = protect("loss", self._were_scaled)
        self._note_engine = protect("loss", self._engine_began)

    def start(self) -> None:
        """Replaces the functions."""
        self._is_on = True
        self._patches.put(torch.autograd, "backward", self._watch_backward)
        self.watch_scalers()
        self.watch_engines()

    def watch_engines(self) -> None:
        """Wraps `backward` of DeepSpeed's engines, if the program has imported them by now."""
        kind = getattr(sys.modules.get(ENGINE_MODULE), "DeepSpeedEngine", None)
        if kind is not None and not self._patches.has(kind, "backward"):
            self._patches.put(kind, "backward", self._watch_engine_backward)

    def watch_scalers(self) -> None:
        """Wraps the scalers that exist by now; some define their own `scale` and are imported late."""
        for scaler in _classes(torch.amp.GradScaler):
            if "scale" in vars(scaler) and not self._patches.has(scaler, "scale"):
                self._patches.put(scaler, "scale", self._watch_scale)

    def stop(self) -> None:
        """Restores torch's functions."""
        self._is_on = False
        self._patches.undo()
        self.scaler = None
        self._seen.clear()
        self._aside.clear()
        self._scaled.clear()

    @property
    def has_any(self) -> bool:
        """Whether there was a backward pass that no step was reported for."""
        return bool(self._seen or self._aside)

    def set_aside(self) -> None:
        """Another optimizer has stepped: the losses so far were its own, unless no others come before the next step."""
        self._aside.extend(self._seen)
        self._seen.clear()

    def take_mean(self) -> torch.Tensor | None:
        """The mean loss of the micro-batches since the last call; None if there was no backward pass."""
        if len(self._seen) == 1 and not self._scaled and not self._aside and not self._step_loss.may_rescale:
            one = self._seen.popleft()
            return one.loss if one.scale is UNSCALED else self._average([one])
        return self._average(self._take())

    def mean_so_far(self) -> torch.Tensor | None:
        """As `take_mean`, and the losses stay."""
        return self._average(list(self._seen))

    def _average(self, seen: list[MicroBatch]) -> torch.Tensor | None:
        return self._step_loss.of([one.loss for one in seen], [one.scale for one in seen])

    def take_sum(self) -> torch.Tensor | None:
        """What the step minimised: the sum of the losses given to backward, without a scaler's scale."""
        seen = self._take()
        average = mean([one.loss for one in seen])
        return None if average is None else average * len(seen)

    def settle(self, part: int, optimizers: frozenset[int]) -> tuple[torch.Tensor | None, bool]:
        """An optimizer of this part has stepped: the loss that this step minimised, and whether it is of it alone."""
        reaching = [one for one in self._seen if one.reach is None or not optimizers.isdisjoint(one.reach)]
        if part < 0 and not reaching:  # of an optimizer that is not watched
            reaching = self._misplaced()
        chosen = [one for one in reaching if not one.takers]
        is_own = bool(chosen)
        if not chosen:
            chosen = [one for one in reaching if part not in one.takers and one.reach is not None]
        for one in chosen:
            one.takers.add(part)
        self._scaled.clear()
        return _objective(chosen), is_own

    def _misplaced(self) -> list[MicroBatch]:
        """An optimizer stepped that no loss was for: those of places that were taken to be for others alone."""
        found = [one for one in self._seen if not one.is_seen and not one.takers]
        for one in found:
            one.reach = None
            if self.owners is not None:
                self.owners.unlearn(one.site)
        return found

    def end_step(self) -> None:
        """A step has ended: drops losses that were taken, and those that no optimizer came for."""
        for one in self._seen:
            one.num_boundaries += 1
        left = [one for one in self._seen if not one.takers and one.num_boundaries <= MAX_BOUNDARIES]
        self._seen.clear()
        self._seen.extend(left)

    def _take(self) -> list[MicroBatch]:
        seen = list(self._seen or self._aside)
        self._seen.clear()
        self._aside.clear()
        self._scaled.clear()
        return seen

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or not self._is_on or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self._note_backward(args[0] if args else kwargs.get("tensors"))
            self._is_inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_inside = False

        return backward

    def _watch_engine_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or not self._is_on or torch.compiler.is_compiling():
                return original(engine, loss, *args, **kwargs)
            self._note_engine(engine, loss, kwargs.get("scale_wrt_gas", True))
            self._is_inside = True
            try:
                return original(engine, loss, *args, **kwargs)
            finally:
                self._is_inside = False

        return backward

    def _watch_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self._is_on and scaled is not outputs and not torch.compiler.is_compiling():
                self.scaler = scaler
                self._note_scaled(outputs, scaled)
            return scaled

        return scale

    def _began(self, roots: Any) -> None:
        if type(roots) is torch.Tensor and not self._scaled and self.owners is None:
            single = _micro_batch(roots)
            if single is not None:
                self._seen.append(single)
            return
        parts = []
        listed = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        for root in listed:
            part = self._unscaled(root) or _micro_batch(root)
            if part is None:
                return  # a pipeline's stage, or a vector-Jacobian product: there is no loss here
            parts.append(part)
        if not parts:
            return
        one = parts[0]
        if len(parts) > 1:
            one = MicroBatch(torch.stack([p.loss for p in parts]).sum(), one.scale)
        if self.owners is not None:
            one.site = site_of(sys._getframe(1))
            one.reach, one.is_seen = self.owners.reach(listed, one.site)
        self._seen.append(one)

    def _engine_began(self, engine: Any, loss: Any, is_divided: bool | None) -> None:
        one = _micro_batch(loss)
        if one is None:
            return
        if is_divided is not False:  # what the engine minimises is the sum of these
            number = max(1, int(engine.gradient_accumulation_steps()))
            one = MicroBatch(one.loss / number, Scale((float(number),)))
        self._seen.append(one)

    def _were_scaled(self, before: Any, after: Any) -> None:
        if isinstance(before, torch.Tensor):
            before, after = [before], [after]
        if not isinstance(before, list | tuple):
            return
        for loss, scaled in zip(before, after, strict=True):
            plain = _micro_batch(loss)
            if plain is not None:
                self._scaled.append((weakref.ref(scaled), plain))

    def _unscaled(self, root: Any) -> MicroBatch | None:
        for reference, plain in self._scaled:
            if reference() is root:
                return plain
        # A scaled loss that was then divided, or added to: the scaler's last input is the nearest to it.
        return self._scaled[-1][1] if self._scaled else None


def _micro_batch(loss: Any) -> MicroBatch | None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return None
    value = whole(loss)
    return None if value is None else MicroBatch(value.reshape(()), scale_of(loss))


def _objective(losses: list[MicroBatch]) -> torch.Tensor | None:
    """The sum over the places of the mean of each place's micro-batches, without what these were scaled by."""
    count = len(losses)
    if count > 1 and all(one.scale.is_divided_by(count) for one in losses):
        return _unscaled_mean(losses)
    by_site: dict[Site, list[MicroBatch]] = {}
    for one in losses:
        by_site.setdefault(one.site, []).append(one)
    total: torch.Tensor | None = None
    for of_site in by_site.values():
        average = _unscaled_mean(of_site)
        if average is not None:
            total = average if total is None else total + average.to(total.device, non_blocking=True)
    return total


def _unscaled_mean(losses: list[MicroBatch]) -> torch.Tensor | None:
    return StepLoss().of([one.loss for one in losses], [one.scale for one in losses])


def _classes(root: type[Any]) -> Iterator[type[Any]]:
    yield root
    derived: type[Any]
    for derived in root.__subclasses__():
        yield from _classes(derived)
