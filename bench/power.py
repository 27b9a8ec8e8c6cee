"""Power curves: how small a fault the rules find, measured on faults spliced into real healthy logs.

    python bench/power.py CORPUS                 the tables (about six minutes on two free cores)
    python bench/power.py CORPUS --quick         a quarter of the cases
    python bench/power.py CORPUS --kind plateau  one kind of fault
    make bench-power CORPUS=DIR

The corpus is that of `bench/detection.py`. Its healthy runs, whole and not ambiguous, get each fault of
`bench/splices.py` at a random place, at their own cadence and as means over 10 and 100 rows. A case is found if a
matching rule raises a warning or worse from three points before the onset on, and the untouched log raises none of
these rules there. The rate of false alarms is that of the untouched logs at the same cadence.

Repositories are divided in two halves by the hash of their name: `tune` may be looked at, `held` is only reported.
The cases are drawn for each half by itself. Verdicts are remembered (see `verdicts`): a second look is free.
"""

import argparse
import csv
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from detection import NAMES, SLACK
from splices import CADENCES, FAULTS, Case, Fault, cases, thinned
from verdicts import Raised, Verdicts

from caboose_daemon.config import load
from caboose_daemon.offline.replay.logs import Log, read_log

RULES_OF = {
    "spike": NAMES["loss_spike"],
    "divergence": NAMES["divergence"] | {"oscillation"},
    "fast divergence": NAMES["divergence"] | {"loss_spike"},
    "plateau": NAMES["plateau"],
    "overfitting": NAMES["overfitting"],
    "oscillation": NAMES["oscillation"] | {"loss_spike", "divergence"},
    "nan": NAMES["nan"],
    "norm spike": NAMES["grad_spike"],
}
HALVES = ("tune", "held")
POWER = 0.95
ENOUGH = 8
"""Cases of one size below which no power is stated."""


@dataclass(frozen=True)
class Outcome:
    """One case, and whether it was found."""

    half: str
    fault: Fault
    thinned: int
    run: str
    repo: str
    onset: int
    is_found: bool


def half_of(repo: str) -> str:
    """The half that a repository belongs to."""
    return "tune" if hashlib.sha256(repo.encode()).digest()[0] % 2 else "held"


