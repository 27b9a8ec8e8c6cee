"""`caboose inspect TOOL module:function`: one tool of before the run, from the command line.

Design
------
The same function as for the checklist returns the parts, so a project writes it once. With `--checkpoint` the weights
are loaded first, to look at a run that is in trouble. argparse, since the daemon's command line is not installed in
the training environment; `caboose inspect` starts this.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from caboose.checklist.command import Problem, guarded, leave_group, parts_of, refusing

Parts = dict[str, Any]
TOOLS: dict[str, str] = {
    "gradients": "the gradient of every parameter, and the flow through the layers",
    "activations": "the output of every module: dead, saturated, flat, huge",
    "lr": "the learning rate range test",
    "one-batch": "whether one batch can be learned",
    "noise": "how noisy the gradient is, whether the batch is too small or too large, and where updates point",
    "sharpness": "how fast the loss rises around the weights",
    "nan": "which number becomes NaN or infinite first, on the first batch",
}
EPILOG = """\
train.py:parts is a function that returns a dict with model, loss_fn, loader and optimizer, as for caboose preflight.

Exit codes: 0 nothing was found; 1 something was found; 2 wrong usage, or it cannot be run (the message gives the
reason); 130 interrupted.

Example:
  caboose inspect gradients train.py:parts --plot flow.png
  caboose inspect activations train.py:parts --checkpoint step-4000.pt
  caboose inspect lr train.py:parts --plot lr.svg
  caboose inspect one-batch train.py:parts --target-loss 0.01
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    guarded("caboose inspect", lambda: run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool and prints its result; returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr), refusing(given.target):
            found, is_fine = _run(given)
            if given.plot is not None:
                _plot(found, given)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Problem("torch is not installed here; run it where the training runs") from None
    finally:
        if "torch" in sys.modules:
            leave_group()
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(f"{json.dumps(_plain(found), indent=2) if given.json else found}\n")
        if given.plot is not None and not given.json:
            sys.stdout.write(f"\n{given.plot}\n")
    return 0 if is_fine else 1


def _parser() -> argparse.ArgumentParser:
    shown = "\n".join(f"  {name:12} {about}" for name, about in TOOLS.items())
    parser = argparse.ArgumentParser(
        prog="caboose inspect",
        description=f"Runs one tool on your model, loss and data, and restores everything.\n\ntools:\n{shown}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tool", choices=TOOLS, metavar="TOOL")
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="returns the parts as a dict")
    parser.add_argument("--checkpoint", metavar="FILE", help="load these weights into the model first")
    parser.add_argument("--plot", metavar="FILE", help="write a chart: .png, .svg or .html")
    parser.add_argument("--num-batches", type=int, default=1, metavar="N", help="batches read (default 1; noise: 16)")
    parser.add_argument("--num-steps", type=int, default=100, metavar="N", help="for lr and one-batch (default 100)")
    parser.add_argument("--target-loss", type=float, metavar="X", help="for one-batch: learned at this loss")
    parser.add_argument("--saddle", action="store_true", help="for sharpness: find the smallest eigenvalue, too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _run(given: argparse.Namespace) -> tuple[Any, bool]:
    """The tool's result, and whether nothing was found."""
    parts = parts_of(given.target)
    if given.checkpoint is not None:
        _load(parts["model"], Path(given.checkpoint))
    return RUNS[given.tool](parts, given)


def _gradients(parts: Parts, given: argparse.Namespace) -> tuple[Any, bool]:
    from caboose.trials.diagnosing import diagnose_gradients

    found = diagnose_gradients(*_of(parts), num_batches=given.num_batches, split=parts.get("split"))
    return found, found.is_healthy


def _activations(parts: Parts, given: argparse.Namespace) -> tuple[Any, bool]:
    from caboose.trials.diagnosing import analyze_activations

    model, loss, loader = _of(parts)
    found = analyze_activations(model, loader, loss=loss, split=parts.get("split"))
    return found, found.is_healthy


def _lr(parts: Parts, given: argparse.Namespace) -> tuple[Any, bool]:
    from caboose.trials.find_lr import find_lr

    found = find_lr(*_of(parts), _optimizer(parts), num_steps=given.num_steps, split=parts.get("split"))
    return found, found.suggestion is not None


def _one_batch(parts: Parts, given: argparse.Namespace) -> tuple[Any, bool]:
    from caboose.trials.overfit import overfit_one_batch

    found = overfit_one_batch(
        *_of(parts),
        _optimizer(parts),
        num_steps=given.num_steps,
        target_loss=given.target_loss,
        split=parts.get("split"),
    )
    return found, found.verdict == "pass"


def _noise(parts: Parts, given: argparse.Namespace) -> tuple[Any, bool]:
    from caboose.trials.noise import gradient_noise

    num = given.num_batches if given.num_batches > 1 else 16
    found = gradient_noise(*_of(parts), parts.get("optimizer"), num_batches=num, split=parts.get("split"))
    return found, found.verdict != "small" and not found.is_uphill


def _sharpness(parts: Parts, given: argparse.Namespace) -> tuple[Any, bool]:
    from caboose.trials.sharpness import sharpness

    lr = max((float(group["lr"]) for group in _groups(parts)), default=None)
    found = sharpness(*_of(parts), num_batches=given.num_batches, lr=lr, saddle=given.saddle, split=parts.get("split"))
    return found, found.verdict != "sharp"


def _nan(parts: Parts, given: argparse.Namespace) -> tuple[Any, bool]:
    from caboose.hunting.direct import hunt_nan

    found = hunt_nan(*_of(parts), optimizer=parts.get("optimizer") or ())
    return found, not found.is_found


RUNS: dict[str, Callable[[Parts, argparse.Namespace], tuple[Any, bool]]] = {
    "gradients": _gradients,
    "activations": _activations,
    "lr": _lr,
    "one-batch": _one_batch,
    "noise": _noise,
    "sharpness": _sharpness,
    "nan": _nan,
}


def _of(parts: Parts) -> tuple[Any, Any, Any]:
    return parts["model"], parts["loss_fn"], parts["loader"]


def _optimizer(parts: Parts) -> Any:
    if not parts.get("optimizer"):
        raise Problem("this tool needs the optimizer; return it as 'optimizer'")
    return parts["optimizer"]


def _groups(parts: Parts) -> list[Any]:
    optimizer = parts.get("optimizer") or []
    each = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    return [group for one in each for group in one.param_groups]


def _load(model: Any, path: Path) -> None:
    """Weights from a file of torch.save: a state dict, or a mapping that holds one."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise Problem(f"--checkpoint {path}: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - not a file of torch.save, or one with objects in it
        raise Problem(f"--checkpoint {path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    names = set(model.state_dict())
    for found in _mappings(content):
        if names & set(found):
            model.load_state_dict(found)
            return
    raise Problem(f"--checkpoint {path}: it holds no weights of this model")


def _mappings(content: Any) -> list[Mapping[str, Any]]:
    if not isinstance(content, Mapping):
        return []
    return [content, *(value for value in content.values() if isinstance(value, Mapping))]


def _plot(found: Any, given: argparse.Namespace) -> None:
    if not hasattr(found, "plot"):
        raise Problem(f"--plot: {given.tool} has no chart")
    found.plot(given.plot)


def _plain(found: Any) -> Any:
    if hasattr(found, "as_json"):
        return found.as_json()
    from dataclasses import asdict

    return {**asdict(found), "says": found.says}


if __name__ == "__main__":
    main()
