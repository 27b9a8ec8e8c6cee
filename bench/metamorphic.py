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
                    first steps has another name then, so only whether anything is raised is compared
    halved          neighbouring rows as one, their mean; only what lasts is compared (see LASTING)
    cut             the last third is missing: what is raised in the rest must be what the whole log has there
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from detection import progress
from splices import MAX_POINTS, thinned

from caboose_daemon.config import load
from caboose_daemon.offline.replay.logs import Column, Log, read_log
from caboose_daemon.offline.replay.player import play
from caboose_daemon.rules.parts.rule import RuleConfig

LASTING = {"divergence", "overfitting", "not_learning", "plateau", "non_finite"}
"""Rules about conditions that last, which thinning by two must not hide."""
LOSSES = ("loss", "val_loss", "grad_norm")
Verdict = dict[str, str]


def verdict(log: Log, configs: dict[str, RuleConfig], until: int | None = None) -> Verdict:
    """Rule to highest severity, above info; `until` leaves out what was raised from that row on."""
    last = None if until is None else int(log.steps[until - 1])
    found: Verdict = {}
    for finding in play(log, configs).findings:
        if last is None or finding.step <= last:
            is_page = finding.severity == "critical" or found.get(finding.rule) == "critical"
            found[finding.rule] = "critical" if is_page else "warning"
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
    level = float(np.median(values[:3]))
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
    configs = load(None).rules
    tally: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    changed = []
    with (options.corpus / "index.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["excerpt"] != "1" and row["label"] != "ambiguous"]
    for number, row in enumerate(rows[:: options.every]):
        progress(f"{number} of {len(rows) // options.every}: {row['id']}")
        log = thinned(read_log(options.corpus / "runs" / f"{row['id']}.csv"), 1)  # at most MAX_POINTS rows
        kind = "healthy" if row["label"] == "healthy" else "sick"
        whole = verdict(log, configs)
        for name, one, other in compared(log, whole, configs):
            count = tally[name, kind]
            count[1] += 1
            count[0] += one == other
            if one != other:
                changed.append(f"{name:15} {row['id']:20} {one} -> {other}")
    progress("")
    print(f"{len(rows[:: options.every])} logs, at most {MAX_POINTS} rows of each.\n")
    print("| change | healthy logs with the same verdict | sick logs with the same verdict |\n| --- | ---: | ---: |")
    for name in dict.fromkeys(name for name, _ in tally):
        cells = [f"{tally[name, kind][0]} / {tally[name, kind][1]}" for kind in ("healthy", "sick")]
        print(f"| {name} | {' | '.join(cells)} |")
    if options.verbose:
        print("\n".join(["", *changed]))
    return 0


def compared(log: Log, whole: Verdict, configs: dict[str, RuleConfig]) -> list[tuple[str, Verdict, Verdict]]:
    """(name of the change, verdict before, verdict after) for each change that this log can have."""
    changes: dict[str, Callable[[], Log | None]] = {
        "times 1,000": lambda: scaled(log, 1e3),
        "divided by 1,000": lambda: scaled(log, 1e-3),
        "renumbered": lambda: renumbered(log),
        "evaluated at 0": lambda: evaluated_at_0(log),
        "prefixed": lambda: prefixed(log),
    }
    results = []
    for name, change in changes.items():
        other = change()
        if other is not None:
            after = verdict(other, configs)
            is_other = name == "prefixed" and bool(whole) == bool(after)
            results.append((name, whole, whole if is_other else after))
    if len(log.steps) >= 40:
        kept = {rule: severity for rule, severity in whole.items() if rule in LASTING}
        halved = verdict(thinned(log, 2), configs)
        results.append(("halved", kept, {rule: severity for rule, severity in halved.items() if rule in LASTING}))
    num = 2 * len(log.steps) // 3
    if num >= 20:
        cut = replace(
            log,
            steps=log.steps[:num],
            columns={name: Column(c.values[:num], c.is_logged[:num]) for name, c in log.columns.items()},
        )
        results.append(("cut", verdict(log, configs, until=num), verdict(cut, configs)))
    return results


if __name__ == "__main__":
    sys.exit(main())
