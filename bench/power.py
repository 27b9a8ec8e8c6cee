"""Power curves: how small a fault the rules find, measured on faults spliced into real healthy logs.

    python bench/power.py CORPUS                the tables (about six minutes)
    python bench/power.py CORPUS --per-fault 6  a quick look
    make bench-power CORPUS=DIR

The corpus is that of `bench/detection.py`. Its healthy runs, whole and not ambiguous, get each fault of
`bench/splices.py` at a random place, at their own cadence and as means over 10 and 100 rows. A case is found if a
matching rule raises a warning or worse from three points before the onset on, and the untouched log raises none of
these rules there. The rate of false alarms is that of the untouched logs at the same cadence.

Repositories are divided in two halves by the hash of their name: `tune` may be looked at, `held` is only reported.
"""

import argparse
import csv
import hashlib
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

from detection import NAMES, SLACK, progress
from splices import FAULTS, Case, Fault, cases, thinned

from caboose_daemon.config import Config, load
from caboose_daemon.offline.replay.logs import Log, read_log
from caboose_daemon.offline.replay.player import play

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


def alarms_of(log: Log, config: Config) -> list[tuple[str, int, bool]]:
    """(rule, row, whether it pages) of every finding above info."""
    rows = {step: row for row, step in reversed(list(enumerate(log.steps.tolist())))}
    return [(f.rule, rows.get(f.step, 0), f.severity == "critical") for f in play(log, config.rules).findings]


def is_found(case: Case, raised: list[tuple[str, int, bool]], before: list[tuple[str, int, bool]]) -> bool:
    """Whether a matching rule spoke of the fault, and not of the run itself."""
    rules = RULES_OF[case.fault.kind]
    from_row = case.onset - SLACK
    own = {rule for rule, row, _ in before if row >= from_row}
    return any(rule in rules and row >= from_row and rule not in own for rule, row, _ in raised)


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of labelled logs, as bench/detection.py describes it")
    parser.add_argument(
        "--per-fault", type=int, default=24, help="cases of each fault and cadence (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", help="only faults whose kind begins with this")
    parser.add_argument("--config", type=Path, help="thresholds to judge by; the defaults otherwise")
    parser.add_argument("--output", type=Path, help="the results as JSON")
    options = parser.parse_args()
    if not (options.corpus / "index.csv").exists():
        parser.error(f"{options.corpus}: index.csv missing; bench/detection.py --help describes the corpus format")
    config = load(options.config)
    logs, repos = healthy_logs(options.corpus)
    faults = tuple(fault for fault in FAULTS if fault.kind.startswith(options.kind or ""))
    start = time.process_time()
    before: dict[tuple[str, int], list[tuple[str, int, bool]]] = {}
    tally: defaultdict[tuple[str, Fault, int], list[int]] = defaultdict(lambda: [0, 0])
    missed = []
    for number, case in enumerate(cases(logs, faults, per_fault=options.per_fault, seed=options.seed)):
        progress(f"case {number}: {case.fault.label} in {case.run}, every {case.thinned}")
        known = (case.run, case.thinned)
        if known not in before:
            before[known] = alarms_of(thinned(logs[case.run], case.thinned), config)
        raised = alarms_of(case.log, config)
        count = tally[half_of(repos[case.run]), case.fault, case.thinned]
        count[1] += 1
        if is_found(case, raised, before[known]):
            count[0] += 1
        else:
            missed.append((case.fault.label, case.run, case.thinned, case.onset))
    progress("")
    print(f"{sum(c[1] for c in tally.values())} cases, {time.process_time() - start:.0f} s of CPU.\n")
    print(report(faults, tally))
    healthy = defaultdict(lambda: [0, 0, 0])
    for (run, every), raised in before.items():
        count3 = healthy[half_of(repos[run]), every]
        count3[0] += 1
        count3[1] += bool(raised)
        count3[2] += any(page for *_, page in raised)
    print("\n| untouched logs | cadence | logs | any alarm | pages |\n| --- | ---: | ---: | ---: | ---: |")
    for (half, every), (num, alarmed, paged) in sorted(healthy.items()):
        print(f"| {half} | {every} | {num} | {alarmed} | {paged} |")
    if options.output:
        options.output.write_text(json.dumps({"missed": missed}, indent=1), encoding="utf-8")
    return 0


def report(faults: tuple[Fault, ...], tally: defaultdict[tuple[str, Fault, int], list[int]]) -> str:
    """A row for each fault: recall by half and cadence."""
    columns = [(half, every) for half in ("tune", "held") for every in (1, 10, 100)]
    lines = [
        "| fault | " + " | ".join(f"{half} x{every}" for half, every in columns) + " |",
        "| --- " + "| ---: " * len(columns) + "|",
    ]
    for fault in faults:
        cells = []
        for half, every in columns:
            found, num = tally[half, fault, every]
            cells.append(f"{found}/{num}" if num else "")
        if any(cells):
            lines.append(f"| {fault.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
