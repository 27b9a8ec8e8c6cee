"""`python -m caboose_drills`: lists the drills, and trains one. `caboose drill` calls it and judges the findings."""

import argparse
import json
import sys

from caboose_drills.catalogue import DRILLS, HEALTHY, find
from caboose_drills.launch import here, launch


def main() -> int:
    """The exit code: 0 trained, 1 a seed failed, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m caboose_drills", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all drills as JSON")
    for command, about in (("run", "train every seed as a job of its own"), ("rank", "the same, as one of its ranks")):
        one = commands.add_parser(command, help=about)
        one.add_argument("name", choices=[drill.name for drill in DRILLS + HEALTHY], metavar="NAME")
        one.add_argument("--seeds", default="0", help="such as 0,1,2")
        one.add_argument("--prefix", help="jobs are called PREFIX-SEED; drill-NAME unless given")
    options = parser.parse_args()
    if options.command == "list":
        listed = {"drills": [d.described() for d in DRILLS], "healthy": [d.described() for d in HEALTHY]}
        sys.stdout.write(json.dumps(listed) + "\n")
        return 0
    seeds = [int(seed) for seed in options.seeds.split(",")]
    train = launch if options.command == "run" else here
    return train(find(options.name), seeds, options.prefix or f"drill-{options.name}")


if __name__ == "__main__":
    sys.exit(main())
