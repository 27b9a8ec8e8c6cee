"""Verdicts that must not change: the same logs in other units, step numbers and cadences.

    python bench/metamorphic.py CORPUS                the table (about five minutes)
    python bench/metamorphic.py CORPUS --every 5      every fifth log
    make bench-metamorphic CORPUS=DIR

A verdict is what is raised above info in a whole log: rules and their highest severity. Each change of a log leaves
what happened in the run as it was, so the verdict must stay:

    scaled          the loss (and the validation loss) times 1,000 and divided by 1,000; gradient norms with it
    renumbered      steps times 7
    evaluated at 0  a validation loss before the first step, as high as the first loss, where there are later ones
    prefixed        the run continues a healthy one: a fall to its own first level comes before it. What is about the
                    first steps has another name then, so only whether anything is raised is compared. Not for runs
                    that are labelled as a plateau: one that fell to a third and is flat since has another history
    halved          neighbouring rows as one, their mean; only what lasts is compared (see LASTING)
    cut             the last third is missing: what is raised in the rest must be what the whole log has there
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from splices import MAX_POINTS, thinned
from verdicts import Raised, Verdicts

from caboose_daemon.config import load
from caboose_daemon.offline.replay.logs import Column, Log, read_log

LASTING = {"divergence", "overfitting", "not_learning", "plateau", "non_finite"}
"""Rules about conditions that last, which thinning by two must not hide."""
LOSSES = ("loss", "val_loss", "grad_norm")
UNCHANGED = "unchanged"
Verdict = dict[str, str]


def verdict(raised: Sequence[Raised], until: int | None = None) -> Verdict:
    """Rule to highest severity, above info; `until` leaves out what was raised after that step."""
    found: Verdict = {}
    for rule, step, is_page in raised:
        if until is None or step <= until:
            found[rule] = "critical" if is_page or found.get(rule) == "critical" else "warning"
    return found


def scaled(log: Log, factor: float) -> Log:
    """The losses in another unit."""
    columns = {
        name: Column(column.values * factor, column.is_logged) if name in LOSSES else column
        for name, column in log.columns.items()
    }
    return replace(log, columns=columns)


def renumbered(log: Log) -> Log:
    """A step has another number."""
    return replace(log, steps=log.steps * 7)


def with_rows_before(log: Log, rows: dict[str, list[float]], num: int) -> Log:
    """The log behind `num` rows of these columns; other columns have a gap there."""
    gap = max(1, int(np.median(np.diff(log.steps[:1000])))) if len(log.steps) > 1 else 1
    first = int(log.steps[0]) + gap * num
    columns = {}
    for name, column in log.columns.items():
        values = rows.get(name)
        before = np.zeros(num) if values is None else np.array(values)
        has = np.full(num, values is not None) & np.isfinite(before)
        columns[name] = Column(np.concatenate([before, column.values]), np.concatenate([has, column.is_logged]))
    steps = np.concatenate([int(log.steps[0]) + gap * np.arange(num), log.steps - log.steps[0] + first])
    return replace(log, steps=steps, columns=columns)


def evaluated_at_0(log: Log) -> Log | None:
    """A validation loss before training, as high as the first loss."""
    val, loss = log.columns.get("val_loss"), log.columns["loss"]
    if val is None or val.is_logged.sum() < 4 or not loss.is_logged.any():
        return None
    first = float(loss.values[loss.is_logged][0])
    later = float(val.values[val.is_logged][0])
    return with_rows_before(log, {"val_loss": [max(first, later)]}, 1) if np.isfinite(first) else None


def prefixed(log: Log) -> Log | None:
    """A healthy run of 60 rows that ends at this one's first level, with this one's scatter."""
    column = log.columns["loss"]
    values = column.values[column.is_logged]
    if len(values) < 20 or not (values[:10] > 0).all() or not np.isfinite(values[:10]).all():
        return None
    level = float(values[:3].max())  # a fall from the prefix to a steep start is no rise
    scatter = float(np.median(np.abs(np.diff(values[:20])))) / level if np.isfinite(values[:20]).all() else 0.01
    random = np.random.default_rng(1)
    fall = level * (1.0 + 2.0 * np.exp(-np.arange(60) / 12.0))
    return with_rows_before(log, {"loss": (fall * (1 + min(scatter, 0.1) * random.standard_normal(60))).tolist()}, 60)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of labelled logs, as bench/detection.py describes it")
    parser.add_argument("--every", type=int, default=1, help="take every n-th log (default: all)")
    parser.add_argument("--verbose", action="store_true", help="print each verdict that changed")
    options = parser.parse_args()
    if not (options.corpus / "index.csv").exists():
        parser.error(f"{options.corpus}: index.csv missing; bench/detection.py --help describes the corpus format")
    with (options.corpus / "index.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["excerpt"] != "1" and row["label"] != "ambiguous"]
    rows = rows[:: options.every]
    logs = {row["id"]: thinned(read_log(options.corpus / "runs" / f"{row['id']}.csv"), 1) for row in rows}
    work = [(row, name, log) for row in rows for name, log in changes(logs[row["id"]], row["label"])]
    found = Verdicts(load(None)).of(((f"{row['id']}, {name}", log) for row, name, log in work), len(work))
    tally: defaultdict[tuple[str, str], list[tuple[bool, str]]] = defaultdict(list)
    changed, whole = [], []
    for (row, name, _), raised in zip(work, found, strict=True):
        if name == UNCHANGED:
            whole = raised
            continue
        one, other = compared(name, logs[row["id"]], whole, raised)
        kind = "healthy" if row["label"] == "healthy" else "sick"
        tally[name, kind].append((one == other, row.get("repo") or row["id"]))
        if one != other:
            changed.append(f"{name:15} {row['id']:20} {one} -> {other}")
    print(f"{len(rows)} logs, at most {MAX_POINTS} rows of each. Verdicts that stay; mean over repositories.\n")
    print("| change | healthy logs | | sick logs | |\n| --- | ---: | ---: | ---: | ---: |")
    for name in dict.fromkeys(name for name, _ in tally):
        print(f"| {name} | {' | '.join(_share(tally[name, kind]) for kind in ('healthy', 'sick'))} |")
    if options.verbose:
        print("\n".join(["", *changed]))
    return 0


def _share(outcomes: Sequence[tuple[bool, str]]) -> str:
    """Logs with the same verdict, and the mean over repositories."""
    by_repo = defaultdict(list)
    for is_same, repo in outcomes:
        by_repo[repo].append(is_same)
    mean = fmean(fmean(same) for same in by_repo.values()) if by_repo else 0.0
    return f"{sum(same for same, _ in outcomes)} / {len(outcomes)} | {100 * mean:.0f} %"


def changes(log: Log, label: str) -> Iterator[tuple[str, Log]]:
    """The log itself, and each changed one that it can have, by the name of the change."""
    possible: dict[str, Callable[[], Log | None]] = {
        UNCHANGED: lambda: log,
        "times 1,000": lambda: scaled(log, 1e3),
        "divided by 1,000": lambda: scaled(log, 1e-3),
        "renumbered": lambda: renumbered(log),
        "evaluated at 0": lambda: evaluated_at_0(log),
        "prefixed": lambda: None if "plateau" in label else prefixed(log),
        "halved": lambda: thinned(log, 2) if len(log.steps) >= 40 else None,
        "cut": lambda: cut(log) if _kept(log) >= 20 else None,
    }
    for name, change in possible.items():
        other = change()
        if other is not None:
            yield name, other


def _kept(log: Log) -> int:
    return 2 * len(log.steps) // 3


def cut(log: Log) -> Log:
    """The first two thirds."""
    num = _kept(log)
    columns = {name: Column(c.values[:num], c.is_logged[:num]) for name, c in log.columns.items()}
    return replace(log, steps=log.steps[:num], columns=columns)


def compared(name: str, log: Log, whole: Sequence[Raised], other: Sequence[Raised]) -> tuple[Verdict, Verdict]:
    """The two verdicts that must be the same."""
    before, after = verdict(whole), verdict(other)
    if name == "prefixed":
        return before, before if bool(before) == bool(after) else after
    if name == "halved":
        lasting = ({rule: level for rule, level in one.items() if rule in LASTING} for one in (before, after))
        return next(lasting), next(lasting)
    if name == "cut":
        return verdict(whole, until=int(log.steps[_kept(log) - 1])), after
    return before, after


if __name__ == "__main__":
    sys.exit(main())
