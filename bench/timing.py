"""Times a variant against the bare step: two twins of one model take turns, step by step, in one process.

Design
------
On a shared machine the same step takes 10 % more or less from one half second to the next, so comparing blocks one
after the other cannot show a cost of 1 %. Here the variant is opened on one of two identical twins (same weights, same
batches; which of the two is drawn for each pair, since memory placement differs), and the twins step alternately
in the order A B B A, which cancels drift. A *pair* is a block of such steps: at least one sampling period, the
variant's work in its due proportion. The result is the median over pairs with a bootstrap interval.

Each pair starts from the same state, is warmed, and begins with a collected and frozen heap. Opening and closing the
variant is not timed.

CPU time of a step is that of the training thread, plus *background*: what other threads of the process (the agent's
sender) and helper processes on this host (wandb's service) used meanwhile. Background runs on by the clock, so it is
taken from a second block in which the watched twin steps alone; between the steps of a twin it would be charged for
the bare twin's time as well. A background thread may delay a step of the bare twin, so the wall ratio may be too low
by up to the background time.

The kernel's per-process CPU clocks are read for helpers, exact where `cpu_times` counts ticks of 10 ms.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
from models import Batch, Calls, Workload
from peers import Variant

WARM_STEPS = 3
RESAMPLES = 4000
SHARE = 3
"""Background, and variants that are not compared in every round, are measured in every third."""

Twins = tuple[Workload, Workload]


@dataclass(frozen=True)
class Pair:
    """Seconds per step of one block, with the variant and without."""

    wall: float
    cpu: float
    bare_wall: float
    bare_cpu: float
    own: float | None
    background: float | None
    """CPU time that other threads and helper processes used, where it was measured."""
    elsewhere: float | None


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    num_values: int


@dataclass
class _Clock:
    """Adds up the steps of one twin."""

    wall: float = 0.0
    cpu: float = 0.0

    def run(self, workload: Workload, batch: Batch, calls: Calls) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        workload.step(batch, calls)
        self.cpu += time.thread_time() - cpu
        self.wall += time.perf_counter() - wall


def estimate(values: Sequence[float]) -> Estimate:
    """Median and interval; resampled with a fixed seed, so the same values give the same interval."""
    array = np.asarray(values)
    draws = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.quantile(np.median(array[draws], axis=1), (0.025, 0.975))
    return Estimate(float(np.median(array)), float(low), float(high), len(array))


def cpu_seconds(pid: int) -> float:
    """CPU time of another process so far; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) makes of a process id on Linux
    except OSError:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


def run_pair(
    with_variant: Workload,
    without: Workload,
    variant: Variant,
    steps: int,
    order: random.Random,
    *,
    with_background: bool,
) -> Pair:
    """One block of steps on both twins, and perhaps one on the watched twin alone."""
    gc.unfreeze()
    with_variant.restore()
    without.restore()
    bare_calls = Calls()
    with variant.open(with_variant) as calls:
        loader, bare_loader = iter(calls.watch(with_variant.stream())), without.stream()
        clock, bare_clock = _Clock(), _Clock()
        turns = [(clock, with_variant, loader, calls), (bare_clock, without, bare_loader, bare_calls)]
        order.shuffle(turns)  # which twin begins
        for number in range(WARM_STEPS):
            if number == WARM_STEPS - 1:  # not after the last: a collection leaves the caches cold for the next step
                gc.collect()
                gc.freeze()
            for _, workload, batches, its_calls in turns:
                workload.step(next(batches), its_calls)
        own = calls.own_seconds() if calls.own_seconds else 0.0
        for number in range(steps):
            for its_clock, workload, batches, its_calls in turns if number % 2 else turns[::-1]:
                its_clock.run(workload, next(batches), its_calls)
        own_seconds = (calls.own_seconds() - own) / steps if calls.own_seconds else None
        beside = _background(with_variant, loader, calls, steps) if with_background else (None, None)
    return Pair(
        wall=clock.wall / steps,
        cpu=clock.cpu / steps,
        bare_wall=bare_clock.wall / steps,
        bare_cpu=bare_clock.cpu / steps,
        own=own_seconds,
        background=beside[0],
        elsewhere=beside[1],
    )


def _background(workload: Workload, loader: Iterator[Batch], calls: Calls, steps: int) -> tuple[float, float]:
    """CPU seconds per step used in the background: on this host, and in processes that may be elsewhere."""
    helpers = calls.helpers()

    def read() -> tuple[float, float]:
        threads = time.process_time() - time.thread_time()
        return threads + sum(map(cpu_seconds, helpers)), sum(map(cpu_seconds, calls.elsewhere))

    before = read()
    for _ in range(steps):
        workload.step(next(loader), calls)
    after = read()
    return (after[0] - before[0]) / steps, (after[1] - before[1]) / steps


def block_steps(variant: Variant, block: int) -> int:
    """The smallest whole number of the variant's periods that is at least a block."""
    return -(-block // variant.period) * variant.period


def compare(
    twins: Twins, variants: Sequence[Variant], *, rounds: int, block: int, progress: Callable[[str], None]
) -> dict[str, list[Pair]]:
    """The pairs of each variant, by its key; every round uses a new order."""
    draw = random.Random(17)  # noqa: S311 - an order of blocks, not a secret
    pairs: dict[str, list[Pair]] = {variant.key: [] for variant in variants}
    for number in range(rounds):
        is_full = number % SHARE == 0
        chosen = [v for v in variants if v.every_round or is_full]
        draw.shuffle(chosen)
        for variant in chosen:
            progress(f"{twins[0].name}: round {number + 1} of {rounds}, {variant.key}")
            one, other = draw.sample(twins, 2)
            steps, beside = block_steps(variant, block), is_full and variant.has_background
            pairs[variant.key].append(run_pair(one, other, variant, steps, draw, with_background=beside))
    return pairs


def step_seconds(workload: Workload) -> float:
    """Approximate seconds of a warm bare step."""
    workload.restore()
    calls, loader, seconds = Calls(), workload.stream(), []
    for _ in range(4 * WARM_STEPS):
        began = time.perf_counter()
        workload.step(next(loader), calls)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_STEPS:])


def own_milliseconds(pairs: Sequence[Pair]) -> float | None:
    """Seconds per step that the variant timed in place."""
    values = [pair.own for pair in pairs if pair.own is not None]
    return statistics.median(values) * 1e3 if values else None
