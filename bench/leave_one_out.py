"""Detection with thresholds that were chosen without the repository that is judged: leave one repository out.

    python bench/leave_one_out.py CORPUS           the tables (about half an hour on two free cores)
    python bench/leave_one_out.py CORPUS --rules plateau,overfitting
    make bench-leave-one-out CORPUS=DIR

The corpus is that of `bench/detection.py`. The rules' thresholds were chosen by people who had seen all of its logs.
Here each is chosen again by a procedure: every number of every rule about curves is multiplied by each of `FACTORS`
(of a ratio, its distance from 1), and for each repository the factor that does best on all *other* repositories is
taken. The logs of the repository are then judged with all thresholds chosen in this way. If the figures stay, they do
not depend on having seen the repository; what a person saw of the shape of a rule cannot be left out in this way.

Design
------
Thresholds are chosen one at a time, the others at their defaults, on the logs of at most `SHORT` rows: rules do not
read each other, so a variant replays one rule alone. Among factors that do equally well, the middle one is taken. The
final judgement uses every log, whole, with all rules. A factor's badness weighs the four figures by their goals.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from detection import SLOW, SUDDEN, Alarm, Run, Score, judge, read_corpus, repositories, table
from verdicts import Raised, progress

from caboose_daemon.config import build_rules
from caboose_daemon.offline.replay.logs import read_log
from caboose_daemon.offline.replay.player import play
from caboose_daemon.rules import RULES

ABOUT_CURVES = (
    "loss_spike",
    "divergence",
    "oscillation",
    "plateau",
    "not_learning",
    "overfitting",
    "underfitting",
    "gradient_explosion",
    "lr_too_low",
    "lr_too_high",
)
FACTORS = (0.5, 0.71, 1.0, 1.41, 2.0)
SHORT = 2000
WEIGHTS = {"paged": 1 / 0.01, "alarmed": 1 / 0.06, "sudden": 1 / 0.05, "slow": 1 / 0.15}
"""One over the share that each figure's goal allows."""


class Variant(NamedTuple):
    """One threshold at one factor."""

    rule: str
    key: str
    factor: float

    @property
    def tables(self) -> dict[str, dict[str, float]]:
        """The section of a configuration with it."""
        return {self.rule: {self.key: changed(_default(self.rule, self.key), self.factor)}}


def changed(value: float, factor: float) -> float:
    """A threshold at a factor: a ratio just above 1 by its distance from 1, a share below 1, a count at least 1."""
    if isinstance(value, int):
        return max(1, round(value * factor))
    if 1.0 < value <= 2.0:
        return 1.0 + (value - 1.0) * factor
    return min(value * factor, 0.99) if value < 1.0 else value * factor


def thresholds(rules: Iterable[str]) -> list[tuple[str, str]]:
    """Rule and key of every number."""
    classes = {rule.name: rule.config_class for rule in RULES}
    return [
        (rule, field.name)
        for rule in rules
        for field in fields(classes[rule])
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    ]


def _default(rule: str, key: str) -> float:
    config = build_rules("defaults", {})[rule]
    value: float = getattr(config, key)
    return value


def findings(path: Path, tables: Mapping[str, Mapping[str, float]], rule: str | None) -> list[Raised]:
    """What one rule, or all of them, report above info in a log."""
    chosen = RULES if rule is None else tuple(one for one in RULES if one.name == rule)
    found = play(read_log(path), build_rules("variant", tables), rules=chosen).findings
    return [Raised(f.rule, f.step, f.severity == "critical") for f in found]


def _of_variant(paths: Sequence[Path], variant: Variant) -> list[list[Raised]]:
    try:
        return [findings(path, variant.tables, variant.rule) for path in paths]
    except ValueError:  # two thresholds of a rule that contradict each other: no variant
        return []


def _alarms(raised: Iterable[Raised]) -> list[Alarm]:
    return [Alarm(r.rule, float(r.step), r.is_page) for r in raised]


def badness(score: Score) -> float:
    """The four figures over their goals."""
    shares = {
        "paged": len(score.paged) / max(score.num_healthy, 1),
        "alarmed": len(score.alarmed) / max(score.num_healthy, 1),
        **{
            name: 1.0 - caught / total if total else 0.0
            for name, (caught, total) in (("sudden", score.recall(SUDDEN)), ("slow", score.recall(SLOW)))
        },
    }
    return sum(WEIGHTS[name] * share for name, share in shares.items())


