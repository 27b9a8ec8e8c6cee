"""Regret of the rollback policy: steps of training lost against an oracle that knows the future.

    python bench/regret.py                      generated curves, every family (ARGS of `make bench-regret`)
    python bench/regret.py --quick              a few curves of each family (about two minutes)
    python bench/regret.py --corpus DIR         also the healthy logs of a corpus: none may be rolled back
    python bench/regret.py --half tuned --list  each curve of one half
    python bench/regret.py --first 1000         other curves of the same families
    python bench/regret.py --check              exit code 1 if a goal is missed

Design
------
Each curve is played three times: nothing is done, the daemon's policy acts in `auto`, and an oracle acts (see
`regret_play`). *Damage* is what doing nothing loses, *regret* what `auto` loses more than the oracle, both in steps of
training. The goals are stated for curves on which doing nothing loses at least `HEAVY` steps more than the oracle's
noise, for the others, and for spikes that heal by themselves. The tuned and the held half have been looked at; the
fresh families, and curves from `--first 1000` on, have not been when this was written.

Results are kept by curve and by the code of the daemon, so an interrupted measurement goes on.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import regret_corpus
from regret_curves import Curve, World
from regret_families import curves
from regret_play import auto, never, oracle

import caboose_daemon

CACHE = Path("build/bench-regret")
KEPT = 5
HEAVY = 50.0
"""Steps that doing nothing must lose for the goals on its damage to apply."""
SOON = 30
"""Steps within which a spike that heals by itself is over; and what doing nothing loses, for one to cost little."""
OVER = 0.1
"""Share of its height, or of the run's progress where that is less, that is left of a spike when it is over."""
HALVES = ("tuned", "held", "fresh")
GOALS = {"median": 0.05, "p95": 0.25, "else": 10.0, "worse": 0.01, "soon": 0.02}


@dataclass(frozen=True)
class Result:
    """One curve's three outcomes."""

    id: str
    family: str
    half: str
    num_steps: int
    never: float
    auto: float
    oracle: float
    rollbacks: list[list[int]]
    onset: int

    @property
    def regret(self) -> float:
        """Steps that `auto` lost more than the oracle."""
        return max(0.0, self.auto - self.oracle)

    @property
    def share(self) -> float:
        """The regret as a share of the damage."""
        return self.regret / max(self.never, 1.0)

    @property
    def is_heavy(self) -> bool:
        """Whether doing nothing loses much."""
        return self.never >= HEAVY

    @property
    def is_worse(self) -> bool:
        """Whether `auto` lost more than doing nothing, by more than 2 % of the run."""
        return self.auto - self.never > 0.02 * self.num_steps

    @property
    def costs_little(self) -> bool:
        """Whether a disturbance cost little without help, however long it lasted."""
        return self.onset < self.num_steps and self.never <= SOON


