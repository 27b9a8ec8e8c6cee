"""`caboose preflight module:function` (also `caboose-preflight`): the checklist from the command line.

Design
------
The function builds what the run would build (model, loss, loaders, optimizer) and returns it by name; its module is
imported as by the run's own script, from the current directory. Its output goes to stderr: stdout has only the report.
An exception is shown as it is, and is no failed check. Under torchrun every rank runs the checks and rank 0 prints.
argparse, since the daemon's command line is not installed in the training environment.
"""

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from caboose.version import __version__

PROGRAM = "caboose preflight"
EPILOG = """\
The function, in train.py:

  def parts():
      model, loader = make_model(), make_loader()
      return {
          "model": model,
          "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
          "loader": loader,
          "optimizer": torch.optim.AdamW(model.parameters(), lr=3e-4),
      }

What your code prints goes to stderr; stdout has the report alone.

Exit codes: 0 nothing failed; 1 a check failed, or with --strict one warned; 2 wrong usage, or nothing can be checked
(the message gives the reason); 130 interrupted.

Example:
  caboose preflight train:parts
  caboose preflight train.py:parts --skip overfits --json
  torchrun --nproc-per-node 2 --no-python caboose-preflight train:parts
"""


class Problem(Exception):
    """A mistake of the user; printed in one line."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `caboose-preflight` script."""
    guarded(PROGRAM, lambda: run(arguments))


def guarded(program: str, call: Callable[[], int]) -> NoReturn:
    """Runs a command and ends the process with its exit code; what the user's code raises is shown as it is."""
    try:
        code = call()
    except Problem as problem:
        sys.stderr.write(f"{program}: {problem}\n")
        code = 2
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        code = 130
    except Exception:  # noqa: BLE001 - the user's code, without which nothing can be checked
        traceback.print_exc()
        sys.stderr.write(f"{program}: your code raised this, so that nothing could be checked\n")
        code = 2
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Parses, checks and prints; returns the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        from caboose.checklist.catalogue import CHECKS
        from caboose.checklist.running import preflight
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Problem("torch is not installed here; run it where the training runs") from None
    if given.list:
        sys.stdout.write("".join(f"{check.name:22} {check.asks}\n" for check in CHECKS))
        return 0
    if given.target is None:
        parser.error("give module:function, as train:parts")
    options: dict[str, Any] = {
        name: value for name, value in vars(given).items() if name in OPTIONS and value is not None
    }
    try:
        with contextlib.redirect_stdout(sys.stderr), refusing(given.target):
            report = preflight(**{**parts_of(given.target), **options})
    finally:
        leave_group()
    if int(os.environ.get("RANK", "0")) == 0:
        has_colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        shown = json.dumps(report.as_json(), indent=2) if given.json else report.table(has_colors=has_colors)
        sys.stdout.write(f"{shown}\n")
    bad = ("fail", "warn") if given.strict else ("fail",)
    return int(report.grade in bad)


OPTIONS = ("num_batches", "overfit_steps", "overlap_seconds", "only", "skip", "progress")


@contextlib.contextmanager
def refusing(target: str) -> Iterator[None]:
    """Turns our own refusals, and the end of the user's script, into a problem of one line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not _is_ours(error):
            raise
        raise Problem(str(error)) from error
    except SystemExit as end:
        raise Problem(f"{target} called sys.exit({end.code!r})") from end


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Checks model, loss, data and optimizer before a run. Nothing is written, and nothing is kept.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="?", metavar="MODULE:FUNCTION", help="returns preflight's arguments as a dict")
    parser.add_argument("--num-batches", type=int, metavar="N", help="batches read from each loader (default 8)")
    parser.add_argument("--overfit-steps", type=int, metavar="N", help="steps on one batch (default 100)")
    parser.add_argument("--overlap-seconds", type=float, metavar="S", help="time to hash samples in (default 10)")
    parser.add_argument("--only", type=_names, metavar="NAME,NAME", help="make these checks only")
    parser.add_argument("--skip", type=_names, metavar="NAME,NAME", help="leave these checks out")
    parser.add_argument("--strict", action="store_true", help="warnings make the exit code 1, too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--no-progress", dest="progress", action="store_false", default=None, help="no progress bar")
    parser.add_argument("--list", action="store_true", help="list the checks and end")
    parser.add_argument("--version", action="version", version=f"caboose {__version__}")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parts_of(target: str) -> dict[str, Any]:
    """The result of the user's function, by the names of preflight's arguments."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise Problem(f"{target!r} is not module:function; write train:parts, or train.py:parts")
    function = getattr(_module(where), name, None)
    if not callable(function):
        raise Problem(f"{where} has no function {name!r}")
    parts = function()
    if not isinstance(parts, Mapping):
        raise Problem(f"{target} returned a {type(parts).__name__}; return a dict with model, loss_fn and loader")
    from caboose.checklist.running import preflight

    known = list(inspect.signature(preflight).parameters)
    for needed in ("model", "loss_fn", "loader"):
        if needed not in parts:
            raise Problem(f"{target} returned no {needed!r}; it returned {', '.join(map(str, parts)) or 'nothing'}")
    for given in parts:
        if given not in known:
            raise Problem(f"{target} returned {given!r}, which is none of {', '.join(known)}")
    return dict(parts)


def _module(where: str) -> Any:
    """The module, by name from the current directory first, or by file."""
    directory = os.getcwd()
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise Problem(f"there is no file {where}")
        directory, where = str(path.parent), path.stem
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not (where == error.name or where.startswith(f"{error.name}.")):
            raise  # an import inside the module
        raise Problem(f"there is no module {where!r} in {directory} or in the environment") from None


def _is_ours(error: Exception) -> bool:
    """Whether it is our refusal, and not an error of the user's code."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "caboose"


def leave_group() -> None:
    """Ends the process group that the function made under torchrun."""
    from torch import distributed as dist

    if dist.is_available() and dist.is_initialized() and "TORCHELASTIC_RUN_ID" in os.environ:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