def healthy_logs(root: Path) -> tuple[dict[str, Log], dict[str, str]]:
    """The healthy logs of a corpus, by id, and the repository of each."""
    logs, repos = {}, {}
    with (root / "index.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["label"] == "healthy" and row["excerpt"] != "1":
                logs[row["id"]] = read_log(root / "runs" / f"{row['id']}.csv")
                repos[row["id"]] = row.get("repo") or row["id"]
    return logs, repos


def rows_of(log: Log, raised: Sequence[Raised]) -> list[tuple[str, int, bool]]:
    """(rule, row, whether it pages) of every finding above info."""
    rows = {step: row for row, step in reversed(list(enumerate(log.steps.tolist())))}
    return [(found.rule, rows.get(found.step, 0), found.is_page) for found in raised]


def is_found(case: Case, raised: list[tuple[str, int, bool]], before: list[tuple[str, int, bool]]) -> bool:
    """Whether a matching rule reported the fault, and not the run itself."""
    rules = RULES_OF[case.fault.kind]
    from_row = case.onset - SLACK
    own = {rule for rule, row, _ in before if row >= from_row}
    return any(rule in rules and row >= from_row and rule not in own for rule, row, _ in raised)


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of labelled logs, as bench/detection.py describes it")
    parser.add_argument(
        "--per-fault", type=int, default=24, help="cases of each fault, cadence and half (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", help="only faults whose kind begins with this")
    parser.add_argument("--half", choices=HALVES, help="only the repositories of this half")
    parser.add_argument("--config", type=Path, help="thresholds to judge by; the defaults otherwise")
    parser.add_argument("--output", type=Path, help="every case and whether it was found, as JSON")
    options = parser.parse_args()
    if not (options.corpus / "index.csv").exists():
        parser.error(f"{options.corpus}: index.csv missing; bench/detection.py --help describes the corpus format")
    logs, repos = healthy_logs(options.corpus)
    faults = tuple(fault for fault in FAULTS if fault.kind.startswith(options.kind or ""))
    per_fault = max(1, options.per_fault // 4) if options.quick else options.per_fault
    verdicts, start = Verdicts(load(options.config)), time.monotonic()

    halves = {name: log for name, log in logs.items() if options.half in (None, half_of(repos[name]))}
    every = [(name, num) for num in CADENCES for name in halves]
    untouched = {key: thinned(halves[key[0]], key[1]) for key in every}
    found = verdicts.of(((f"{name}, untouched", log) for (name, _), log in untouched.items()), len(untouched))
    before = {key: rows_of(untouched[key], raised) for key, raised in zip(untouched, found, strict=True)}

    spliced = []
    for half in HALVES:
        own = {name: log for name, log in halves.items() if half_of(repos[name]) == half}
        spliced += [(half, case) for case in cases(own, faults, per_fault=per_fault, seed=options.seed)]
    found = verdicts.of(((f"{case.fault.label} in {case.run}", case.log) for _, case in spliced), len(spliced))
    outcomes = []
    for (half, case), raised in zip(spliced, found, strict=True):
        is_one = is_found(case, rows_of(case.log, raised), before[case.run, case.thinned])
        outcomes.append(Outcome(half, case.fault, case.thinned, case.run, repos[case.run], case.onset, is_one))

    print(f"{len(outcomes)} cases in {len(halves)} logs, {time.monotonic() - start:.0f} s.\n")
    print(
        "\n\n".join((smallest(outcomes), summary(outcomes), recall(outcomes), false_alarms(before, untouched, repos)))
    )
    if options.output:
        options.output.write_text(json.dumps([_plain(o) for o in outcomes], indent=1), encoding="utf-8")
    return 0


def _plain(outcome: Outcome) -> dict[str, object]:
    return {
        "half": outcome.half,
        "fault": outcome.fault.label,
        "kind": outcome.fault.kind,
        "size": outcome.fault.size,
        "points": outcome.fault.points,
        "thinned": outcome.thinned,
        "run": outcome.run,
        "repo": outcome.repo,
        "onset": outcome.onset,
        "is_found": outcome.is_found,
    }


def smallest(outcomes: Sequence[Outcome]) -> str:
    """A row for each kind and duration: the smallest size from which on at least 95 % are found."""
    kinds = list(dict.fromkeys((o.fault.kind, o.fault.points) for o in outcomes))
    columns = [(half, every) for half in HALVES for every in CADENCES]
    lines = [
        "| fault, and how long | " + " | ".join(f"{half}, x{every}" for half, every in columns) + " |",
        "| --- " + "| ---: " * len(columns) + "|",
    ]
    for kind, points in kinds:
        cells = []
        for half, every in columns:
            some = [
                o for o in outcomes if (o.half, o.thinned, o.fault.kind, o.fault.points) == (half, every, kind, points)
            ]
            cells.append(_smallest(some))
        if any(cells):
            lasting = "to the end" if not points else f"{points} point{'s' if points > 1 else ''}"
            lines.append(f"| {kind}, {lasting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _smallest(outcomes: Sequence[Outcome]) -> str:
    """Sizes from the grossest one on, as long as their recall is enough."""
    by_size = defaultdict(list)
    for outcome in outcomes:
        by_size[outcome.fault.size if outcome.fault.kind != "nan" else 0.0].append(outcome.is_found)
    known = {size: found for size, found in by_size.items() if len(found) >= ENOUGH}
    if not known:
        return ""
    is_less_worse = outcomes[0].fault.kind == "plateau"
    last = None
    for size in sorted(known, reverse=not is_less_worse):
        if fmean(known[size]) < POWER:
            break
        last = size
    if last is None:
        return "not reached"
    return "found" if outcomes[0].fault.kind == "nan" else f"{last:g}"


def summary(outcomes: Sequence[Outcome]) -> str:
    """A row for each kind: recall over all its sizes, over cases and as the mean over repositories."""
    columns = [(half, every) for half in HALVES for every in CADENCES]
    lines = [
        "| all sizes | "
        + " | ".join(f"{half}, x{every}: cases, mean over repositories" for half, every in columns)
        + " |",
        "| --- " + "| ---: " * len(columns) + "|",
    ]
    for kind in dict.fromkeys(o.fault.kind for o in outcomes):
        cells = []
        for half, every in columns:
            some = [o for o in outcomes if (o.half, o.thinned, o.fault.kind) == (half, every, kind)]
            by_repo = defaultdict(list)
            for outcome in some:
                by_repo[outcome.repo].append(outcome.is_found)
            mean = fmean(fmean(found) for found in by_repo.values()) if by_repo else 0.0
            cells.append(f"{sum(o.is_found for o in some)}/{len(some)}, {100 * mean:.0f} %" if some else "")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def recall(outcomes: Sequence[Outcome]) -> str:
    """A row for each fault: recall by half and cadence."""
    columns = [(half, every) for half in HALVES for every in CADENCES]
    tally: defaultdict[tuple[str, str, int], list[bool]] = defaultdict(list)
    for outcome in outcomes:
        tally[outcome.fault.label, outcome.half, outcome.thinned].append(outcome.is_found)
    lines = [
        "| fault | " + " | ".join(f"{half} x{every}" for half, every in columns) + " |",
        "| --- " + "| ---: " * len(columns) + "|",
    ]
    for label in dict.fromkeys(outcome.fault.label for outcome in outcomes):
        found = [tally[label, half, every] for half, every in columns]
        lines.append(f"| {label} | {' | '.join(f'{sum(f)}/{len(f)}' if f else '' for f in found)} |")
    return "\n".join(lines)


def false_alarms(
    before: dict[tuple[str, int], list[tuple[str, int, bool]]],
    untouched: dict[tuple[str, int], Log],
    repos: dict[str, str],
) -> str:
    """A row for each half and cadence: the untouched logs that are alarmed or paged."""
    healthy: defaultdict[tuple[str, int], list[tuple[bool, bool]]] = defaultdict(list)
    for (run, every), raised in before.items():
        if len(untouched[run, every].steps) >= 2:
            healthy[half_of(repos[run]), every].append((bool(raised), any(page for *_, page in raised)))
    lines = ["| untouched logs | cadence | logs | any alarm | pages |", "| --- | ---: | ---: | ---: | ---: |"]
    for (half, every), verdicts in sorted(healthy.items(), reverse=True):
        alarmed, paged = (sum(values) for values in zip(*verdicts, strict=True))
        lines.append(f"| {half} | x{every} | {len(verdicts)} | {alarmed} | {paged} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
