"""Formats the measurements as Markdown, with a verdict on the agent's goals."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from counting import Counts
from models import Workload
from peers import DEFAULTS, FLOOR, Variant
from timing import Estimate, Pair, block_steps, estimate, own_milliseconds

MAX_MEDIAN = 1.01
MAX_UPPER = 1.015
FLOOR_FACTOR = 2.0
FLOOR_ALLOWANCE_MS = 0.3
MAX_TEMPORARY_BYTES = 4 * 2**20

MIN_FOR_INTERVAL = 3
"""With fewer pairs an interval would be misleading; only the median is shown."""

HEADINGS = (
    "variant",
    "CPU time, x bare (95 %)",
    "wall time, x bare (95 %)",
    "CPU ms added per step (95 %)",
    "of it in the background, ms",
    "timed in place, ms per step",
    "operations added per step",
    "host syncs added per step",
    "peak temporary bytes",
    "pairs",
)

NOTES = """\
A watched and a bare twin of the model take turns, step by step; a ratio is the median over pairs of blocks, with its
95 % bootstrap interval. CPU time is that of the training thread plus all *background*: the process's other threads and
helper processes on this host (wandb's service). Wall time is that of the training thread, and may be too low by up to
the background time. *Timed in place* is what the variant's own calls took on the training thread, measured inside
them (Caboose's by its guard, in wall time, the others' in CPU time); other libraries' hooks cannot be timed
this way. Opening and closing are not counted. Caboose's governor runs first, and its intervals are then fixed: this is
the cost in a long run; the row below shows the cost without the governor. The floor is
`torch.nn.utils.get_total_norm` over all gradients: one number, not per layer, nothing read back.
Operations, syncs and bytes are counted in a separate pass; see `bench/counting.py`."""


@dataclass(frozen=True)
class Goal:
    """One goal, and whether it is met."""

    text: str
    is_met: bool


@dataclass(frozen=True)
class Result:
    """All measurements of one workload."""

    workload: Workload
    variants: Sequence[Variant]
    pairs: Mapping[str, Sequence[Pair]]
    counts: Mapping[str, Counts]
    block: int

    def cpu_ratio(self, key: str) -> Estimate:
        """CPU time against the bare step."""
        return estimate([(pair.cpu + self.background(key)) / pair.bare_cpu for pair in self.pairs[key]])

    def background(self, key: str) -> float:
        """CPU seconds per step in the background; steady, so not measured in every pair."""
        return statistics.median([pair.background for pair in self.pairs[key] if pair.background is not None] or [0.0])

    def wall_ratio(self, key: str) -> Estimate:
        """Wall time against the bare step."""
        return estimate([pair.wall / pair.bare_wall for pair in self.pairs[key]])

    def added_ms(self, key: str) -> Estimate:
        """Added CPU milliseconds per step."""
        return estimate([(pair.cpu + self.background(key) - pair.bare_cpu) * 1e3 for pair in self.pairs[key]])


def machine() -> str:
    """The facts a reader needs to compare with another machine."""
    return (
        f"{os.cpu_count()} CPUs ({_processor()}), Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} torch thread, so that another core is free for sender, daemon and services"
    )


def table(result: Result) -> str:
    """One workload's section."""
    workload = result.workload
    lines = [
        f"## {workload.name}",
        "",
        f"{workload.num_parameters / 1e6:.2f} M parameters in {workload.num_tensors} tensors, AdamW. {_bare(result)} "
        f"A pair is {_blocks(result)} steps of each twin.",
        "",
        _row(HEADINGS),
        _row(["---", *["---:"] * (len(HEADINGS) - 1)]),
        *(_row(_cells(result, variant)) for variant in result.variants),
    ]
    daemon = [pair.elsewhere * 1e3 for pair in result.pairs.get(DEFAULTS, []) if pair.elsewhere is not None]
    if daemon:
        lines += [
            "",
            f"The daemon, in a separate process, used {statistics.median(daemon):.2f} ms of CPU per step.",
        ]
    return "\n".join(lines)


def goals(result: Result) -> list[Goal]:
    """The goals of the defaults, against the measurements."""
    ratio, added, counts = result.cpu_ratio(DEFAULTS), result.added_ms(DEFAULTS), result.counts[DEFAULTS]
    found = [
        Goal(f"CPU ratio median {ratio.median:.4f} <= {MAX_MEDIAN}", ratio.median <= MAX_MEDIAN),
        Goal(f"upper bound {ratio.high:.4f} <= {MAX_UPPER}", ratio.high <= MAX_UPPER),
        Goal(f"host syncs {counts.num_syncs:.2f} = 0", counts.num_syncs == 0),
        Goal(
            f"temporaries {_bytes(counts.temporary_bytes)} <= {_bytes(MAX_TEMPORARY_BYTES)}",
            counts.temporary_bytes <= MAX_TEMPORARY_BYTES,
        ),
    ]
    floor = own_milliseconds(result.pairs.get(FLOOR, []))
    if floor is not None:
        # In place: as a difference of two blocks, a floor of some tenths of a millisecond would be below the noise.
        limit = FLOOR_FACTOR * floor + FLOOR_ALLOWANCE_MS
        text = f"added {added.median:.2f} ms <= {FLOOR_FACTOR:g} x floor ({floor:.2f} ms) + {FLOOR_ALLOWANCE_MS} ms"
        found.insert(2, Goal(f"{text} = {limit:.2f} ms", added.median <= limit))
    return found


def verdict(result: Result) -> str:
    """The goals in one line."""
    seen = goals(result)
    word = "met" if all(goal.is_met for goal in seen) else "MISSED"
    direct = (own_milliseconds(result.pairs[DEFAULTS]) or 0.0) + result.background(DEFAULTS) * 1e3
    share = direct / statistics.median(pair.bare_cpu * 1e3 for pair in result.pairs[DEFAULTS])
    parts = "; ".join(f"{goal.text} {'ok' if goal.is_met else 'MISSED'}" for goal in seen)
    return (
        f"Verdict ({result.workload.name}, defaults): {word}. {parts}. "
        f"In place and in the background, timed directly: {direct:.2f} ms, {share:.2%} of a bare step."
    )


def _cells(result: Result, variant: Variant) -> list[str]:
    pairs = result.pairs[variant.key]
    counts = result.counts[variant.key]
    own = own_milliseconds(pairs)
    return [
        variant.name,
        _interval(result.cpu_ratio(variant.key), 3),
        _interval(result.wall_ratio(variant.key), 3),
        _interval(result.added_ms(variant.key), 2),
        f"{result.background(variant.key) * 1e3:.2f}",
        "" if own is None else f"{own:.2f}",
        f"{counts.num_operations:.1f}",
        f"{counts.num_syncs:.2f}",
        _bytes(counts.temporary_bytes),
        str(len(pairs)),
    ]


def _interval(value: Estimate, digits: int) -> str:
    if value.num_values < MIN_FOR_INTERVAL:
        return f"{value.median:.{digits}f}"
    return f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _blocks(result: Result) -> str:
    sizes = sorted({block_steps(variant, result.block) for variant in result.variants})
    return " or ".join(map(str, sizes))


def _bare(result: Result) -> str:
    pairs = [pair for pairs in result.pairs.values() for pair in pairs]
    cpu = sorted(pair.bare_cpu * 1e3 for pair in pairs)
    wall = statistics.median(pair.bare_wall * 1e3 for pair in pairs)
    low, high = cpu[len(cpu) // 10], cpu[-1 - len(cpu) // 10]
    return (
        f"A bare step takes {statistics.median(cpu):.1f} ms of CPU ({low:.1f} to {high:.1f} in the middle 80 % of "
        f"pairs) and {wall:.1f} ms of wall time."
    )


def _bytes(number: int) -> str:
    if number >= 2**20:
        return f"{number / 2**20:.2f} MiB"
    return f"{number / 2**10:.1f} KiB" if number >= 2**10 else f"{number} B"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
