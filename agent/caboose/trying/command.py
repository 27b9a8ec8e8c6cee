"""`python -m caboose.trying.command SCRIPT:FUNCTION --change NAME=VALUE`: both sides, as one JSON object.

`caboose try` starts this, judges the two curves, and keeps the verdict. argparse, since the daemon's command line is
not installed in the training environment.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from caboose.checklist.command import Problem, guarded, leave_group, parts_of, refusing
from caboose.trials.progress import ProgressLine

LEAST, MOST = 20, 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    guarded("caboose try", lambda: run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Trains both sides and prints what they did."""
    given = _parser().parse_args(arguments)
    if not LEAST <= given.steps <= MOST:
        raise Problem(f"--steps {given.steps}: give {LEAST} to {MOST}")
    os.environ["CABOOSE_DISABLED"] = "1"  # an attach() in the user's function reports nothing
    try:
        with contextlib.redirect_stdout(sys.stderr), refusing(given.target):
            answer = _both(given)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Problem("torch is not installed here; run it where the training runs") from None
    finally:
        if "torch" in sys.modules:
            leave_group()
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="caboose try")
    parser.add_argument("target", metavar="SCRIPT:FUNCTION")
    parser.add_argument("--change", action="append", required=True, metavar="NAME=VALUE")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _both(given: argparse.Namespace) -> dict[str, object]:
    from caboose.trying.changes import parse
    from caboose.trying.running import train

    changes = [parse(text) for text in given.change]
    with ProgressLine(2 * given.steps) as bar:
        sides = [
            train(
                lambda: parts_of(given.target),
                side,
                num_steps=given.steps,
                checkpoint=given.checkpoint,
                seed=given.seed,
                show=lambda step, name=name: bar.show(f"{name}: step {step} of {given.steps}"),  # type: ignore[misc]
            )
            for name, side in (("without", []), ("with", changes))
        ]
    return {
        "changes": [str(change) for change in changes],
        "without": sides[0].as_json(),
        "with": sides[1].as_json(),
    }


if __name__ == "__main__":
    main()
