"""A graph that torch.compile has captured, and a copy of it that also returns statistics of its activations.

Design
------
Dynamo's graph has one node a call, and each node names the modules it was called in. So no hook and no traced code is
needed: the output of a module is what its nodes hand to nodes outside of it, and a functional activation is one node.
A leaf module that hands out several values which are not the parts of one result is left out.

A graph of one block serves all blocks of its kind, so the graph alone does not tell which module it runs. Its inputs
do: parameters are inputs, and the owner of one of them, with the paths that Dynamo notes, places all others
(see `graph_reader.Places`).

The statistics are taken of detached values, behind the node that makes them: an operation in place that follows changes
nothing. What is added to the graph is pure; it draws no random number and writes to nothing. Activation checkpointing
inside a graph is a graph in the graph: its own outputs grow, and the recomputation in the backward returns the
statistics again, to nobody. Other graphs in graphs (`cond`, `scan`, an `autograd.Function`) are not entered.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from caboose.tensors.readable import REAL
from caboose.tensors.subsample import WIDTH

MASK_ELEMENTS = 65_536
"""At most so many elements of one output are read for the mask of live units."""
CHECKPOINT = "tag_activation_checkpoint"
_MODULES = re.compile(r"\._modules\['([^']*)'\]")
_PARAMETER = re.compile(r"\._parameters\['([^']*)'\]$")
_ERASED = frozenset({"grapharg", "example_value"})
"""Node metadata that keeps tensors or a tracer alive."""


@dataclass(frozen=True)
class Input:
    """A parameter among a graph's inputs."""

    index: int
    owner: str
    """The path of the module that has it, as the graph names it."""
    name: str


@dataclass(frozen=True)
class Value:
    """A value in the graph that may be an activation."""

    node: fx.Node
    graph: "Captured"
    """The graph or checkpointed part of it that has the node."""
    inside: str
    """The path of the innermost module that made it; empty at the top of a function."""
    call: str
    """Which call of that module."""

    @property
    def num_dims(self) -> int | None:
        """Its number of dimensions, if it is a plain tensor of real numbers."""
        return self.graph.is_float.get(self.node)


@dataclass
class Captured:
    """A copy of a graph of Dynamo's, taken before a backend changes it."""

    module: fx.GraphModule
    graph: fx.Graph
    """The copy."""
    is_float: Mapping[fx.Node, int]
    """Nodes whose value is a plain tensor of real numbers, with its number of dimensions."""
    top: str
    """The path of the module whose forward the graph is; empty for a function."""
    inputs: Sequence[Input] = ()
    is_dynamic: bool = False
    parts: dict[fx.Node, "Captured"] = field(default_factory=dict)
    """Checkpointed parts, by the node that calls them."""

    def values(self) -> Iterator[Value]:
        """In program order, with those of checkpointed parts in their place."""
        for node in self.graph.nodes:
            part = self.parts.get(node)
            if part is not None:
                yield from part.values()
            elif node.op in ("call_function", "call_method"):
                stack = node.meta.get("nn_module_stack") or {}
                call, (path, _kind) = list(stack.items())[-1] if stack else ("", (self.top, None))
                yield Value(node, self, plain_path(path), str(call))


def plain_path(path: str) -> str:
    """`L['self']._modules['blocks']._modules['0']` as `L['self'].blocks.0`, which Dynamo also writes."""
    return _MODULES.sub(r".\1", path)


def capture(gm: fx.GraphModule, top: str = "") -> Captured:
    """Copies a graph; the tensors that its metadata keeps alive are left out."""
    copied: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    output = graph.graph_copy(gm.graph, copied)
    graph.output(output)
    found = Captured(gm, graph, {}, top)
    is_float: dict[fx.Node, int] = {}
    inputs: list[Input] = []
    num_inputs = 0
    for node, copy in copied.items():
        example = node.meta.get("example_value")
        found.is_dynamic |= _is_symbolic(example)
        if isinstance(example, torch.Tensor) and _is_real(example):
            is_float[copy] = example.dim()
        if node.op == "placeholder":
            source = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", "")
            source = source() if callable(source) else source
            match = _PARAMETER.search(source)
            if match is not None:
                owner = plain_path(source[: match.start()])
                inputs.append(Input(num_inputs, owner, match[1]))
            num_inputs += 1
        elif node.op == "call_function" and getattr(node.target, "_name", "") == CHECKPOINT:
            body = node.args[0]
            inner = getattr(gm, str(body.target), None) if isinstance(body, fx.Node) else None
            if isinstance(inner, fx.GraphModule) and _returns_tuple(inner):
                found.parts[copy] = capture(inner, top)
    for copy in copied.values():
        copy.meta = {key: value for key, value in copy.meta.items() if key not in _ERASED}
    found.is_float, found.inputs = is_float, inputs
    return found


