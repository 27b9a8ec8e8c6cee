"""Detection quality on labelled logs of real runs: false alarms, recall and delay, compared with other systems' rules.

    python bench/detection.py CORPUS                the table
    python bench/detection.py CORPUS --check        exit code 1 if a goal is missed
    make bench-detection CORPUS=DIR

The corpus is a directory:

    index.csv       a row per run; id, label, onset, excerpt, repo and split are read. label: healthy, ambiguous
                    (excluded), or kinds joined by ";"; onset: kind@step joined by ";"; excerpt: 1 for a few pasted
                    lines, scored separately; repo and split (a set of logs, for --split) may be missing
    events.csv      id, kind, onset_step, severity: further events of a run. An alarm on one that is `minor` is neither
                    a hit nor false; `best_before_divergence` is where a divergence is first detectable
    runs/<id>.csv   step, loss, grad_norm, lr, val_loss; empty: not logged; nan and inf are literal
    peer_detectors.py   optional: other systems' rules, RULES = {name: rule}, rule(columns) -> indices, and read(path)

Design
------
A healthy run counts as alarmed if anything above info is raised in it outside its minor events: page, if critical. A
label is caught by an alarm of a matching rule, from three points before its onset on; NaN and divergence only by a
page. Other systems' rules have no names and no severities: every alarm of theirs counts for every label as a page.

Runs of one repository are alike, so each figure is stated twice: over runs, and as the mean over repositories of the
share of each one's runs.
"""

import argparse
import bisect
import csv
import importlib.util
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verdicts import Verdicts, progress

from caboose_daemon.config import Config, ConfigError, load
from caboose_daemon.offline.replay.logs import LogError, read_log

ANY = "*"
SLACK = 3
"""Tolerance in points before an onset and around a minor event."""
BROKEN = {"loss_spike", "divergence", "gradient_explosion", "non_finite", "lr_too_high", ANY}
NAMES: dict[str, set[str]] = {
    "loss_spike": BROKEN | {"oscillation"},
    "divergence": BROKEN | {"overfitting"},
    "transient_divergence": BROKEN | {"oscillation"},
    "nan": {"non_finite", ANY},
    "grad_nan": {"non_finite", ANY},
    "val_nan": {"non_finite", ANY},
    "loss_zero_collapse": {"non_finite", ANY},
    "grad_spike": {"gradient_explosion", "loss_spike", ANY},
    "overfitting": {"overfitting"},
    "plateau": {"plateau", "not_learning", "lr_too_low", "underfitting"},
    "oscillation": {"oscillation", "lr_too_high"},
}
"""Which rules name which label."""
SUDDEN = ("loss_spike", "divergence", "nan")
SLOW = ("overfitting", "plateau", "oscillation")
NEED_A_PAGE = ("nan", "divergence")


@dataclass(frozen=True)
class Alarm:
    """An alarm: its rule, its time, and whether it pages."""

    rule: str
    step: float
    is_page: bool = True


