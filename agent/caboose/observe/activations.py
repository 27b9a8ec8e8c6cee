"""Activation statistics on sampled steps: every leaf module's output, and functional activations where visible.

Design
------
Nothing is installed between sampled steps. In a sampled step, two process-wide module hooks and a torch function mode
are installed when the model's forward begins and removed when it ends, also when it raises. An interrupt calls no hook;
what it leaves behind is removed at the next forward, boundary or close. Activation checkpointing recomputes in the
backward, after that, so nothing is counted twice. Of several micro-batches only the first is read.

For each output: its extremes over all elements (which also show whether one is not finite), a small even subsample for
the other statistics (see `subsample`), and for ReLU-like units a mask of those that fired, kept over a window of
sampled steps: batch and tokens are subsampled, units never. Of an output that is distributed over ranks, this rank's
part is read (see `readable`).

A teacher or an average of the weights is not the model, and is not read: a module of which no optimizer holds anything,
called without gradients. A frozen part of the model is called with them; in a checkpointed one gradients are off, but
in the module around it too.

A model with compiled parts is not read: hooks would make it compile again, or would be ignored. That is reported. With
`Sampling(compiled=True)` its compiled graphs return the statistics themselves (see `compiled`), and only leaf modules
outside of them get a hook, each its own and only during the forward of a sampled step: torch's process-wide hooks would
be traced. Functional activations outside of its graphs are not read: a function mode makes torch compile again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import msgspec
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from caboose.observe import compiled
from caboose.observe.attention import ATTENTION, AttentionLogits, is_attention, of_softmax
from caboose.observe.forward import trained_modules
from caboose.observe.function_mode import FunctionMode, take_off_the_stack
from caboose.observe.graph_reader import GraphReader
from caboose.observe.graph_taps import by_unit
from caboose.observe.layers import plain_name
from caboose.observe.opaque import outside_graphs
from caboose.observe.routers import Router, Routers, find_routers
from caboose.tensors.readable import own_part
from caboose.tensors.subsample import histogram, zero_fraction
from caboose.tensors.subsample import row as sample_row
from caboose_wire import Module

WINDOW = 8
"""Sampled steps over which a unit must stay silent to be called dead."""
MAX_SITES = 2048
SILENT_KINDS = frozenset({"ReLU", "ReLU6", "relu", "relu_", "relu6", "Threshold", "threshold"})
"""Activations whose output is exactly zero when the unit is silent."""
FLAT_END = 0.9748
"""tanh(2.18): beyond it the derivative is under 5 % of its maximum; a sigmoid s is 2s-1 on the same scale."""
TO_TANH = {"Tanh": (1.0, 0.0), "tanh": (1.0, 0.0), "Sigmoid": (2.0, -1.0), "sigmoid": (2.0, -1.0)}
SKIPPED_KINDS = frozenset({"Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "Flatten"})


class Activations:
    """The outputs of one model's modules, on sampled steps."""

    def __init__(
        self,
        model: torch.nn.Module,
        protect: Callable[[str, Callable[..., Any]], Any],
        held: Set[int] = frozenset(),
        *,
        in_graphs: bool = False,
        name_of: Callable[[str], str] = plain_name,
    ) -> None:
        """`held` are the identities of the parameters that an optimizer holds; none if that is not known.

        `in_graphs`: reads compiled graphs as well.
        """
        trained = {id(module) for module in (trained_modules(model, held) if held else model.modules())}
        self._untrained = {id(module) for module in model.modules()} - trained
        self._names = {id(module): name_of(name) for name, module in model.named_modules()}
        self._sites: dict[Any, int] = {}
        self.modules: list[Module] = []
        for name, module in model.named_modules():
            kind = type(module).__name__
            if not any(True for _ in module.children()) and kind not in SKIPPED_KINDS:
                self._add_site(
                    id(module), Module(name=name_of(name)[-256:], kind=kind[:256], num_units=_num_units(module))
                )
        self._routers, self._attention = Routers(), AttentionLogits()
        protect("routers", self._find_routers)(model)
        self.graphs = GraphReader(model, self, protect) if in_graphs else None
        self._channels_first = any(isinstance(m, torch.nn.Conv1d) for m in model.modules())
        self.has_new_sites = False
        self._stack: list[torch.nn.Module] = []
        self._has_gradients: list[bool] = []
        """Whether gradients were on when each module of the stack was called."""
        self._copy: torch.nn.Module | None = None
        """The teacher or average that is running."""
        self._calls: dict[Any, int] = {}
        self._handles: list[RemovableHandle] = []
        self._mode: FunctionMode | None = None
        self._before = protect("activation hook", self._enter)
        self._after = protect("activation hook", self._leave)
        self._function = protect("functional activation", self._called)
        self._attends = protect("attention", self._attended)
        self._order: list[int] = []
        self._samples: list[torch.Tensor] = []
        self._extremes: list[torch.Tensor] = []
        self._alive: dict[int, torch.Tensor] = {}
        self._num_in_window = 0
        self.num_read = 0
        """Outputs read since attach."""
        self.is_half = False
        """Whether any of them was float16, as under autocast."""

    @property
    def is_armed(self) -> bool:
        """Whether the hooks are installed."""
        return bool(self._handles) or (self.graphs is not None and compiled.switch.reader is self.graphs)

    def arm(self, model: torch.nn.Module) -> None:
        """The forward of a sampled step begins; its outermost module is entered already."""
        self._stack[:], self._has_gradients[:], self._copy = [model], [True], None
        self._calls.clear()
        self.arm_graphs()
        if self.graphs is not None and self.graphs.note_forward():
            leaves = {id(m): m for m in outside_graphs(model) if id(m) in self._sites}
            self._handles = [leaf.register_forward_hook(self._after) for leaf in leaves.values()]
            return
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after),
        ]
        self._mode = FunctionMode(self._function, self._attends)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch gives no types

    def arm_graphs(self) -> None:
        """Compiled graphs that run from now on are read."""
        if self.graphs is not None:
            compiled.switch.reader = self.graphs

    def disarm(self) -> None:
        """The forward has ended, or has raised."""
        if self.graphs is not None and compiled.switch.reader is self.graphs:
            compiled.switch.reader = None
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        mode, self._mode = self._mode, None
        if mode is not None:
            take_off_the_stack(mode)

    def silent_fractions(self) -> dict[int, float]:
        """The share of units without output so far, by row of `modules`. Waits for the device."""
        return {row: 1.0 - float(mask.to(torch.float32).mean()) for row, mask in self._alive.items()}

    def _add_site(self, key: Any, module: Module) -> int:
        row = len(self.modules)
        self._sites[key] = row
        self.modules.append(module)
        return row

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        has_gradients = torch.is_grad_enabled()
        is_begun = not has_gradients and (not self._has_gradients or self._has_gradients[-1])
        if self._copy is None and is_begun and id(module) in self._untrained:
            self._copy = module
        self._stack.append(module)
        self._has_gradients.append(has_gradients)

    def _leave(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._stack and self._stack[-1] is module:
            self._stack.pop()
            self._has_gradients.pop()
        row = self._sites.get(id(module))
        if row is not None and self._copy is None:
            self._see(row, output)
            self._routers.see(row, output)
        if module is self._copy:
            self._copy = None

    def _called(self, name: str, output: Any) -> None:
        if self._copy is not None:
            return
        row = self.row_of_call(self._stack[-1] if self._stack else None, name)
        if row is not None:
            self._see(row, output)

    def _find_routers(self, model: torch.nn.Module) -> None:
        for gate, router in find_routers(model):
            self.add_router(gate, router)

    def add_router(self, module: torch.nn.Module, router: Router) -> bool:
        """Whether the choices of this module can be read: it is one of the model's."""
        row = self._sites.get(id(module))
        if row is None:
            name = self._names.get(id(module))
            if name is None:
                return False
            row = self._add_site(id(module), Module(name=name[-256:], kind=type(module).__name__[:256]))
            self.has_new_sites = True
        self.modules[row] = msgspec.structs.replace(self.modules[row], num_units=router.num_experts)
        self._routers.add(row, router)
        return True

    def _attended(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        inside = self._stack[-1] if self._stack else None
        read = ATTENTION.get(function)
        if self._copy is not None or (read is None and not is_attention(inside)):
            return
        row = self.row_of_call(inside, "attention") if read is not None else self._last_softmax(inside)
        if row is not None:
            if read is not None:
                self._see(row, output)
            self._attention.see(row, read or of_softmax, args, kwargs)

    def _last_softmax(self, inside: torch.nn.Module | None) -> int | None:
        """The row of the softmax that was reported just now."""
        return self._sites.get((id(inside), "softmax", self._calls.get((id(inside), "softmax"))))

    def row_of_call(self, inside: torch.nn.Module | None, name: str) -> int | None:
        """The row of a functional activation that was called in this module."""
        if inside is None or id(inside) in self._sites or id(inside) not in self._names:
            return None  # the module itself is a site, or not one of this model's
        call = (id(inside), name)
        number = self._calls[call] = self._calls.get(call, 0) + 1
        key = (*call, number)
        row = self._sites.get(key)
        if row is None:
            if len(self.modules) >= MAX_SITES:
                return None
            suffix = f"#{number}" if number > 1 else ""
            where = f"{self._names[id(inside)]}.{name}{suffix}".lstrip(".")
            row = self._add_site(key, Module(name=where[-256:], kind=name))
            self.has_new_sites = True
        return row

    def _see(self, row: int, output: Any) -> None:
        found = _first_tensor(output)
        if found is None or row in self._order or not found.is_floating_point():
            return
        tensor = own_part(found, "an activation")
        if tensor is None or not tensor.numel():
            return
        self.is_half |= tensor.dtype is torch.float16
        extremes, elements, fired = torch.aminmax(tensor), sample_row(tensor), None
        channel = self.unit_dimension(self.modules[row].kind, tensor.dim())
        if channel >= 0:
            fired = (by_unit(tensor, channel) != 0).any(dim=0)
        self.add(row, extremes, elements, fired)

    def add(self, row: int, extremes: Sequence[torch.Tensor], elements: torch.Tensor, fired: Any) -> None:
        """The statistics of one output."""
        if fired is not None:
            before = self._alive.get(row)
            same = before is not None and before.shape == fired.shape
            self._alive[row] = torch.logical_or(before, fired) if same and before is not None else fired
        self._order.append(row)  # last, so that an output that fails leaves nothing half-added
        self._extremes += extremes
        self._samples.append(elements)

    def unit_dimension(self, kind: str, num_dims: int) -> int:
        """The dimension of the units of which it is read whether they fired; -1 where that is not read."""
        if kind not in SILENT_KINDS or num_dims < 2:
            return -1
        return 1 if num_dims >= 4 or (num_dims == 3 and self._channels_first) else num_dims - 1

    def row_of(self, module: torch.nn.Module | None) -> int | None:
        """The row of a leaf module."""
        return None if module is None else self._sites.get(id(module))

    def has(self, row: int) -> bool:
        """Whether this output was read in this step already."""
        return row in self._order

    def forget(self) -> None:
        """Drops what was collected and not taken."""
        self._order, self._samples, self._extremes = [], [], []
        self._routers.forget()
        self._attention.forget()

    def take_choices(self) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """What routers chose and how large attention logits could be: rows, and an array of each statistic."""
        yield from self._routers.take()
        rows, arrays = self._attention.take()
        if rows:
            yield rows, arrays

    def take(self) -> tuple[list[int], dict[str, torch.Tensor]]:
        """The rows that were called, in the order of execution, and an array of each statistic."""
        order, self._order = self._order, []
        samples, self._samples = self._samples, []
        extremes, self._extremes = self._extremes, []
        self.num_read += len(order)
        if not order:
            return [], {}
        matrix = torch.stack(samples)
        lows, highs = torch.stack([e.to(torch.float32) for e in extremes]).view(-1, 2).unbind(1)
        device = matrix.device
        kinds = [self.modules[row].kind for row in order]
        scale, shift = torch.tensor([TO_TANH.get(kind, (0.0, 0.0)) for kind in kinds], device=device).unbind(1)
        on_tanh = matrix * scale.unsqueeze(1) + shift.unsqueeze(1)
        saturated = (on_tanh.abs() > FLAT_END).to(torch.float32).mean(dim=1)
        is_flat_kind = scale != 0
        std, mean = torch.std_mean(matrix, dim=1)
        return order, {
            "activation_mean": mean,
            "activation_std": std,
            "activation_max": torch.maximum(highs, -lows),
            "activation_zero_fraction": zero_fraction(matrix),
            "activation_saturated": torch.where(is_flat_kind, saturated, -torch.ones_like(saturated)),
            "activation_dead": self._dead(order, device),
            "activation_histogram": histogram(matrix),
        }

    def _dead(self, order: list[int], device: torch.device) -> torch.Tensor:
        self._num_in_window += 1
        missing = torch.full((), -1.0, device=device)
        if self._num_in_window < WINDOW:
            return missing.expand(len(order))
        self._num_in_window = 0
        alive, self._alive = self._alive, {}
        return torch.stack([1.0 - alive[row].to(torch.float32).mean() if row in alive else missing for row in order])


def _num_units(module: torch.nn.Module) -> int:
    """Features or channels of a module's output; 0 where it has no such number."""
    for name in ("out_features", "out_channels", "num_features", "embedding_dim"):
        value = getattr(module, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _first_tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, tuple | list) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    return None
