"""The layer table: one row per parameter tensor, in the order the model lists them."""

from collections.abc import Sequence

import torch

from caboose.scalars import plain
from caboose_wire import Group, Layer
from caboose_wire.messages import MAX_LAYERS, Placement

WRAPPER_PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


class LayerTable:
    """Rows for Hello, and the row of each parameter."""

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        owners = _owners(model)
        named = [(_plain(name), p) for name, p in model.named_parameters()]
        known = {id(p) for _, p in named}
        for o, optimizer in enumerate(optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for i, p in enumerate(group["params"]):
                    if id(p) not in known:
                        known.add(id(p))
                        named.append((f"optimizer{o}.group{g}.{i}", p))
        self.blind: dict[str, str] = {}
        if len(named) > MAX_LAYERS:
            self.blind["layers"] = f"{len(named)} parameters, the first {MAX_LAYERS} are watched"
            named = named[:MAX_LAYERS]
        self.parameters = [p for _, p in named]
        self.index = {id(p): row for row, p in enumerate(self.parameters)}
        self.layers = tuple(
            Layer(
                name=name[-256:],
                numel=p.numel(),
                kind=owners.get(id(p), ""),
                placement=placement(p),
                trainable=p.requires_grad,
            )
            for name, p in named
        )
        num_unknown = sum(layer.placement == "unknown" for layer in self.layers)
        if num_unknown:
            self.blind["sharded_gradients"] = f"{num_unknown} parameters lie across ranks in a way not understood"

    def __len__(self) -> int:
        return len(self.layers)


def placement(parameter: torch.Tensor) -> Placement:
    """How a parameter lies across ranks: a plain tensor is whole on every rank, anything else is not understood."""
    plain = type(parameter) in (torch.nn.Parameter, torch.Tensor) and not hasattr(parameter, "_is_flat_param")
    return "replicated" if plain else "unknown"


def _plain(name: str) -> str:
    """A parameter's name as the user wrote it, without what wrappers put in front."""
    for prefix in WRAPPER_PREFIXES:
        while name.startswith(prefix):
            name = name.removeprefix(prefix)
    return name


def _owners(model: torch.nn.Module) -> dict[int, str]:
    return {id(p): type(module).__name__ for module in model.modules() for p in module.parameters(recurse=False)}


def group_table(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[Group, ...]:
    """Every parameter group with its plain settings, in the order in which LRs are reported."""
    rows = []
    for o, optimizer in enumerate(optimizers):
        for g, group in enumerate(optimizer.param_groups):
            name = str(group.get("name", g))
            settings = {str(k): plain(v) for k, v in group.items() if k != "params"}
            rows.append(
                Group(
                    name=(f"{o}.{name}" if len(optimizers) > 1 else name)[:256],
                    optimizer=type(optimizer).__name__[:256],
                    settings=dict(list(settings.items())[:256]),
                )
            )
    return tuple(rows)
