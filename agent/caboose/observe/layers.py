"""The layer table: one row per parameter tensor, in the model's order; its division among ranks, and its changes.

Design
------
After the all-reduce every rank of a replicated model has the same gradients, so one rank per layer is enough. The table
is cut into as many contiguous parts of about equal size as there are ranks, and in each step each rank takes another
part. A report names its part, so the daemon needs no knowledge of the division, and a rank that is gone leaves a gap
that moves instead of a layer that is never seen.

Optimizers may get other parameters during a run: layers unfrozen, a head replaced. `ParameterChanges` checks that once
a step: the number of parameters of each group and the last of them; on sampled steps, all of them.
"""

import itertools
from collections.abc import Sequence, Set

import msgspec
import torch

from caboose.observe.parts import TrainedPart, parameters_by_part
from caboose.tensors.engines import num_elements
from caboose.tensors.placement import Placements
from caboose.tensors.scalars import plain
from caboose_wire import Group, Layer
from caboose_wire.fields import MAX_GROUPS, MAX_LAYERS

MAX_PARTS = 1024
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


class LayerTable:
    """The rows for the Hello, and the row of each parameter."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        world: int,
        parts: Sequence[TrainedPart] = (),
    ) -> None:
        placements = Placements(model, world)
        owners = _owners(model)
        groups = _groups_of(optimizers)
        named: list[tuple[str, torch.Tensor]]
        if parts:
            named = [(f"{part}.{plain_name(name)}"[:256], p) for part, name, p in parameters_by_part(parts)]
        else:
            named = [(plain_name(name), p) for name, p in model.named_parameters()]
            named += _outside(named, optimizers)
        self.blind: dict[str, str] = {}
        if len(named) > MAX_LAYERS:
            self.blind["layers"] = f"{len(named)} parameters, the first {MAX_LAYERS} are watched"
            named = named[:MAX_LAYERS]
        num_groups = sum(len(optimizer.param_groups) for optimizer in optimizers)
        if num_groups > MAX_GROUPS:
            self.blind["groups"] = f"{num_groups} parameter groups, the first {MAX_GROUPS} are reported"
        self.parameters = [p for _, p in named]
        self.index = {id(p): row for row, p in enumerate(self.parameters)}
        rows = []
        for name, p in named:
            lie = placements.of(p)
            rows.append(
                Layer(
                    name=name[-256:],
                    numel=lie.numel,
                    kind=owners.get(id(p), "")[:256],
                    placement=lie.placement,
                    trainable=p.requires_grad,
                    replicas=lie.replicas,
                    held=id(p) in groups,
                    group=groups.get(id(p), -1),
                )
            )
        self.layers = tuple(rows)
        self.common = [row for row, p in enumerate(self.parameters) if not placements.is_ignored(p)]
        """The rows that DDP does not ignore."""
        self.is_replicated = all(self.layers[row].placement == "replicated" for row in self.common)
        self._partial: set[int] = set()
        self._why_hidden = placements.why_hidden
        self._state_blind_gradients()

    def note_partial(self, rows: Set[int]) -> bool:
        """The ranks' parts of these layers' gradients do not give its norm; returns whether that is new."""
        if rows <= self._partial:
            return False
        self._partial |= rows
        self.layers = tuple(
            msgspec.structs.replace(layer, placement="unknown", replicas=1) if row in rows else layer
            for row, layer in enumerate(self.layers)
        )
        self._state_blind_gradients()
        return True

    def note_untrained(self) -> bool:
        """A backward has ended: what no optimizer holds and has no gradient is a copy, such as a teacher or an average.

        It is not trained, though it takes gradients. Returns whether there are any.
        """
        rows = {
            row
            for row, (layer, parameter) in enumerate(zip(self.layers, self.parameters, strict=True))
            if layer.trainable and not layer.held and parameter.grad is None
        }
        self.layers = tuple(
            msgspec.structs.replace(layer, trainable=False) if row in rows else layer
            for row, layer in enumerate(self.layers)
        )
        return bool(rows)

    def held(self) -> set[int]:
        """The identities of the parameters that an optimizer holds."""
        return {id(p) for layer, p in zip(self.layers, self.parameters, strict=True) if layer.held}

    def _state_blind_gradients(self) -> None:
        if self._why_hidden:  # of every layer; an engine computes the norm of them all
            self.blind["gradients"] = self._why_hidden
            self.blind["weights"] = "no optimizer updates them where they can be read; see gradients"
            return
        updated = {
            row for row, layer in enumerate(self.layers) if layer.held
        }  # not an average of the weights, a teacher
        ignored = updated.difference(self.common)
        unknown = {row for row in updated if self.layers[row].placement == "unknown"}
        num_ignored, num_partial, num_unknown = len(ignored), len(self._partial), len(unknown - ignored - self._partial)
        reasons = []
        if num_ignored:
            reasons.append(
                f"{num_ignored} parameters are ignored by DDP or outside of it, so that each rank has its own"
            )
        if num_unknown:
            reasons.append(f"{num_unknown} parameters are placed across ranks in an unknown way")
        if num_partial:
            reasons.append(f"the gradients of {num_partial} parameters are sums that the optimizer completes (Partial)")
        if reasons:
            self.blind["gradients"] = "; ".join(reasons) + ": the gradient norm is without them"

    def __len__(self) -> int:
        return len(self.layers)


def plain_name(name: str) -> str:
    """A parameter's or module's name as the user wrote it, without the parts that wrappers add."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "").removesuffix(f".{wrapper[:-1]}")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def _owners(model: torch.nn.Module) -> dict[int, str]:
    return {id(p): type(module).__name__ for module in model.modules() for p in module.parameters(recurse=False)}


