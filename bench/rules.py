"""Cost of judging a step: CPU time of each rule, at 1,024 ranks x 200 layers, and its growth.

    python bench/rules.py                           the table, and the growth from 64 to 4,096 ranks
    python bench/rules.py --quick                   fewer steps (about twenty seconds)
    python bench/rules.py --check                   exit code 1 if a goal is missed
    python bench/rules.py --ranks 256 --layers 500  another job

Design
------
Reports are like those of agents: every rank reports loss, rates and phases at every step and the norms of its part of
the layers; on sampled steps, one in a hundred, also its local gradients, fingerprints, weights and activations.
They go through the real alignment, whose cost is also shown, and the rules are those of `RULES`, one view for all of
them as in the engine: the first user of a value pays for it. Time is the thread's CPU time, so a busy machine
changes little.

A rule's cost is the mean over ordinary and sampled steps in their real proportion; the latter are also shown
separately, because a single one delays the daemon by that much. Rules that check the ranks about once a second
count once per step, as for a job of one step a second. Every rule is also run on a faulty job (slow rank, deviating
loss, diverged replicas), since findings cost more than none. Growth: the slope of a straight line through the
logarithms, 1 being linear.
"""

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from caboose_daemon.config import Config
from caboose_daemon.rules import RULES, AnyRule
from caboose_daemon.steps.aligned import AlignedStep, combine
from caboose_daemon.steps.view import JobView, RankView
from caboose_wire import Batch, Clipping, Layer, Mode, Module, Phases, StepReport
from caboose_wire.messages import HISTOGRAM_BINS

GOAL_SECONDS = 0.010
GOAL_EXPONENT = 1.1
"""Linear, with a margin for the noise of the smallest size."""
SAMPLE_EVERY = 100
SIZES = (64, 256, 1024, 4096)
VISIBLE = frozenset(
    {
        "loss",
        "lr",
        "phases",
        "weights",
        "modes",
        "gradients",
        "local_gradients",
        "fingerprint",
        "activations",
        "clipping",
    }
)