def main() -> None:
    """Plays what is missing, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 curves of each family instead of 40")
    parser.add_argument("--per-family", type=int, help="curves of each family")
    parser.add_argument("--half", choices=HALVES, default="", help="only families of this half")
    parser.add_argument("--first", type=int, default=0, help="number of the first curve: 1000 for ones never looked at")
    parser.add_argument("--family", default="", help="only these families, such as heals,stays")
    parser.add_argument("--corpus", type=Path, help="directory of labelled logs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="list the curves with the largest regret")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a goal is missed")
    options = parser.parse_args()
    per_family = options.per_family or (6 if options.quick else 40)
    chosen = [
        c
        for c in curves(per_family, options.half, options.first)
        if not options.family or c.family in options.family.split(",")
    ]
    results = _results(chosen, options.processes)
    if options.list:
        _list(results)
    soon = {curve.id for curve in chosen if heals_soon(curve)}
    halves = [[r for r in results if r.half == half] for half in HALVES]
    reports = [_report(half, soon) for half in halves if half]  # each is printed
    is_met = all(reports)
    if options.corpus is not None:
        is_met &= regret_corpus.report(options.corpus, options.processes)
    if options.check and not is_met:
        sys.exit(1)


def play(curve: Curve) -> Result:
    """All three outcomes of a curve."""
    played = auto(curve)
    lost = never(curve)
    return Result(
        id=curve.id,
        family=curve.family,
        half=curve.half,
        num_steps=curve.num_steps,
        never=lost,
        auto=played.lost,
        oracle=min(lost, oracle(curve)),
        rollbacks=[list(rollback) for rollback in played.rollbacks],
        onset=curve.onset,
    )


def heals_soon(curve: Curve) -> bool:
    """Whether a single disturbance is over soon without help."""
    if len(curve.kicks) != 1 or curve.onset + SOON > curve.num_steps:
        return False
    world, heights = World(replace(curve, noise=0.0)), []
    while world.step < curve.onset + SOON:
        healthy = curve.healthy(world.weights.age)
        heights.append(world.advance() - healthy)
    progress = curve.start - curve.healthy(curve.onset)
    return heights[-1] <= OVER * min(progress, max(heights[curve.onset - 1 :]))  # False for NaN


def _results(chosen: Sequence[Curve], processes: int) -> list[Result]:
    path = CACHE / f"{_hash_of_code()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    for old in sorted(path.parent.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
        old.unlink()
    known = {result.id: result for line in path.read_text().splitlines() if (result := Result(**json.loads(line)))}
    missing = [curve for curve in chosen if curve.id not in known]
    with path.open("a") as file, ProcessPoolExecutor(processes) as pool:
        for number, result in enumerate(pool.map(play, missing, chunksize=2), start=1):
            known[result.id] = result
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            if sys.stderr.isatty():
                print(f"\r{number} of {len(missing)}", end="", file=sys.stderr, flush=True)
    return [known[curve.id] for curve in chosen]


def _report(results: Sequence[Result], soon: Collection[str]) -> bool:
    print(f"\n### {results[0].half} families\n")
    print("| family | curves | heavy | median damage | median regret | 95 % | elsewhere | rolled back | worse |")
    print("|---|---|---|---|---|---|---|---|---|")
    for family in dict.fromkeys(result.family for result in results):
        print(_row(family, [result for result in results if result.family == family]))
    print(_row("all", results))
    return _goals(results, soon)


def _row(name: str, results: Sequence[Result]) -> str:
    heavy, light = [r for r in results if r.is_heavy], [r for r in results if not r.is_heavy]
    cells = [
        name,
        str(len(results)),
        str(len(heavy)),
        f"{_quantile((r.never for r in heavy), 0.5):.0f}",
        f"{100 * _quantile((r.share for r in heavy), 0.5):.1f} %",
        f"{100 * _quantile((r.share for r in heavy), 0.95):.1f} %",
        f"{_quantile((r.regret for r in light), 1.0):.0f}",
        str(sum(bool(r.rollbacks) for r in results)),
        str(sum(r.is_worse for r in results)),
    ]
    return f"| {' | '.join(cells)} |"


def _goals(results: Sequence[Result], over_soon: Collection[str]) -> bool:
    heavy, light = [r for r in results if r.is_heavy], [r for r in results if not r.is_heavy]
    soon, cheap = [r for r in results if r.id in over_soon], [r for r in results if r.costs_little]
    healthy = [r for r in results if r.onset >= r.num_steps]
    figures = {
        "median": _quantile((r.share for r in heavy), 0.5),
        "p95": _quantile((r.share for r in heavy), 0.95),
        "else": _quantile((r.regret for r in light), 1.0),
        "worse": sum(r.is_worse for r in results) / len(results),
        "soon": sum(bool(r.rollbacks) for r in soon) / max(1, len(soon)),
    }
    num_false = sum(bool(r.rollbacks) for r in healthy)
    over = sum(r.regret > GOALS["else"] for r in light)
    print(
        f"\nWhere doing nothing loses {HEAVY:.0f} steps or more ({len(heavy)} curves): median regret "
        f"{100 * figures['median']:.1f} % of the damage (goal 5 %), 95 % of them within {100 * figures['p95']:.1f} % "
        f"(goal 25 %). Elsewhere ({len(light)}): at most {figures['else']:.0f} steps (goal 10; {over} above). "
        f"Worse than doing nothing by over 2 % of the run: {100 * figures['worse']:.1f} % of the curves (goal 1 %). "
        f"Rolled back: {sum(bool(r.rollbacks) for r in soon)} of {len(soon)} spikes that are over within {SOON} steps "
        f"(goal 2 %), {sum(bool(r.rollbacks) for r in cheap)} of {len(cheap)} on which doing nothing loses at most "
        f"{SOON} steps, {num_false} of {len(healthy)} healthy runs (goal 0)."
    )
    is_met = all(figures[name] <= goal for name, goal in GOALS.items()) and not num_false
    print("Every goal is met." if is_met else "A GOAL IS MISSED.")
    return is_met


def _list(results: Sequence[Result]) -> None:
    for r in sorted(results, key=lambda r: -r.regret):
        print(
            f"{r.id:24} {r.half} onset {r.onset} of {r.num_steps}: never {r.never:.0f}, auto {r.auto:.0f}, oracle "
            f"{r.oracle:.0f}, regret {r.regret:.0f} ({100 * r.share:.0f} %); {r.rollbacks}"
        )


def _quantile(values: Iterable[float], share: float) -> float:
    found = sorted(values)
    return float(np.quantile(found, share)) if found else 0.0


def _hash_of_code() -> str:
    digest = hashlib.sha256()
    for root in (Path(caboose_daemon.__file__).parent, Path(__file__).parent):
        pattern = "regret*.py" if root == Path(__file__).parent else "**/*.py"
        for path in sorted(root.glob(pattern)):
            if path.name != "regret.py":
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
