"""Counts what is raised on healthy runs of reinforcement learning and of adversarial networks, over several seeds.

    python tests/field/seeds.py --all ~/src --seeds 10

A run is `python -m caboose` on the unchanged script. A page is a finding of severity
critical; a line per run names what was raised, and the table at the end counts it.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import run
from cases import Case, healthy

CASES = {case.name: case for case in healthy.CASES}
SEVERITIES = ("critical", "warning", "info")


def main() -> int:
    arguments = _parse()
    arguments.torchvision = run.prepare_torchvision(arguments)
    root, work = Path(arguments.all).expanduser().resolve(), Path(arguments.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    for name in arguments.case or CASES:
        checkout = run.checkout_of(CASES[name], root)
        if not checkout.is_dir():
            print(f"{name}: no checkout of {CASES[name].repository} in {root}", file=sys.stderr)
            continue
        for seed in range(1, arguments.seeds + 1):
            kept = work / f"{name}-{seed}.json"
            if not kept.exists() or arguments.again:
                kept.write_text(json.dumps(run_seed(CASES[name], seed, checkout, work / f"{name}-{seed}", arguments)))
            raised = json.loads(kept.read_text())
            print(f"{name} {seed}: exit {raised['exit']}; {'; '.join(raised['raised']) or 'nothing'}", flush=True)
    print(table(work))
    return 0


def run_seed(case: Case, seed: int, checkout: Path, work: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """One run with this seed."""
    shutil.rmtree(work, ignore_errors=True)
    code = work / "watched" / "code"
    shutil.copytree(checkout / case.part, code, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    if case.prepare is not None:
        case.prepare(code)
    command = tuple(part.replace("{seed}", str(seed)) for part in case.command)
    seeded = replace(case, command=command, env={**case.env, "FIELD_SEED": str(seed)})
    with run.running_daemon(work / "daemon", arguments.python) as daemon:
        env = {"CABOOSE_ENDPOINT": daemon.endpoint, "CABOOSE_JOB": case.name}
        try:
            ran = run.run_command(seeded, code, work / "watched", env, ("-m", "caboose"), arguments)
        except subprocess.TimeoutExpired:
            return {"exit": "timeout", "raised": []}
        time.sleep(1.0)
        _, raised = daemon.findings()
    journal = run.compare.read_journal(work / "daemon" / "data" / "journal.sqlite")
    run.write_curves(journal, work / "curves.csv")
    shutil.rmtree(code, ignore_errors=True)
    return {"exit": ran.code, "raised": raised, "steps": len(journal)}


def table(work: Path) -> str:
    """Runs, steps, and how many findings of each severity were raised in how many runs."""
    lines = ["| case | runs | steps | critical | warning | info | rules |", "|---" * 7 + "|"]
    for name in CASES:
        results = [json.loads(path.read_text()) for path in sorted(work.glob(f"{name}-[0-9]*.json"))]
        if not results:
            continue
        rules = Counter(each.split()[0] for result in results for each in result["raised"])
        counts = [
            sum(each.split()[1] == severity for result in results for each in result["raised"])
            for severity in SEVERITIES
        ]
        steps = f"{min(r.get('steps', 0) for r in results):,} to {max(r.get('steps', 0) for r in results):,}"
        named = ", ".join(f"{rule} {count}" for rule, count in rules.most_common()) or "-"
        lines.append(f"| {name} | {len(results)} | {steps} | {' | '.join(map(str, counts))} | {named} |")
    return "\n".join(lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Counts what is raised on healthy runs, over several seeds.")
    parser.add_argument("--all", required=True, metavar="DIR", help="the directory with the checkouts")
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help="a case; may be repeated")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each case (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="also runs that have a result")
    parser.add_argument("--work", metavar="DIR", default="field-seeds", help="results and logs (default: %(default)s)")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter with torch and what the code base needs"
    )
    parser.add_argument("--path", default="", help="more directories for the script's PYTHONPATH")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one run (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
