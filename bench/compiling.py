"""The transformer under torch.compile: bare, with Caboose's defaults, and with its compiled graphs read.

Design
------
Twins as in `timing`, but compiled: each by a backend of its own, so that torch shares no graph between them. Only the
twin that is read was compiled with Caboose's wrapper in place, as in a run that asks for it. The pairs show the whole;
what a plain step pays for the wrapper is below their noise, so it is also timed directly, in one call of a graph with
as many inputs as the transformer's, over many calls.
"""

import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from models import Calls, Workload, build
from peers import Variant, bare, settled_governor, watched
from timing import Pair, block_steps, estimate, own_milliseconds, run_pair, step_seconds

from caboose.observe import compiled
from caboose.settings.environment import SAMPLE_EVERY

SWITCH = "CABOOSE_SAMPLE_COMPILED"
NUM_CALLS = 200_000
MAX_SHARE = 0.002
"""Of a bare step, for what a plain step pays."""


def compiled_transformer(backend: str, *, is_read: bool) -> tuple[Workload, float]:
    """A compiled twin, and the CPU seconds that its first step took."""
    workload = build("transformer")
    compile_graph = torch._dynamo.lookup_backend(backend)
    workload.model.compile(backend=lambda gm, inputs: compile_graph(gm, inputs), fullgraph=True)
    with contextlib.ExitStack() as undo:
        if is_read:
            compiled.install()
            undo.callback(compiled.uninstall)
        began = time.thread_time()
        workload.step(next(workload.stream()), Calls())
        return workload, time.thread_time() - began


@contextlib.contextmanager
def read(endpoint: str, daemon: int, workload: Workload) -> Iterator[Calls]:
    """Caboose, with the activations of compiled graphs."""
    os.environ[SWITCH] = "1"
    try:
        with watched(endpoint, daemon, None, True, workload) as calls:
            yield calls
    finally:
        del os.environ[SWITCH]


def second_compilation(workload: Workload, endpoint: str, daemon: int) -> float:
    """CPU seconds of the first sampled step, less a plain one."""
    with read(endpoint, daemon, workload) as calls:
        stream, seconds = iter(calls.watch(workload.stream())), []
        for _ in range(3):
            began = time.thread_time()
            workload.step(next(stream), calls)
            seconds.append(time.thread_time() - began)
    return seconds[0] - min(seconds[1:])


def switch_seconds(num_inputs: int) -> float:
    """What one call of a graph takes longer with the wrapper around it."""

    def graph(*_: Any) -> None:
        return None

    around = compiled._Graph.around(compiled._Graph(None, graph, ""), graph)  # type: ignore[arg-type]  # never read
    inputs = [torch.zeros(1)] * num_inputs

    def seconds(call: Callable[..., Any]) -> float:
        began = time.thread_time()
        for _ in range(NUM_CALLS):
            call(*inputs)
        return (time.thread_time() - began) / NUM_CALLS

    return statistics.median(seconds(around) - seconds(graph) for _ in range(5))


def section(
    endpoint: str,
    daemon: int,
    *,
    rounds: int,
    has_noise: bool,
    block_seconds: float,
    backend: str,
    progress: Callable[[str], None],
) -> str:
    """The table, as Markdown."""
    progress("transformer, compiled: compiling")
    one, first = compiled_transformer(backend, is_read=False)
    other, _ = compiled_transformer(backend, is_read=False)
    tapped, _ = compiled_transformer(backend, is_read=True)
    settled_governor(endpoint, one)  # that of the eager transformer, if it was measured
    bare_step = step_seconds(one)
    second = second_compilation(tapped, endpoint, daemon)
    rows = [
        (Variant("noise", "nothing (how much noise there is)", bare), one),
        (
            Variant("defaults", "**Caboose**, defaults", partial(watched, endpoint, daemon, None, True), SAMPLE_EVERY),
            one,
        ),
        (Variant("read", "**Caboose**, compiled graphs read", partial(read, endpoint, daemon), SAMPLE_EVERY), tapped),
    ]
    rows = rows if has_noise else rows[1:]
    pairs: dict[str, list[Pair]] = {variant.key: [] for variant, _ in rows}
    draw = random.Random(17)  # noqa: S311 - an order of blocks, not a secret
    for number in range(rounds):
        for variant, twin in draw.sample(rows, len(rows)):
            progress(f"transformer, compiled: round {number + 1} of {rounds}, {variant.key}")
            steps = block_steps(variant, max(10, round(block_seconds / bare_step)))
            pairs[variant.key].append(run_pair(twin, other, variant, steps, draw, with_background=False))
    lines = [
        f"## transformer under torch.compile(backend={backend!r}, fullgraph=True)",
        "",
        f"A bare step takes {_bare_ms(pairs):.1f} ms of CPU. The first step, which compiles, took {first:.1f} s of "
        f"CPU; the second compilation, in the first sampled step, {second:.1f} s.",
        "",
        "| variant | CPU time, x bare (95 %) | CPU ms added per step | timed in place, ms per step | pairs |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [_row(variant, pairs[variant.key]) for variant, _ in rows]
    num_inputs = one.num_tensors + 1
    switch = switch_seconds(num_inputs)
    share = switch * 1e3 / _bare_ms(pairs)
    word = "ok" if share <= MAX_SHARE else "MISSED"
    lines += [
        "",
        f"A plain step pays {switch * 1e9:.0f} ns for each call of a graph of {num_inputs} inputs, timed directly: "
        f"{share:.4%} of a bare step <= {MAX_SHARE:.1%} {word}. CPU time in this table is the training thread's.",
    ]
    return "\n".join(lines)


def _bare_ms(pairs: dict[str, list[Pair]]) -> float:
    return 1e3 * float(statistics.median(pair.bare_cpu for found in pairs.values() for pair in found))


def _row(variant: Variant, pairs: Sequence[Pair]) -> str:
    ratio = estimate([pair.cpu / pair.bare_cpu for pair in pairs])
    added = statistics.median(pair.cpu - pair.bare_cpu for pair in pairs) * 1e3
    own = own_milliseconds(pairs)
    interval = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" if len(pairs) > 2 else f"{ratio.median:.3f}"
    return f"| {variant.name} | {interval} | {added:.2f} | {'' if own is None else f'{own:.2f}'} | {len(pairs)} |"
