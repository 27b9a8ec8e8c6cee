"""How well faults are detected, distinguished and explained: every drill with 5 seeds, every healthy run with 20.

    make drills                                                     # measure all, write docs/drills.md
    make drills ARGS=--resume                                       # continue an interrupted measurement
    python bench/drills.py dead_units loss_spike --results r.json   # measure these, keep the others in the file

Without names everything is measured again. Results are stored in a file after each drill; with --resume, only missing
ones are measured.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from caboose_daemon.ops.drills import catalogue, results, scores, tables
from caboose_daemon.ops.drills.conduct import conduct


def main() -> int:
    """The exit code: 0 if every measured goal is met, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="drills, all or healthy; default: all and healthy")
    parser.add_argument("--resume", action="store_true", help="measure only what is missing in --results")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--twin-seeds", type=int, default=scores.TWIN_SEEDS)
    parser.add_argument("--first-seed", type=int, default=0, help="first seed")
    parser.add_argument("--results", type=Path, help="JSON file for the results")
    parser.add_argument("--output", type=Path, help="Markdown page to write")
    options = parser.parse_args()
    if options.resume and not options.results:
        parser.error("--resume needs --results, the file to go on with")
    console = Console()
    known = catalogue.read()
    try:
        kept = results.load(options.results) if options.results else {}
        chosen = known.named(tuple(options.names) or ("all", "healthy"))
    except ValueError as error:
        parser.error(str(error))
    kept, chosen = results.to_measure(chosen, kept, is_part=bool(options.names), is_resumed=options.resume)
    if kept:
        console.print(f"{len(kept)} results taken from {options.results}", highlight=False)

    def num_seeds(drill: catalogue.Drill) -> int:
        return int(options.twin_seeds if drill.is_healthy else options.seeds)

    for result in conduct(chosen, num_seeds, console, options.first_seed):
        kept[result.name] = result
        if options.results:
            results.save(options.results, kept.values())
        console.print(tables.terminal([result]))
        for outcome in result.outcomes:
            if outcome.error:
                console.print(f"  seed {outcome.seed}: {outcome.error}", markup=False)
    every = [drill.name for drill in (*known.drills, *known.healthy)]
    done = [kept[name] for name in every if name in kept]
    page = tables.markdown(done, "make drills")
    if options.output:
        options.output.write_text(page, encoding="utf-8")
    console.print(page, markup=False, highlight=False, soft_wrap=True)
    return 1 if any(goal.is_met is False for goal in scores.goals(done)) else 0


if __name__ == "__main__":
    sys.exit(main())
