"""Detection on drawn curves: shapes that no rule was written by, healthy and sick, from 20 rows to thousands.

    python bench/drawn.py                     the tables (about a minute)
    python bench/drawn.py --per-shape 40      more of each
    python bench/drawn.py --kind plateau -v   one kind, and each log that was judged wrongly
    make bench-drawn

What is drawn is described in `bench/shapes.py`; how it is scored, in `bench/detection.py`. Half of the shapes are for
tuning, the other half is only reported.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from detection import NAMES, NEED_A_PAGE, SLACK
from shapes import LENGTHS, SHAPES, Drawn, all_drawn
from verdicts import Raised, Verdicts

from caboose_daemon.config import load

HALVES = ("tune", "held")


@dataclass(frozen=True)
class Outcome:
    """One drawn log and its verdict."""

    drawn: Drawn
    raised: list[Raised]

    @property
    def is_right(self) -> bool:
        """Whether a sick log is named in time, or nothing is raised in a healthy one."""
        kind = self.drawn.shape.kind
        if kind == "healthy":
            return not self.raised
        steps = self.drawn.log.steps
        earliest = int(steps[max(0, self.drawn.onset - SLACK)])
        return any(
            found.rule in NAMES[kind] and found.step >= earliest and (found.is_page or kind not in NEED_A_PAGE)
            for found in self.raised
        )

    @property
    def is_paged(self) -> bool:
        return any(found.is_page for found in self.raised)

    def __str__(self) -> str:
        rules = sorted({f"{found.rule}{' (page)' * found.is_page}" for found in self.raised}) or ["nothing"]
        log = self.drawn.log
        return f"{log.file} ({len(log.steps)} rows, noise {self.drawn.noise}): {', '.join(rules)}"


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--per-shape", type=int, default=20, help="logs of each shape and length (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", help="only shapes whose kind begins with this")
    parser.add_argument("--half", choices=HALVES, help="only shapes of this half")
    parser.add_argument("--config", type=Path, help="thresholds to judge by; the defaults otherwise")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each log that was judged wrongly")
    options = parser.parse_args()
    shapes = tuple(s for s in SHAPES if s.kind.startswith(options.kind or "") and options.half in (None, s.half))
    logs = list(all_drawn(options.per_shape, options.seed, shapes))
    found = Verdicts(load(options.config)).of(((one.log.file, one.log) for one in logs), len(logs))
    outcomes = [Outcome(one, raised) for one, raised in zip(logs, found, strict=True)]
    print(f"{len(outcomes)} logs, {sum(len(one.log.steps) for one in logs):,} rows.\n")
    print("\n\n".join((summary(outcomes), by_shape(outcomes))))
    if options.verbose:
        print("\n".join(["", *(str(one) for one in outcomes if not one.is_right)]))
    return 0


def summary(outcomes: Sequence[Outcome]) -> str:
    """A row for each kind: healthy logs paged and alarmed, sick ones found, by half."""
    lines = ["| | tune | held |", "| --- | ---: | ---: |"]
    healthy = [one for one in outcomes if one.drawn.shape.kind == "healthy"]
    if healthy:
        lines.append(_row("healthy, paged", healthy, lambda one: one.is_paged))
        lines.append(_row("healthy, any alarm", healthy, lambda one: not one.is_right))
    for kind in dict.fromkeys(one.drawn.shape.kind for one in outcomes):
        if kind != "healthy":
            some = [one for one in outcomes if one.drawn.shape.kind == kind]
            lines.append(_row(f"{kind}, found", some, lambda one: one.is_right))
    return "\n".join(lines)


def _row(name: str, outcomes: Sequence[Outcome], counts: Callable[[Outcome], bool]) -> str:
    cells = []
    for half in HALVES:
        some = [one for one in outcomes if one.drawn.shape.half == half]
        num = sum(counts(one) for one in some)
        cells.append(f"{num} / {len(some)} ({100 * num / len(some):.1f} %)" if some else "")
    return f"| {name} | {' | '.join(cells)} |"


def by_shape(outcomes: Sequence[Outcome]) -> str:
    """A row for each shape: alarmed (healthy ones) or found, by length."""
    tally: defaultdict[tuple[str, str, str, str], list[bool]] = defaultdict(list)
    for one in outcomes:
        shape = one.drawn.shape
        tally[shape.kind, shape.name, shape.half, one.drawn.length].append(one.is_right)
    lines = [f"| shape | half | {' | '.join(LENGTHS)} |", "| --- | --- " + "| ---: " * len(LENGTHS) + "|"]
    for kind, name, half in dict.fromkeys(key[:3] for key in tally):
        cells = []
        for length in LENGTHS:
            right = tally[kind, name, half, length]
            cells.append(f"{sum(right)}/{len(right)}" if kind != "healthy" else f"{len(right) - sum(right)} alarmed")
        lines.append(f"| {kind}: {name} | {half} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