@dataclass
class Run:
    """One labelled run."""

    id: str
    labels: list[str]
    onsets: dict[str, float]
    is_excerpt: bool
    steps: list[float]
    minor: list[tuple[str, float | None]]
    repo: str = ""

    @property
    def is_healthy(self) -> bool:
        return self.labels == ["healthy"]

    def place(self, step: float) -> int:
        """The index of the first point at or after a step."""
        return bisect.bisect_left(self.steps, step)

    def is_minor(self, alarm: Alarm) -> bool:
        """Whether an alarm falls on a minor event."""
        at = self.place(alarm.step)
        for kind, onset in self.minor:
            if kind == "init_transient":
                if at <= max(10, len(self.steps) // 50):
                    return True
            elif onset is not None and abs(at - self.place(onset)) <= SLACK:
                return True
        return False


@dataclass
class Score:
    """The score of one set of rules."""

    name: str
    paged: list[str] = field(default_factory=list)
    alarmed: list[str] = field(default_factory=list)
    num_healthy: int = 0
    total: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    delays: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    outcomes: defaultdict[tuple[str, str], list[bool]] = field(default_factory=lambda: defaultdict(list))
    """By what is counted and repository: of each run, whether it was paged, alarmed or caught."""

    def by_repository(self, *what: str) -> tuple[float, int]:
        """The mean over repositories of the share of their runs, and the number of repositories."""
        shares = defaultdict(list)
        for (kind, repo), outcomes in self.outcomes.items():
            if kind in what:
                shares[repo] += outcomes
        means = [statistics.fmean(outcomes) for outcomes in shares.values()]
        return (statistics.fmean(means) if means else 0.0), len(means)

    def recall(self, kinds: Sequence[str]) -> tuple[int, int]:
        """Caught, of how many, over these labels."""
        return sum(self.caught[kind] for kind in kinds), sum(self.total[kind] for kind in kinds)


def number(text: str) -> float | None:
    """A cell as a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return None


def read_corpus(root: Path, split: str | None = None) -> list[Run]:
    """The runs that are not ambiguous, of one set or of all."""
    events = defaultdict(list)
    with (root / "events.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            events[row["id"]].append(row)
    runs = []
    with (root / "index.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            labels = row["label"].split(";")
            if "ambiguous" in labels or split not in (None, row.get("split")):
                continue
            steps = read_log(root / "runs" / f"{row['id']}.csv").steps.astype(float).tolist()
            onsets: dict[str, float] = {}
            for part in filter(None, row["onset"].split(";")):
                kind, _, at = part.partition("@")
                onsets[kind] = number(at) or (steps[0] if steps else 0.0)
            for event in events[row["id"]]:
                best = number(event["onset_step"])
                if event["kind"] == "best_before_divergence" and "divergence" in labels and best is not None:
                    onsets["divergence"] = min(onsets.get("divergence", best), best)
            minor = [(e["kind"], number(e["onset_step"])) for e in events[row["id"]] if e["severity"] == "minor"]
            runs.append(
                Run(row["id"], labels, onsets, row["excerpt"] == "1", steps, minor, row.get("repo") or row["id"])
            )
    return runs


def judge(name: str, runs: Sequence[Run], alarms: Mapping[str, Sequence[Alarm]]) -> tuple[Score, Score]:
    """The score over whole runs, and the one over excerpts."""
    whole, excerpts = Score(name), Score(name)
    for run in runs:
        score = excerpts if run.is_excerpt else whole
        raised = alarms.get(run.id, ())
        if run.is_healthy:
            false = [alarm for alarm in raised if not run.is_minor(alarm)]
            score.num_healthy += 1
            if false:
                score.alarmed.append(f"{run.id} ({false[0].rule})")
            is_paged = any(alarm.is_page for alarm in false)
            if is_paged:
                score.paged.append(run.id)
            score.outcomes["paged", run.repo].append(is_paged)
            score.outcomes["alarmed", run.repo].append(bool(false))
            continue
        for label in run.labels:
            if label in NAMES:
                _judge_label(score, run, label, raised)
    return whole, excerpts


def _judge_label(score: Score, run: Run, label: str, raised: Sequence[Alarm]) -> None:
    onset = run.place(run.onsets.get(label, run.steps[0] if run.steps else 0.0))
    fitting = [
        run.place(alarm.step)
        for alarm in raised
        if alarm.rule in NAMES[label]
        and run.place(alarm.step) >= onset - SLACK
        and (alarm.is_page or label not in NEED_A_PAGE)
    ]
    score.total[label] += 1
    score.outcomes[label, run.repo].append(bool(fitting))
    if fitting:
        score.caught[label] += 1
        score.delays[label].append(min(fitting) - onset)
    else:
        score.missed.append(f"{run.id} ({label})")


def of_caboose(root: Path, runs: Sequence[Run], config: Config) -> dict[str, list[Alarm]]:
    """The alarms of our rules."""
    logs = ((run.id, read_log(root / "runs" / f"{run.id}.csv")) for run in runs)
    raised = Verdicts(config).of(logs, len(runs))
    return {
        run.id: [Alarm(r.rule, float(r.step), r.is_page) for r in found]
        for run, found in zip(runs, raised, strict=True)
    }


def of_peers(root: Path, runs: Sequence[Run]) -> dict[str, dict[str, list[Alarm]]]:
    """The alarms of other systems' rules, by system, if the corpus has them."""
    path = root / "peer_detectors.py"
    if not path.exists():
        return {}
    spec = importlib.util.spec_from_file_location("peer_detectors", path)
    assert spec is not None, "a file that exists has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    alarms: dict[str, dict[str, list[Alarm]]] = {name: {} for name in module.RULES}
    for done, run in enumerate(runs):
        progress(f"other systems, {done} of {len(runs)}: {run.id}")
        columns = module.read(root / "runs" / f"{run.id}.csv")
        for name, rule in module.RULES.items():
            alarms[name][run.id] = [Alarm(ANY, columns["step"][i] or 0.0) for i in rule(columns)]
    return alarms


def table(scores: Sequence[Score]) -> str:
    """Markdown, ours first."""
    lines = [
        "| rules | healthy runs paged | healthy runs with any alarm | spike, divergence, NaN | overfitting, plateau,"
        " oscillation |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for score in scores:
        sudden, slow = score.recall(SUDDEN), score.recall(SLOW)
        lines.append(
            f"| {score.name} | {len(score.paged)} / {score.num_healthy} | {len(score.alarmed)} / {score.num_healthy} |"
            f" {sudden[0]} / {sudden[1]} | {slow[0]} / {slow[1]} |"
        )
    return "\n".join(lines)


def repositories(score: Score) -> str:
    """Markdown: our figures over runs, and as the mean over repositories."""
    sudden, slow = score.recall(SUDDEN), score.recall(SLOW)
    rows = (
        ("healthy runs paged", len(score.paged), score.num_healthy, ("paged",)),
        ("healthy runs with any alarm", len(score.alarmed), score.num_healthy, ("alarmed",)),
        ("spike, divergence, NaN caught", *sudden, SUDDEN),
        ("overfitting, plateau, oscillation caught", *slow, SLOW),
        *((f"{kind} caught", *score.recall((kind,)), (kind,)) for kind in SLOW),
    )
    lines = ["| | runs | mean over repositories | repositories |", "| --- | ---: | ---: | ---: |"]
    for name, num, total, what in rows:
        mean, repos = score.by_repository(*what)
        lines.append(f"| {name} | {num} / {total} | {100 * mean:.1f} % | {repos} |")
    return "\n".join(lines)


def details(score: Score, excerpts: Score) -> str:
    """By label: caught, and the median delay in logged points; then missed labels and false alarms."""
    lines = ["| label | caught | median delay, points |", "| --- | ---: | ---: |"]
    for label in sorted(score.total):
        delay = statistics.median(score.delays[label]) if score.delays[label] else float("nan")
        lines.append(f"| {label} | {score.caught[label]} / {score.total[label]} | {delay:g} |")
    pasted = ", ".join(
        f"{label} {excerpts.caught[label]} / {excerpts.total[label]}" for label in sorted(excerpts.total)
    )
    lines += [
        "",
        f"Excerpts of a few pasted lines, scored separately: {pasted}.",
        f"Missed: {', '.join(score.missed) or 'none'}.",
    ]
    lines += [f"Healthy runs with an alarm: {', '.join(score.alarmed) or 'none'}."]
    return "\n".join(lines)


def goals(score: Score, bloom: Sequence[Alarm] | None) -> list[tuple[str, bool]]:
    """The goals, and whether each is met."""
    sudden, slow = score.recall(SUDDEN), score.recall(SLOW)
    allowed = max(1, score.num_healthy // 91), max(1, 9 * score.num_healthy // 91)
    reached = [
        (f"pages on {len(score.paged)} healthy runs, at most {allowed[0]}", len(score.paged) <= allowed[0]),
        (f"any alarm on {len(score.alarmed)} healthy runs, at most {allowed[1]}", len(score.alarmed) <= allowed[1]),
        (f"spike, divergence, NaN {sudden[0]} of {sudden[1]}, at least 14 of 15", sudden[0] * 15 >= 14 * sudden[1]),
        (f"overfitting, plateau, oscillation {slow[0]} of {slow[1]}, at least 11 of 14", slow[0] * 14 >= 11 * slow[1]),
    ]
    if bloom is not None:
        early = [a for a in bloom if a.rule == "gradient_explosion" and a.step < 31_219]
        reached.append(("BLOOM-176B: the gradient norm warns before the loss peaks at 31,219", bool(early)))
    return reached


def main() -> int:
    """Prints the tables; 1 if --check and a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of labelled logs, as described above")
    parser.add_argument("--config", type=Path, help="thresholds to judge by; the defaults otherwise")
    parser.add_argument("--split", help="only the runs of this set")
    parser.add_argument(
        "--alone", action="store_true", help="without other systems' rules, which take most of the time"
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 if a goal is missed")
    parser.add_argument("--bloom", default="bigsci_03", help="id of the BLOOM-176B excerpt (default: %(default)s)")
    options = parser.parse_args()
    missing = [name for name in ("index.csv", "events.csv", "runs") if not (options.corpus / name).exists()]
    if missing:
        parser.error(f"{options.corpus}: {', '.join(missing)} missing; --help describes the corpus format")
    try:
        config = load(options.config)
        runs = read_corpus(options.corpus, options.split)
    except (ConfigError, LogError, KeyError) as error:
        parser.error(str(error))
    start = time.monotonic()
    ours = of_caboose(options.corpus, runs, config)
    seconds = time.monotonic() - start
    score, excerpts = judge("**Caboose**", runs, ours)
    peers = {} if options.alone else of_peers(options.corpus, runs)
    others = [judge(name, runs, alarms)[0] for name, alarms in peers.items()]
    progress("")
    points = sum(len(run.steps) for run in runs)
    verdicts = goals(score, ours.get(options.bloom))
    print(f"{len(runs)} runs, {points:,} points, replayed in {seconds:.1f} s (verdicts are remembered).\n")
    print(table([score, *others]))
    print()
    print(repositories(score))
    print()
    print(details(score, excerpts))
    print()
    for text, is_met in verdicts:
        print(f"{'ok    ' if is_met else 'MISSED'} {text}")
    return 0 if not options.check or all(is_met for _, is_met in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