class Choosing:
    """The alarms of every variant on the short logs, and the choices made from them."""

    def __init__(self, runs: Sequence[Run], default: Mapping[str, list[Raised]]) -> None:
        self.runs = runs
        self._default = default
        self._variants: dict[Variant, dict[str, list[Raised]]] = {}

    def add(self, variant: Variant, raised: Sequence[list[Raised]]) -> None:
        """What the variant's rule reported in each run."""
        self._variants[variant] = dict(zip((run.id for run in self.runs), raised, strict=True))

    def tables_without(self, repo: str | None) -> dict[str, dict[str, float]]:
        """The thresholds that do best on all other repositories, where that is not the default."""
        kept = [run for run in self.runs if run.repo != repo]
        tables: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for rule, key in sorted({(v.rule, v.key) for v in self._variants}):
            best = self._best(kept, rule, key)
            if best.factor != 1.0:
                tables[rule] |= best.tables[rule]
        return dict(tables)

    def _best(self, runs: Sequence[Run], rule: str, key: str) -> Variant:
        scored = sorted(
            (round(self.badness(runs, variant), 9), variant.factor, variant)
            for variant in (Variant(rule, key, factor) for factor in FACTORS)
            if variant in self._variants or variant.factor == 1.0
        )
        tied = [variant for bad, _, variant in scored if bad == scored[0][0]]
        return tied[len(tied) // 2]

    def badness(self, runs: Sequence[Run], variant: Variant) -> float:
        """Of these runs, with one threshold changed."""
        other = self._variants.get(variant)
        alarms = {run.id: _alarms(self._with(run.id, variant.rule, other)) for run in runs}
        return badness(judge("", runs, alarms)[0])

    def _with(self, run: str, rule: str, other: Mapping[str, list[Raised]] | None) -> list[Raised]:
        if other is None:
            return self._default[run]
        return [r for r in self._default[run] if r.rule != rule] + other[run]


def judged_apart(
    root: Path, runs: Sequence[Run], choosing: Choosing, pool: ProcessPoolExecutor
) -> tuple[dict[str, list[Alarm]], Counter[tuple[str, str, float]]]:
    """The alarms of each run with the thresholds chosen without its repository, and how often each was moved."""
    moved: Counter[tuple[str, str, float]] = Counter()
    jobs = {}
    for repo in sorted({run.repo for run in runs}):
        tables = choosing.tables_without(repo)
        moved.update((rule, key, value) for rule, values in tables.items() for key, value in values.items())
        for run in runs:
            if run.repo == repo:
                jobs[run.id] = pool.submit(findings, root / "runs" / f"{run.id}.csv", tables, None)
    return {name: _alarms(job.result()) for name, job in jobs.items()}, moved


def main() -> int:
    """The exit code: 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of labelled logs; see bench/detection.py --help")
    parser.add_argument("--rules", default=",".join(ABOUT_CURVES), help="whose thresholds are chosen")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    runs = read_corpus(options.corpus)
    short = [run for run in runs if len(run.steps) <= SHORT]
    paths = [options.corpus / "runs" / f"{run.id}.csv" for run in runs]
    short_paths = [path for path, run in zip(paths, runs, strict=True) if len(run.steps) <= SHORT]
    wanted = [
        Variant(rule, key, factor)
        for rule, key in thresholds(options.rules.split(","))
        for factor in FACTORS
        if factor != 1.0
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        default = dict(zip((run.id for run in runs), pool.map(_of_defaults, paths), strict=True))
        choosing = Choosing(short, default)
        waiting = {variant: pool.submit(_of_variant, short_paths, variant) for variant in wanted}
        for num, (variant, job) in enumerate(waiting.items(), 1):
            progress(f"{num} of {len(wanted)} thresholds: {variant.rule}.{variant.key} x {variant.factor:g}")
            if raised := job.result():
                choosing.add(variant, raised)
        progress("judging each repository with the thresholds of the others")
        apart, moved = judged_apart(options.corpus, runs, choosing, pool)
    progress("")
    _print(runs, {run: _alarms(raised) for run, raised in default.items()}, apart)
    _print_moved(choosing, moved, len({run.repo for run in runs}))
    return 0


def _of_defaults(path: Path) -> list[Raised]:
    return findings(path, {}, None)


def _print(runs: Sequence[Run], default: Mapping[str, list[Alarm]], apart: Mapping[str, list[Alarm]]) -> None:
    scores = [
        judge("thresholds as shipped", runs, default)[0],
        judge("chosen without the repository", runs, apart)[0],
    ]
    print(table(scores))
    print(f"\nChosen without the repository that is judged:\n\n{repositories(scores[1])}\n")
    print(f"Missed: {', '.join(scores[1].missed) or 'none'}.")
    print(f"Healthy runs with an alarm: {', '.join(scores[1].alarmed) or 'none'}.\n")


def _print_moved(choosing: Choosing, moved: Counter[tuple[str, str, float]], num_repos: int) -> None:
    """Thresholds that another choice replaced, and what they would gain over all repositories."""
    print("| threshold | shipped | chosen | for repositories |\n| --- | ---: | ---: | ---: |")
    for (rule, key, value), num in sorted(moved.items()):
        print(f"| {rule}.{key} | {_default(rule, key):g} | {value:.3g} | {num} of {num_repos} |")


if __name__ == "__main__":
    sys.exit(main())
