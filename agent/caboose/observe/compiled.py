"""Activations inside compiled graphs: on sampled steps a second version of each graph runs, which returns statistics.

Design
------
Caboose stands between Dynamo and the backend. It copies each graph that Dynamo has captured (`graph_taps`), and wraps
what the backend makes of it. At each call of the graph the wrapper looks whether this step is sampled. If not, it calls
what the backend made: that code, its guards and its cache are as without Caboose. If so, it calls a second version,
which the same backend makes, once, of the copy that also returns the statistics. Dynamo takes no part in that: no
graph break, no guard, nothing that counts against the recompile limits.

Two other ways were measured, on a transformer of 31 leaf modules, for a step that is not sampled (forward alone,
Dynamo's `eager` backend, least of 250 calls on a busy machine):

- hooks that Dynamo traces, behind a global that it guards on: 242 us a forward, for the guards of 31 hooks (8 us each);
  and the sampled graph is a recompilation, one of torch's eight;
- an operator in the graph that returns at once: 2,164 us with `torch.library.custom_op`, 614 us with `Library.impl`
  (70 and 20 us each, with the detach before it); and an operator that inductor does not know splits its kernels, in
  every step;
- this one: 0.1 to 0.5 us a graph (16 to 103 inputs), timed directly; 16 us against the forward, which is its noise.

Both others must change the module or the graph before the first compilation too. What this one needs of torch is
private (`OutputGraph.call_user_compiler`); where it is missing, that is stated.

The numbers of a sampled step are the same to the last bit under `aot_eager`. Inductor compiles the second version by
itself; on a CPU, for a block with LayerNorm, GELU and dropout in float32, losses and weights of 12 steps with three
samples were the same. Where it fuses otherwise, as in lower precision, they may differ by rounding.

The second compilation is lazy, in the middle of a forward, so it draws no random number. A graph with dynamic shapes is
compiled for each combination of shapes by itself: a lazy compilation cannot add guards to Dynamo's. A failure is
stated, and the graph that exists runs. So it does where another version would not be the same to its surroundings:
in a checkpoint around the graph (it runs again in the backward, and what it saves must match) and in CUDA graphs (whose
outputs are overwritten). Graphs with collectives are left alone: not all ranks sample the same steps.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from caboose.observe.graph_taps import Captured, Input, Value, capture, width, with_taps
from caboose.observe.patches import Patches

logger = logging.getLogger("caboose")

MAX_VERSIONS = 4
"""Versions of one graph with dynamic shapes: each combination of shapes is compiled by itself."""
TOO_EARLY = "compiled before Caboose was attached: attach before the first step, or use `python -m caboose`"

NOT_IN_GRAPHS = "in no graph of a sampled step: {}; torch.compile leaves them to Python, or they are not called"
LEFT_TO_PYTHON = "no graph ran in a sampled step: torch.compile leaves the model to Python, as past its recompile limit"


@dataclass(frozen=True)
class Site:
    """One activation in a graph: a module's output or, with a name, a functional one."""

    value: Value
    channel: int
    function: str = ""


class Reader(Protocol):
    """Who reads the graphs of a sampled step. Its callables do not raise, and return None after a failure."""

    why_not_in_graphs: dict[str, None]
    plan: Callable[[Captured, Sequence[Any]], list[Site] | None]
    collect: Callable[[Sequence[Input], Sequence[Any], Sequence[Site], Sequence[Any]], None]


class Switch:
    """Whether the graphs that run now are read: looked up at each call of each compiled graph."""

    __slots__ = ("reader",)

    def __init__(self) -> None:
        self.reader: Reader | None = None


switch = Switch()
_patches = Patches()
_users = 0


def install() -> str:
    """Graphs that torch.compile makes from now on can be read; returns why not, if they cannot."""
    global _users
    try:
        from torch._dynamo.output_graph import OutputGraph

        if not _users:
            _patches.put(OutputGraph, "call_user_compiler", _around)
    except (ImportError, AttributeError) as error:
        return f"this torch compiles in an unknown way ({error})"
    _users += 1
    return ""


def uninstall() -> None:
    """The last one who installed it ends it. Graphs that exist stay, and only run."""
    global _users
    _users = max(0, _users - 1)
    if not _users:
        _patches.undo()


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_user_compiler(output_graph: Any, gm: Any, example_inputs: Any) -> Any:
        graph = _graph(output_graph, gm)
        run = original(output_graph, gm, example_inputs)
        return run if graph is None else graph.around(run)

    return call_user_compiler


def _graph(output_graph: Any, gm: Any) -> "_Graph | None":
    """The graph before its backend changes it; None if it has no parameters, is exported or written to a file."""
    try:
        if output_graph.export or output_graph.package is not None:
            return None
        captured = capture(gm, _module_of_frame(output_graph.root_tx))
        if not captured.inputs:
            return None
        backend = _own_backend(output_graph.compiler_fn)
        return _Graph(captured, backend, _why_never(backend, gm))
    except Exception as error:  # noqa: BLE001 - someone's model is being compiled
        logger.warning("caboose: a compiled graph cannot be read: %r", error)
        return None


