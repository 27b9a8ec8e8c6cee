"""Reads the compiled graphs of one model: what is in them, where that is in the model, and what was not seen."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from caboose.observe import compiled
from caboose.observe.functions import FUNCTIONS
from caboose.observe.graph_taps import Captured, Input, Value, only_output
from caboose.observe.opaque import is_compiled, outside_graphs
from caboose_wire import Module

MAX_NAMED = 3
"""Modules that a statement of what is not seen names."""


class Rows(Protocol):
    """What the statistics are added to; see `activations`."""

    modules: list[Module]

    def row_of(self, module: torch.nn.Module | None) -> int | None:
        """The row of a leaf module."""

    def row_of_call(self, inside: torch.nn.Module | None, name: str) -> int | None:
        """The row of a functional activation that was called in this module."""

    def unit_dimension(self, kind: str, num_dims: int) -> int:
        """The dimension of the units of which it is read whether they fired; -1 where that is not read."""

    def has(self, row: int) -> bool:
        """Whether this output was read in this step already."""

    def add(self, row: int, extremes: Sequence[torch.Tensor], elements: torch.Tensor, fired: Any) -> None:
        """The statistics of one output."""


class GraphReader:
    """The compiled graphs of one model, on sampled steps."""

    def __init__(self, model: torch.nn.Module, rows: Rows, protect: Callable[[str, Callable[..., Any]], Any]) -> None:
        self._rows = rows
        self._places = Places(model)
        self._has_graphs = is_compiled(model)
        outside = {id(module) for module in outside_graphs(model)}
        rows_inside = (rows.row_of(module) for module in model.modules() if id(module) not in outside)
        self._unread = {row for row in rows_inside if row is not None}
        """Rows of leaf modules in compiled parts that no graph has shown so far."""
        self._was_called = False
        """Whether a forward was watched in this step."""
        self._num_read = self._num_read_before = 0
        """Outputs read since attach, and before this step."""
        self.why_not_in_graphs: dict[str, None] = {}
        """Why some graphs could not be read in this step."""
        self.plan = protect("compiled activations", self._plan)
        self.collect = protect("compiled activations", self._collect)

    def note_forward(self) -> bool:
        """A sampled forward begins; returns whether the model has compiled parts."""
        self._was_called = True
        return self._has_graphs

    def why_unseen(self, *, saw_others: bool) -> dict[str, str] | None:
        """What of the graphs was not read in the step that ends, and why; None if none was expected.

        `saw_others`: activations outside of graphs are seen.
        """
        reasons, self.why_not_in_graphs = self.why_not_in_graphs, {}
        was_called, self._was_called = self._was_called, False
        num_read, self._num_read_before = self._num_read - self._num_read_before, self._num_read
        if not reasons and not (self._has_graphs and was_called):
            return None
        text = "; ".join(reasons)
        if not self._num_read:
            return {"some_activations" if saw_others else "activations": text or compiled.TOO_EARLY}
        if not text and not num_read:
            text = compiled.LEFT_TO_PYTHON
        elif not text and self._unread:
            text = compiled.NOT_IN_GRAPHS.format(self._names_of_unread())
        return {"some_activations": text} if text else {}

    def _names_of_unread(self) -> str:
        names = [self._rows.modules[row].name for row in sorted(self._unread)]
        more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
        return ", ".join(names[:MAX_NAMED]) + more

    def _plan(self, captured: Captured, args: Sequence[Any]) -> list[compiled.Site]:
        """What is read in a graph, in the order of execution."""
        find = self._places.finder(captured.inputs, args)
        rows, sites = self._rows, list[tuple[int, compiled.Site]]()
        calls: dict[str, tuple[int, str, list[Value]]] = {}
        order = {}
        for number, value in enumerate(captured.values()):
            order[value.node] = number
            module = find(value.inside)
            row, name = rows.row_of(module), _function_name(value)
            if row is not None:
                _, call, values = calls.setdefault(value.inside, (row, value.call, []))
                if value.call == call:  # the first call is read, as without compilation
                    values.append(value)
            elif module is not None and name is not None and value.num_dims is not None:
                sites.append((number, compiled.Site(value, rows.unit_dimension(name, value.num_dims), name)))
        for row, _call, values in calls.values():
            output = only_output(values)
            if output is not None and output.num_dims is not None:
                channel = rows.unit_dimension(rows.modules[row].kind, output.num_dims)
                sites.append((order[output.node], compiled.Site(output, channel)))
        return [site for _, site in sorted(sites, key=lambda pair: pair[0])]

    def _collect(
        self, inputs: Sequence[Input], args: Sequence[Any], sites: Sequence[compiled.Site], found: Sequence[Any]
    ) -> None:
        """A graph has run; `found` has what `tap` returned for each of its sites."""
        find, rows = self._places.finder(inputs, args), self._rows
        for site, (low, high, elements, *fired) in zip(sites, found, strict=True):
            module = find(site.value.inside)
            row = rows.row_of_call(module, site.function) if site.function else rows.row_of(module)
            if row is not None and not rows.has(row):
                rows.add(row, (low, high), elements, fired[0] if fired else None)
                self._unread.discard(row)
                self._num_read += 1


def _function_name(value: Value) -> str | None:
    """The name of the functional activation that a node calls."""
    target: Any = value.node.target
    if isinstance(target, str):
        target = getattr(torch.Tensor, target, None)
    try:
        return FUNCTIONS.get(target)
    except TypeError:  # not hashable
        return None


class Places:
    """Where the modules of a graph are in the watched model, by the parameters that the graph is given."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.modules: dict[str, torch.nn.Module] = {}
        self._owners: dict[int, list[str]] = {}
        self._read()

    def _read(self) -> None:
        """Sharding replaces a module's parameters for its forward, so what is here may be out of date."""
        self.modules = dict(self._model.named_modules(remove_duplicate=False))
        self._owners.clear()
        for name, module in self.modules.items():
            for parameter in vars(module)["_parameters"].values():
                if parameter is not None:
                    self._owners.setdefault(id(parameter), []).append(name)

    def finder(self, inputs: Sequence[Input], args: Sequence[Any]) -> Callable[[str], torch.nn.Module | None]:
        """A function from a path of this graph, called with these arguments, to the module."""
        bases = self._bases(inputs, args)
        if inputs and not bases:
            self._read()
            bases = self._bases(inputs, args)

        def find(path: str) -> torch.nn.Module | None:
            for root, base in bases.items():
                if path == root or path.startswith(f"{root}."):
                    return self.modules.get(".".join(filter(None, (base, path[len(root) + 1 :]))))
            return None

        return find

    def _bases(self, inputs: Sequence[Input], args: Sequence[Any]) -> dict[str, str]:
        """The name in the model of each root that paths begin with."""
        bases: dict[str, str] = {}
        for given in inputs:
            if any(given.owner == root or given.owner.startswith(f"{root}.") for root in bases):
                continue
            parameter = args[given.index]
            best: tuple[int, str, str] | None = None
            for name in self._owners.get(id(parameter), ()):
                if vars(self.modules[name])["_parameters"].get(given.name) is not parameter:
                    continue
                theirs, ours = given.owner.split("."), name.split(".") if name else []
                shared = 0
                while shared < len(ours) and shared < len(theirs) - 1 and ours[-1 - shared] == theirs[-1 - shared]:
                    shared += 1
                root, base = ".".join(theirs[: len(theirs) - shared]), ".".join(ours[: len(ours) - shared])
                if best is None or shared > best[0]:
                    best = (shared, root, base)
            if best is not None:
                bases[best[1]] = best[2]
        return bases