def _groups_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, int]:
    """The place of each held parameter's group among all groups, by the parameter's identity."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(p): place for place, group in enumerate(groups) for p in group["params"]}


def _outside(
    named: Sequence[tuple[str, torch.Tensor]], optimizers: Sequence[torch.optim.Optimizer]
) -> list[tuple[str, torch.Tensor]]:
    """Parameters that an optimizer holds and the model does not list, such as those of a loss."""
    known = {id(p) for _, p in named}
    found = []
    for o, optimizer in enumerate(optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for i, p in enumerate(group["params"]):
                if id(p) not in known:
                    known.add(id(p))
                    found.append((f"optimizer{o}.group{g}.{i}", p))
    return found


def group_table(optimizers: Sequence[torch.optim.Optimizer], parts: Sequence[TrainedPart] = ()) -> tuple[Group, ...]:
    """Every parameter group with its plain settings, in the order in which learning rates are reported."""
    rows = []
    if parts:
        owners = [
            (part.name, o if len(part.optimizers) > 1 else None) for part in parts for o in range(len(part.optimizers))
        ]
        prefixes = [f"{name}." if o is None else f"{name}.{o}." for name, o in owners]
    else:
        prefixes = [f"{o}." if len(optimizers) > 1 else "" for o in range(len(optimizers))]
    for prefix, optimizer in zip(prefixes, optimizers, strict=True):
        for g, group in enumerate(optimizer.param_groups):
            name = str(group.get("name", g))
            settings = {str(k): plain(v) for k, v in group.items() if k != "params"}
            rows.append(
                Group(
                    name=f"{prefix}{name}"[:256],
                    optimizer=type(optimizer).__name__[:256],
                    settings=dict(list(settings.items())[:256]),
                    num_parameters=sum(map(num_elements, group["params"])),
                )
            )
    return tuple(rows[:MAX_GROUPS])


def cut(sizes: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Contiguous ranges of about equal total size that cover everything; some may be empty."""
    parts = max(1, min(parts, MAX_PARTS))
    total = sum(sizes)
    bounds = [0]
    running = 0
    for row, size in enumerate(sizes):
        # Close the part once its share is reached, with this row if most of it still belongs there.
        while len(bounds) < parts and running + size / 2 > total * len(bounds) / parts:
            bounds.append(row)
        running += size
    bounds += [len(sizes)] * (parts + 1 - len(bounds))
    return list(itertools.pairwise(bounds))


class Division:
    """Which layers this rank reads in a step."""

    def __init__(self, sizes: Sequence[int], rank: int, world: int, *, is_divided: bool) -> None:
        self._parts = cut(sizes, world) if is_divided else [(0, len(sizes))]
        self._rank = rank

    def part(self, step: int) -> tuple[int, int]:
        """This rank's rows in this step."""
        return self._parts[(self._rank + step) % len(self._parts)]


class ParameterChanges:
    """The parameters that the optimizers held when last checked."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._brief = self._counts()
        self._whole = self._all()

    def have_changed(self, *, is_sampled: bool) -> bool:
        """Whether they changed since the last call."""
        brief = self._counts()
        if brief == self._brief and not is_sampled:
            return False
        whole = self._all()
        has_changed = whole != self._whole
        self._brief, self._whole = brief, whole
        return has_changed

    def _counts(self) -> list[tuple[int, int]]:
        held = [group["params"] for optimizer in self._optimizers for group in optimizer.param_groups]
        return [(len(parameters), id(parameters[-1]) if parameters else 0) for parameters in held]

    def _all(self) -> list[list[tuple[int, bool]]]:
        return [
            [(id(p), p.requires_grad) for p in group["params"]]
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]