class _Graph:
    """One graph of Dynamo's in two versions."""

    def __init__(self, captured: Captured, backend: Callable[..., Any], why_never: str) -> None:
        self._captured = captured
        self._backend = backend
        self._why_never = why_never
        self._versions: dict[Any, _Version | None] = {}

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of the compiled graph."""

        def run_either(*args: Any) -> Any:
            reader = switch.reader
            if reader is None:
                return run(*args)
            try:
                version = self._version(reader, args)
            except Exception as error:  # noqa: BLE001 - the run goes on with the graph that it has
                version = None
                self._why_never = f"a second compilation failed ({type(error).__name__})"
                reader.why_not_in_graphs[self._why_never] = None
                logger.warning("caboose: a compiled graph is not read, its second compilation failed: %r", error)
            if version is None:
                return run(*args)
            try:
                results = version.run(*args)
            except torch.OutOfMemoryError:
                self._why_never = "out of memory with the statistics"
                return run(*args)
            own, found = results[: version.num_own], results[version.num_own :]
            parts, start = [], 0
            for num in version.widths:
                parts.append(found[start : start + num])
                start += num
            reader.collect(self._captured.inputs, args, version.sites, parts)
            return own

        return run_either

    def _version(self, reader: Reader, args: Sequence[Any]) -> "_Version | None":
        if not torch.is_grad_enabled():
            return None
        why_not = self._why_never or _why_not_now()
        if why_not:
            reader.why_not_in_graphs[why_not] = None
            return None
        key = tuple(_size(a) for a in args) if self._captured.is_dynamic else ()
        if key in self._versions:
            return self._versions[key]
        if len(self._versions) >= MAX_VERSIONS:
            reader.why_not_in_graphs[f"of dynamic shapes only the first {MAX_VERSIONS}"] = None
            return None
        began = time.perf_counter()
        version = self._versions[key] = self._compile(reader, args)
        if version is not None:
            seconds = time.perf_counter() - began
            logger.info("caboose: compiled a graph again, for sampled steps, in %.1f s", seconds)
        return version

    def _compile(self, reader: Reader, args: Sequence[Any]) -> "_Version | None":
        sites = reader.plan(self._captured, args)
        if not sites:
            return None
        by_node = {site.value.node: site for site in sites}
        graph, nodes = with_taps(self._captured, {node: site.channel for node, site in by_node.items()})
        num_own = len(next(n for n in self._captured.graph.nodes if n.op == "output").args[0])
        with _as_if_not_run():
            run = self._backend(graph, list(args))
        ordered = [by_node[node] for node in nodes]
        return _Version(run, num_own, ordered, [width(site.channel) for site in ordered])


@dataclass(frozen=True, slots=True)
class _Version:
    """A graph with statistics, compiled."""

    run: Callable[..., Any]
    num_own: int
    sites: Sequence[Site]
    widths: Sequence[int]


def _size(given: Any) -> Any:
    return tuple(given.shape) if isinstance(given, torch.Tensor) else given


@contextlib.contextmanager
def _as_if_not_run() -> Iterator[None]:
    """Compiling, in the middle of a forward, draws no random number of the run's."""
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.utils import preserve_rng_state

    with compile_lock, preserve_rng_state():
        yield


def _module_of_frame(frame: Any) -> str:
    """The path of the module whose forward is compiled; empty for another function."""
    code, values = frame.f_code, frame.f_locals
    first = code.co_varnames[0] if code.co_argcount else ""
    return f"L['{first}']" if isinstance(values.get(first), torch.nn.Module) else ""


def _own_backend(backend: Any) -> Any:
    """Under DDP torch splits a graph at its buckets; the version with statistics is compiled whole."""
    splitter = getattr(backend, "__self__", None)
    return getattr(splitter, "backend_compile_fn", backend)


def _why_never(backend: Any, gm: Any) -> str:
    from torch._dynamo.eval_frame import innermost_backend

    inner = innermost_backend(backend)
    names = {getattr(inner, "compiler_name", ""), getattr(inner, "__name__", ""), getattr(backend, "__name__", "")}
    settings = getattr(inner, "config", None)
    has_graphs = _inductor_setting()
    if isinstance(settings, dict):
        has_graphs = settings.get("triton.cudagraphs", has_graphs)
    if has_graphs or "cudagraphs" in names:
        return "under CUDA graphs (mode reduce-overhead or max-autotune)"
    for node in gm.graph.nodes:
        if "c10d_functional" in str(node.target):
            return "graphs with collectives: ranks may not compile together"
    return ""


def _inductor_setting() -> bool:
    inductor = sys.modules.get("torch._inductor.config")
    return inductor is not None and bool(inductor.triton.cudagraphs)


def _why_not_now() -> str:
    """What of torch's settings forbids a second compilation, or another version of the graph."""
    from torch._dynamo import config, eval_frame
    from torch._functorch._aot_autograd.utils import top_saved_tensors_hooks

    if config.error_on_recompile:
        return "torch._dynamo.config.error_on_recompile is set"
    stance = eval_frame._stance.stance
    if stance != "default":
        return f"torch.compiler.set_stance({stance!r})"
    if top_saved_tensors_hooks() is not None:
        return "compiled graphs in a checkpoint or another hook on saved tensors"
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return ""
