"""Cost of taking and restoring a snapshot: compared with a plain copy of the same bytes, and as a share of a step.

    python bench/snapshots.py                       about two minutes
    python bench/snapshots.py --quick               about half a minute
    python bench/snapshots.py --check               exit code 1 if a goal is missed

Design
------
Taking and restoring are timed in turn with a memcpy of as many bytes between two warm buffers, round by round, so that
each ratio is of neighbours in time. `restore` is timed as it runs after COMMIT: the snapshot was pinned some steps
before and its checksum is known; the row below it includes the checksum.

The ring's share of a step is measured as the agent's own cost is (see `timing`): two twins take turns step by step,
one with a ring at its default cadence, on a model whose step takes about 100 ms. The time of its calls on the training
thread is also measured in place, which shows costs below the noise of two blocks.
"""

import argparse
import contextlib
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from models import Calls, Workload
from peers import Variant
from tables import machine
from timing import estimate, run_pair, step_seconds
from torch import nn
from torch.nn import functional as F

from caboose.rollback.ring import EVERY, Ring
from caboose.rollback.training_state import TrainingState

MAX_RESTORE = 2.0
MAX_SHARE = 0.01
WIDTH = 1024


def arguments() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=384, help="size of the timed snapshots (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=15, help="rounds of take, restore and memcpy (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="blocks of 100 steps of each twin (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="5 rounds, 1 block")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a goal is missed")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.pairs = 5, 1
    if min(options.mib, options.rounds, options.pairs) < 1:
        parser.error("--mib, --rounds, --pairs: give at least 1")
    return options


def seconds_of(call: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def layers(depth: int) -> nn.Sequential:
    """Square layers, 12 MiB of state each with AdamW."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(depth)))


def checked(ring: Ring, step: int) -> None:
    """Waits for the inspector thread."""
    while ring.why_not(step):
        time.sleep(0.001)


def copies(mib: int, rounds: int) -> tuple[str, float]:
    """The table of take, restore and memcpy, and the ratio of restore to memcpy."""
    model = layers(max(1, round(mib / 12)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model(torch.randn(4, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ring = Ring(TrainingState(model, [optimizer]), every=1, history_seconds=0.0)
    for step in range(1, 7):  # every slot is used once
        ring.passed(step, 0.1)
        ring.take(step, step)
        checked(ring, step)
    source = torch.empty(ring.num_bytes, dtype=torch.uint8).random_()
    target = source.clone()
    rows: dict[str, list[float]] = {"memcpy": [], "take": [], "restore": [], "restore with checksum": []}
    for step in range(7, 7 + rounds):
        rows["memcpy"].append(seconds_of(lambda: target.copy_(source)))
        rows["take"].append(seconds_of(lambda step=step: ring.take(step, step)))  # type: ignore[misc]
        checked(ring, step)
        ring.pin(step)
        while ring._verified is None:
            time.sleep(0.001)
        rows["restore"].append(seconds_of(lambda step=step: ring.restore(step)))  # type: ignore[misc]
        ring.unpin()
        rows["restore with checksum"].append(seconds_of(lambda step=step: ring.restore(step)))  # type: ignore[misc]
        ring.unpin()  # discards the checksum
    ring.close()
    size = ring.num_bytes / 2**30
    lines = [
        f"## {ring.num_bytes / 2**20:.0f} MiB of state in {3 * len(list(model.parameters()))} tensors",
        "",
        "| | ms | GiB/s | x memcpy (95 %) |",
        "| --- | ---: | ---: | ---: |",
    ]
    ratios = {}
    for name, seconds in rows.items():
        ratio = ratios[name] = estimate([a / b for a, b in zip(seconds, rows["memcpy"], strict=True)])
        typical = statistics.median(seconds)
        lines.append(
            f"| {name} | {typical * 1e3:.1f} | {size / typical:.1f} | "
            f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) |"
        )
    return "\n".join(lines), ratios["restore"].median


def ringed() -> Variant:
    """The training step with a ring at its default interval."""

    @contextlib.contextmanager
    def open_ring(workload: Workload) -> Iterator[Calls]:
        ring = Ring(TrainingState(workload.model, [workload.optimizer]))
        clock = {"step": 0, "last": time.perf_counter(), "own": 0.0}

        def after_step(_: torch.Tensor) -> None:
            began = time.perf_counter()
            step = clock["step"] = int(clock["step"]) + 1
            ring.passed(step, began - clock["last"])
            if ring.is_due(step):
                ring.take(step, step)
            clock["last"] = time.perf_counter()
            clock["own"] += clock["last"] - began

        try:
            yield Calls(after_step=after_step, own_seconds=lambda: clock["own"])
        finally:
            ring.close()

    return Variant("ring", "ring", open_ring, period=2 * EVERY, has_background=True)


def share(pairs: int) -> tuple[str, float]:
    """The ring's part of a step, timed in place, and the twins' ratio."""
    twins = tuple(
        Workload("layers", layers(8), F.cross_entropy).with_batches(
            lambda g: (torch.randn(48, WIDTH, generator=g), torch.randint(WIDTH, (48,), generator=g))
        )
        for _ in range(2)
    )
    bare = step_seconds(twins[0])
    variant, draw = ringed(), random.Random(3)  # noqa: S311 - an order of blocks, not a secret
    found = [
        run_pair(*draw.sample(twins, 2), variant, variant.period, draw, with_background=number == 0)
        for number in range(pairs)
    ]
    gc.unfreeze()
    own = statistics.median((pair.own or 0.0) / pair.bare_wall for pair in found)
    beside = next(pair.background for pair in found if pair.background is not None) / bare
    ratio = estimate([pair.wall / pair.bare_wall for pair in found])
    text = (
        f"## a step of {bare * 1e3:.0f} ms, {twins[0].num_parameters / 1e6:.1f} M parameters, AdamW, "
        f"a snapshot every {EVERY} steps\n\n"
        f"On the training thread: {own:.2%} of a step, averaged. In the background, on another core: {beside:.2%}.\n"
        f"Wall time, x bare: {ratio.median:.4f} ({ratio.low:.4f} to {ratio.high:.4f}) over {pairs} pairs of blocks."
    )
    return text, own


def main() -> int:
    """Prints both tables and the verdict."""
    options = arguments()
    torch.set_num_threads(1)
    print(f"# Snapshots\n\n{machine()}\n")
    table, restore = copies(options.mib, options.rounds)
    print(table, flush=True)
    gc.collect()
    text, own = share(options.pairs)
    print(f"\n{text}")
    goals = {
        f"restore {restore:.2f} x memcpy <= {MAX_RESTORE:g}": restore <= MAX_RESTORE,
        f"ring {own:.2%} of a step <= {MAX_SHARE:.0%}": own <= MAX_SHARE,
    }
    word = "met" if all(goals.values()) else "MISSED"
    print(f"\nVerdict: {word}. " + "; ".join(f"{goal} {'ok' if ok else 'MISSED'}" for goal, ok in goals.items()) + ".")
    return 1 if options.check and word != "met" else 0


if __name__ == "__main__":
    sys.exit(main())
