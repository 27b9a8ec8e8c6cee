"""How well `caboose verify` distinguishes a change from chance: simulated runs with or without a drop in the middle.

    python bench/verifying.py               the table of docs/terminal.md (a minute)
    python bench/verifying.py --runs 40     fewer runs per cell

Design
------
The loss is flat, or falls like a power of the step, with noise of 2.5 %: independent, correlated (each value keeps a
share of the previous one), or a random walk. 500 steps before are compared with 500 after, by the same code as the
command. A drop is a share of the loss at that place.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from caboose_daemon.offline.verifying.quantity import compare_levels, pair
from caboose_daemon.offline.verifying.stretch import Floats

NUM, NOISE, RESOLUTION = 500, 0.025, 0.02
DROPS = (0.0, 0.02, 0.03, 0.05, 0.1)
CURVES: dict[str, Callable[[Floats], Floats]] = {
    "flat": lambda steps: np.full(len(steps), 2.0),
    "falling": lambda steps: 2.0 + 6.0 * (steps + 50.0) ** -0.4,
}
MEMORIES = {
    "independent": 0.0,
    "each step keeps half of the last one": 0.5,
    "keeps 90 %": 0.9,
    "wanders without end": 1.0,
}


def noise(draw: np.random.Generator, memory: float) -> Floats:
    """Of scale 1; a walk takes steps of a tenth."""
    fresh = draw.normal(0.0, 1.0, 2 * NUM + 200)
    if memory == 1.0:
        return np.cumsum(0.1 * fresh)[200:]
    values = np.zeros(len(fresh))
    for place in range(1, len(fresh)):
        values[place] = memory * values[place - 1] + np.sqrt(1 - memory**2) * fresh[place]
    return values[200:]


def share_said(curve: Callable[[Floats], Floats], memory: float, drop: float, num_runs: int) -> float:
    """Share of runs whose loss is judged lower; without a drop, lower or higher."""
    draw = np.random.default_rng(7)
    steps = np.arange(500.0, 500.0 + 2 * NUM)
    num_said = 0
    for _ in range(num_runs):
        values = curve(steps) * (1.0 + NOISE * noise(draw, memory))
        values[NUM:] *= 1.0 - drop
        both = pair((steps[:NUM], values[:NUM]), (steps[NUM:], values[NUM:]))
        num_said += compare_levels(both, RESOLUTION).change in (("lower",) if drop else ("lower", "higher"))
    return num_said / num_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=120, help="runs of each curve and drop (default: %(default)s)")
    asked = parser.parse_args(arguments)
    print(f"{asked.runs} runs of each curve: flat, falling\n")
    print(
        "| noise | nothing was changed: judged lower or higher | "
        + " | ".join(f"{d:.0%} lower: detected" for d in DROPS[1:])
        + " |"
    )
    print("|---|" + "---|" * len(DROPS))
    for name, memory in MEMORIES.items():
        cells = [
            ", ".join(f"{share_said(curve, memory, drop, asked.runs):.0%}" for curve in CURVES.values())
            for drop in DROPS
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
