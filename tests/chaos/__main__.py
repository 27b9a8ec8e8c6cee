"""Faults against real runs, from a seeded schedule, until the given minutes are over.

    make chaos SEED=1 MINUTES=12                one seed; an interrupted campaign goes on where it stopped
    make chaos SEED=1 ARGS='--episode 7'        one episode once more; its directory stays

Each episode is a run of two ranks under torchrun beside a daemon. Every loss must be what it is without Caboose, or
what a rollback that the daemon sent makes of it. Exit code 1 if an episode failed.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from chaos.campaign import Campaign, table
from chaos.episode import Result


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument("--directory", type=Path, default=Path("build/chaos"), help="for results and logs")
    parser.add_argument("--json", type=Path, help="also write the table's numbers to this file")
    parser.add_argument("--table", action="store_true", help="only show the table of all seeds so far")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = options.directory.resolve()
    if options.table:
        print(table(_all_results(directory)))
        return 0
    campaign = Campaign(options.seed, directory, lambda text: print(text, flush=True))
    try:
        if options.episode is not None:
            return 0 if campaign.again(options.episode).is_passed else 1
        campaign.run(options.minutes)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on: {campaign.file}")
        return 130
    finally:
        if campaign.results:
            print(table(campaign.results))
    if options.json:
        options.json.write_text(campaign.file.read_text())
    return 0 if all(result.is_passed for result in campaign.results) else 1


def _all_results(directory: Path) -> list[Result]:
    files = sorted(directory.glob("seed-*.json"))
    return [Result(**row) for file in files for row in json.loads(file.read_text())["episodes"]]


if __name__ == "__main__":
    sys.exit(main())
