"""gradient_flow: whether every parameter that should learn gets a gradient, and is in an optimizer.

Design
------
A parameter without a gradient is one of three: it took part in the forward and its gradient was cut off (a detach, a
no_grad), which is an error; it gets one on other batches (an expert that no sample of the first one chose); or it
takes part in no forward (a pooler that this loss does not need), which does no harm in one process. DDP waits for the
gradients of the latter two forever, unless it is set to find unused parameters. Whether one took part is seen in the
functions that get the parameter; for a sharded model, whose parameters are replaced during the forward, in the modules
that are called.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from caboose.checklist.flight import Flight, number
from caboose.checklist.verdict import CheckResult, failed, passed, warned
from caboose.trials.orientation import GRADIENT_NORM

ASKS = "Does every layer get a gradient?"
ASKED = frozenset({"__get__", "size", "dim", "numel", "is_floating_point", "is_complex", "stride", "get_device"})
"""Functions that read a tensor's properties without its numbers."""


def run(flight: Flight) -> CheckResult:
    """Checks the gradients of the first batch, and the optimizers' parameters."""
    looks = flight.inspection.gradients
    by = {
        verdict: [look.name for look in looks if look.verdict == verdict]
        for verdict in {look.verdict for look in looks}
    }
    num_frozen = len(by.get("frozen", ()))
    frozen = f"; {num_frozen} frozen" if num_frozen else ""
    num_fine = sum(len(by.get(verdict, ())) for verdict in ("ok", "large", "small"))
    measured = f"{num_fine} of {len(looks) - num_frozen}"
    if bad := by.get("not finite"):
        return failed(
            measured,
            f"{_names(bad)} have NaN or infinite gradients{frozen}",
            "look for log, sqrt or a division of zero, and for overflow in half precision",
        )
    apart = _apart(flight, by["disconnected"]) if "disconnected" in by else None
    if apart is not None and apart.cut:
        return failed(
            measured,
            f"{_names(apart.cut)} get no gradient, though forward uses them: the loss does not depend on them{frozen}",
            "remove a detach() or no_grad(), or freeze them with requires_grad_(False)",
        )
    if apart is not None and apart.idle and flight.trial.needs_all_gradients:
        return failed(
            measured,
            f"{_names(apart.idle)} get no gradient on some batches, and DDP would wait for them{frozen}",
            "pass find_unused_parameters=True to DDP, use them in forward, or freeze them with requires_grad_(False)",
        )
    if outside := _outside(flight):
        return failed(
            measured,
            f"{_names(outside)} are trained, but in no optimizer{frozen}",
            "make the optimizer after the model is complete, from model.parameters()",
        )
    if apart is not None and apart.resting:
        return warned(
            measured,
            f"{_names(apart.resting)} get a gradient on some batches only{frozen}",
            "fine for experts that few samples choose; under DDP, find_unused_parameters=True",
        )
    if apart is not None:
        return warned(
            measured,
            f"{_names(apart.unused)} are not used in forward and get no gradient{frozen}",
            "use them, remove them, or freeze them with requires_grad_(False)",
        )
    if zero := by.get("zero"):
        return warned(
            measured,
            f"{_names(zero)} get a gradient of exactly zero{frozen}",
            "look for dead units before or behind them, and for weights that are all zero",
        )
    if faint := by.get("vanishing"):
        return warned(
            measured,
            f"{_names(faint)} get next to no gradient{frozen}",
            "use residual connections, normalisation, or He initialisation",
        )
    if wild := by.get("exploding"):
        return warned(
            measured,
            f"{_names(wild)} get gradients far above those of the other layers{frozen}",
            "normalise before them, or clip the gradients",
        )
    if findings := flight.inspection.findings:
        return warned(measured, f"{findings[0]}{frozen}", findings[0].fix)
    sizes = [look.rms for look in looks if look.verdict in ("ok", "large", "small")]
    return passed(
        measured,
        f"root mean square {number(min(sizes))} to {number(max(sizes))}; norm {number(flight.inspection.total_norm)} "
        f"in all ({GRADIENT_NORM[0]:g} to {GRADIENT_NORM[1]:g} is usual){frozen}"
        if sizes
        else f"nothing is trained{frozen}",
    )


@dataclass(frozen=True, slots=True)
class _Apart:
    """The parameters without a gradient on the first batch, by name."""

    cut: list[str]
    resting: list[str]
    """They get one on another batch."""
    unused: list[str]

    @property
    def idle(self) -> list[str]:
        """Those for which DDP would wait in vain."""
        return [*self.resting, *self.unused]


def _apart(flight: Flight, names: list[str]) -> _Apart:
    trial = flight.trial
    looked = zip(flight.inspection.gradients, trial.model.parameters(), strict=True)
    parameters = {look.name: parameter for look, parameter in looked if look.name in names}
    trial.train()
    used = _used(flight, list(parameters.values()))
    gets = {id(p): False for p in parameters.values()}
    for batch in flight.batches[1:]:
        trial.backward(batch)
        for parameter in parameters.values():
            gets[id(parameter)] |= parameter.grad is not None
    flags = [[float(gets[id(p)]), float(id(p) in used)] for p in parameters.values()]
    over_ranks = trial.ranks.total(torch.tensor(flags, dtype=torch.float64)).tolist()
    resting = [name for name, (gets_one, _) in zip(parameters, over_ranks, strict=True) if gets_one]
    cut = [name for name, (gets_one, is_used) in zip(parameters, over_ranks, strict=True) if is_used and not gets_one]
    return _Apart(cut, resting, [name for name in parameters if name not in cut and name not in resting])


def _used(flight: Flight, parameters: list[torch.nn.Parameter]) -> set[int]:
    """Which of them take part in the forward of the first batch."""
    trial = flight.trial
    wanted = {id(p) for p in parameters}
    if not trial.is_sharded:
        with torch.no_grad(), _Uses(wanted) as uses:
            trial.loss(flight.batch)
        return set(uses.found)
    owned = {id(module): [id(p) for p in module.parameters(recurse=False)] for module in trial.model.modules()}
    called: set[int] = set()
    handle = register_module_forward_pre_hook(lambda module, _args: called.update(owned.get(id(module), ())))
    try:
        with torch.no_grad():
            trial.loss(flight.batch)
    finally:
        handle.remove()
    return called & wanted


class _Uses(TorchFunctionMode):
    """Records which of some tensors are used by a function; reading a shape or a type is no use."""

    def __init__(self, wanted: set[int]) -> None:
        self.wanted, self.found = wanted, set[int]()
        super().__init__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in ASKED:
            self._see([*args, *kwargs.values()])
        return func(*args, **kwargs)

    def _see(self, members: Iterable[Any], depth: int = 0) -> None:
        for member in members:
            if id(member) in self.wanted:
                self.found.add(id(member))
            elif isinstance(member, list | tuple) and depth < 2:  # as the weights of recurrent layers
                self._see(member, depth + 1)


def _outside(flight: Flight) -> list[str]:
    trial = flight.trial
    if not trial.optimizers:
        return []
    held = {id(p) for optimizer in trial.optimizers for group in optimizer.param_groups for p in group["params"]}
    named = zip(flight.inspection.gradients, trial.model.parameters(), strict=True)
    return [look.name for look, parameter in named if parameter.requires_grad and id(parameter) not in held]


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