def outputs(values: Sequence[Value]) -> list[Value]:
    """Of the values that one call of a module made, those that are used outside of it."""
    own = {value.node for value in values}
    return [value for value in values if any(user not in own for user in value.node.users)]


def only_output(values: Sequence[Value]) -> Value | None:
    """The output of one call of a module, the first part of it if it has parts; None where that is not certain."""
    used = outputs(values)
    parts = [v for v in used if v.node.op == "call_function" and getattr(v.node.target, "__name__", "") == "getitem"]
    if len(used) > 1 and len(parts) == len(used) and len({v.node.args[0] for v in parts}) == 1:
        first = min(parts, key=lambda v: v.node.args[1] if isinstance(v.node.args[1], int) else 0)
        return first if first.node.args[1] == 0 else None
    return used[0] if len(used) == 1 else None


def tap(x: torch.Tensor, num_dims_before_units: int) -> tuple[torch.Tensor, ...]:
    """Its lowest, its highest, `WIDTH` of its elements, and which units fired, where that is asked for (not -1)."""
    x = x.detach()
    lowest, highest = torch.aminmax(x)
    count, flat = x.numel(), x.reshape(-1)
    step = count // WIDTH
    row = flat[: step * WIDTH : step] if step else flat.repeat(-(-WIDTH // count))[:WIDTH]
    found = (lowest.to(torch.float32), highest.to(torch.float32), row.to(torch.float32, copy=True))
    if num_dims_before_units < 0:
        return found
    rows = by_unit(x, num_dims_before_units)
    return (*found, (rows != 0).any(dim=0))


def by_unit(tensor: torch.Tensor, channel: int) -> torch.Tensor:
    """Samples x units, with a bounded number of samples."""
    units = tensor.shape[channel]
    rows = tensor.movedim(channel, -1).reshape(-1, units)
    keep = max(1, MASK_ELEMENTS // units)
    return rows if rows.shape[0] <= keep else rows[:: -(-rows.shape[0] // keep)]


def with_taps(captured: Captured, channels: Mapping[fx.Node, int]) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A graph that also returns the statistics of these nodes, flat, behind its own outputs; and the nodes in order.

    Each node comes with the dimension of its units, or -1.
    """
    graph, order = _tapped(captured, channels)
    graph.graph.lint()
    return graph, order


def width(channel: int) -> int:
    """How many values `tap` returns."""
    return 4 if channel >= 0 else 3


def _tapped(captured: Captured, by_node: Mapping[fx.Node, int]) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The graph, and the nodes in the order of their statistics."""
    graph, copied = fx.Graph(), dict[fx.Node, fx.Node]()
    root: dict[str, Any] = {}
    added: list[fx.Node] = []
    order: list[fx.Node] = []
    for node in captured.graph.nodes:
        if node.op == "output":
            (own,) = node.args
            given = graph.output((*fx.node.map_arg(own, lambda n: copied[n]), *added))
            given.meta = dict(node.meta)
            continue
        copy = copied[node] = graph.node_copy(node, lambda n: copied[n])
        part = captured.parts.get(node)
        if part is not None and any(value.node in by_node for value in part.values()):
            inner, inner_order = _tapped(part, by_node)
            name = f"tapped_{len(root)}"
            root[name] = inner
            with graph.inserting_before(copy):
                copy.args = (graph.get_attr(name), *copy.args[1:])
            num_own = len(next(n for n in part.graph.nodes if n.op == "output").args[0])
            num_added = sum(width(by_node[n]) for n in inner_order)
            added += [graph.call_function(_getitem, (copy, num_own + i)) for i in range(num_added)]
            order += inner_order
        elif node in by_node:
            result = graph.call_function(tap, (copy, by_node[node]))
            added += [graph.call_function(_getitem, (result, i)) for i in range(width(by_node[node]))]
            order.append(node)
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target) not in root:
            root[str(node.target)] = _attribute(captured.module, str(node.target))
    for node in [n for n in graph.nodes if n.op == "get_attr" and not n.users]:
        graph.erase_node(node)
    return fx.GraphModule(root, graph), order


def _getitem(values: Any, index: int) -> Any:
    return values[index]


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _returns_tuple(gm: fx.GraphModule) -> bool:
    return isinstance(next(n for n in gm.graph.nodes if n.op == "output").args[0], tuple | list)


def _is_real(example: torch.Tensor) -> bool:
    """Whether it is a plain tensor of real numbers; one that is distributed is not read inside a graph."""
    return (
        type(example) in (torch.Tensor, torch.nn.Parameter, FakeTensor)
        and example.layout is torch.strided
        and not example.is_nested
        and example.dtype in REAL
    )


def _is_symbolic(example: Any) -> bool:
    if isinstance(example, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in example.shape)
    return isinstance(example, torch.SymInt | torch.SymFloat)