@dataclass
class Costs:
    """CPU seconds of one rule, or of the alignment."""

    ordinary: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Per step, with sampled steps in their real proportion."""
        share = 1 / SAMPLE_EVERY
        return (1 - share) * _mean(self.ordinary) + share * _mean(self.sampled)


class Workload:
    """A job of this size; `is_troubled`: with a slow rank, a deviating loss and diverged replicas."""

    def __init__(self, ranks: int, layers: int, *, is_troubled: bool = False) -> None:
        self.ranks = ranks
        self.layers = tuple(Layer(name=f"blocks.{i}.weight", numel=1_000_000, kind="Linear") for i in range(layers))
        self.modules = tuple(Module(name=f"blocks.{i}", kind="GELU", num_units=1024) for i in range(layers // 2))
        self.is_troubled = is_troubled
        self._random = np.random.default_rng(ranks)

    def report(self, rank: int, step: int, *, is_sampled: bool) -> StepReport:
        """A report like an agent's."""
        random, is_odd = self._random, self.is_troubled and rank == self.ranks // 2
        late = 0.4 if is_odd else 0.0
        forward = 0.3 + late + 0.01 * random.random()
        arrays, slices = self._arrays(rank, step, is_sampled=is_sampled, is_odd=is_odd)
        return StepReport(
            attempt=0,
            seq=step,
            step=step,
            model_step=step,
            time=1000.0 + step,
            loss=2.0 + 0.1 * float(random.standard_normal()) + (2.0 if is_odd else 0.0),
            num_samples=32,
            num_tokens=32 * 2048,
            lr=(3e-4, 3e-5),
            phases=Phases(1.1, 0.02, forward, 1.0 - forward, 0.05),
            local_grad_norm=1.5 + 0.1 * random.random() if is_sampled else None,
            agent_seconds=0.001,
            is_sampled=is_sampled,
            sample_every=SAMPLE_EVERY,
            num_scheduler_steps=step,
            clipping=Clipping(1.0, 1.2),
            batch=Batch(step, 0, (32, 2048)),
            mode=Mode(),
            fingerprint=12345 + step + is_odd if is_sampled else None,
            slices=slices,
            arrays=arrays,
        )

    def _arrays(
        self, rank: int, step: int, *, is_sampled: bool, is_odd: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, int]]]:
        num, random = len(self.layers), self._random
        first = (rank + step) * num // self.ranks % num
        mine = max(1, num // self.ranks)
        part = (first, min(first + mine, num) - first)
        arrays = {"grad_norm": random.random(part[1], dtype=np.float32) + 0.1}
        slices = {"grad_norm": (first, 1)}
        if not is_sampled:
            return arrays, slices
        for name in ("grad_zero_fraction", "weight_norm", "update_ratio"):
            arrays[name] = random.random(part[1], dtype=np.float32) * 1e-3
            slices[name] = (first, 1)
        for name in ("grad_histogram", "weight_histogram"):
            arrays[name] = random.random((part[1], HISTOGRAM_BINS), dtype=np.float32) / HISTOGRAM_BINS
            slices[name] = (first, 1)
        arrays["local_grad_norm"] = random.random(num, dtype=np.float32) + 0.1
        arrays["layer_fingerprint"] = np.arange(num, dtype=np.float32) + (step + is_odd)
        modules = len(self.modules)
        for name in ("mean", "std", "max", "zero_fraction", "saturated", "dead"):
            arrays[f"activation_{name}"] = random.random(modules, dtype=np.float32) * 0.1 + 0.1
        arrays["activation_histogram"] = random.random((modules, HISTOGRAM_BINS), dtype=np.float32) / HISTOGRAM_BINS
        arrays["activation_order"] = np.arange(modules, dtype=np.float32)
        return arrays, slices

    def steps(self, num: int) -> Iterator[tuple[AlignedStep, bool, float]]:
        """Aligned steps, whether each was sampled, and the cost of aligning it."""
        for step in range(1, num + 1):
            is_sampled = step % max(2, num // 8) == 0
            reports = {rank: self.report(rank, step, is_sampled=is_sampled) for rank in range(self.ranks)}
            start = time.thread_time()
            aligned = combine(reports, attempt=1, step=step, world=self.ranks, layers=self.layers)
            yield aligned, is_sampled, time.thread_time() - start

    def view(self, step: AlignedStep | None, now: float) -> JobView:
        """The view passed to rules, after start-up; without a step on a tick."""
        return JobView(
            job="train",
            attempt=1,
            world=self.ranks,
            now=now,
            attempt_began=0.0,
            look_at_ranks=lambda: self._look(now),
            layers=self.layers,
            groups=(),
            modules=self.modules,
            visible=VISIBLE,
            step=step,
        )

    def _look(self, now: float) -> dict[int, RankView]:
        return {
            rank: RankView(rank=rank, state="live", host=f"node{rank // 8}", step=int(now), last_seen=now)
            for rank in range(self.ranks)
        }


def measure(workload: Workload, num_steps: int) -> tuple[dict[str, Costs], Costs]:
    """Cost of each rule and of the alignment on this job."""
    configs = Config().rules
    rules: list[AnyRule] = [rule(configs[rule.name]) for rule in RULES]
    costs = {rule.name: Costs() for rule in rules}
    aligning = Costs()
    warm_up = num_steps // 4
    for number, (step, is_sampled, seconds) in enumerate(workload.steps(num_steps)):
        views = {"step": workload.view(step, step.step), "tick": workload.view(None, step.step)}
        found = {"aligning": seconds}
        for rule in rules:
            start = time.thread_time()
            rule.observe(views[rule.trigger])
            found[rule.name] = time.thread_time() - start
        if number >= warm_up:
            for name, taken in found.items():
                cost = aligning if name == "aligning" else costs[name]
                (cost.sampled if is_sampled else cost.ordinary).append(taken)
    return costs, aligning


def exponent(seconds: dict[int, float]) -> float:
    """The slope of cost over ranks, both as logarithms."""
    sizes = sorted(seconds)
    slope = np.polyfit(np.log(sizes), np.log([max(seconds[size], 1e-9) for size in sizes]), 1)[0]
    return float(slope)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def main() -> int:
    """Prints the tables and whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024, help="ranks of the judged job (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=200, help="layers of the model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=160, help="steps to judge (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a goal is missed")
    options = parser.parse_args()
    if options.ranks < 1 or options.layers < 2 or options.steps < 16:
        parser.error("give at least 1 rank, 2 layers and 16 steps")
    steps = min(options.steps, 48) if options.quick else options.steps
    print(f"# Cost of the rules: {options.ranks} ranks x {options.layers} layers\n")
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ",
        end="",
    )
    print(f"numpy {np.__version__}; CPU milliseconds per step, {steps} steps, sampled steps 1 in {SAMPLE_EVERY}\n")
    costs, aligning = measure(Workload(options.ranks, options.layers), steps)
    troubled, _ = measure(Workload(options.ranks, options.layers, is_troubled=True), steps)
    growth = {
        size: measure(Workload(size, options.layers), max(16, min(steps, 40 * 1024 // size)))[0] for size in SIZES
    }
    _table(costs, troubled, growth)
    total = sum(cost.mean for cost in costs.values())
    worst = sum(max(cost.mean, troubled[name].mean) for name, cost in costs.items())
    totals = {size: sum(cost.mean for cost in found.values()) for size, found in growth.items()}
    print(f"\nAligning a step, for comparison: {_ms(aligning.mean)} (sampled: {_ms(_mean(aligning.sampled))}).")
    is_cheap = max(total, worst) <= GOAL_SECONDS
    is_linear = exponent(totals) <= GOAL_EXPONENT
    print(f"\n- {'met' if is_cheap else 'MISSED'}: all rules {_ms(total)} ms, faulty job {_ms(worst)} ms; goal 10 ms")
    print(
        f"- {'met' if is_linear else 'MISSED'}: grows with ranks^{exponent(totals):.2f} from 64 to 4,096; goal linear"
    )
    return 1 if options.check and not (is_cheap and is_linear) else 0


def _table(costs: dict[str, Costs], troubled: dict[str, Costs], growth: dict[int, dict[str, Costs]]) -> None:
    sizes = " | ".join(f"{size:,} ranks" for size in SIZES)
    print(f"| rule | per step | sampled steps | faulty job | {sizes} | grows with ranks^ |")
    print("|---|" + "---:|" * (4 + len(SIZES)))
    names = sorted(costs, key=lambda name: -costs[name].mean)
    for name in names:
        by_size = {size: found[name].mean for size, found in growth.items()}
        cells = [costs[name].mean, _mean(costs[name].sampled), troubled[name].mean, *by_size.values()]
        print(f"| {name} | {' | '.join(map(_ms, cells))} | {exponent(by_size):.2f} |")
    sums = [
        sum(cost.mean for cost in costs.values()),
        sum(_mean(cost.sampled) for cost in costs.values()),
        sum(cost.mean for cost in troubled.values()),
        *(sum(cost.mean for cost in found.values()) for found in growth.values()),
    ]
    total = exponent({size: sum(cost.mean for cost in found.values()) for size, found in growth.items()})
    print(f"| **all** | {' | '.join(map(_ms, sums))} | {total:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
