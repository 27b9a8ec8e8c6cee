"""Saves a step that was saved before, and is killed at each point at which names change on disk, one after the other.

    python saved_again.py OUT

OUT/<n> is a directory of checkpoints as it was left by a process that was killed just before its n-th change of a name,
or of a whole tree; the last one is that of a process that got through. OUT/points.json says which change each was.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from caboose.checkpoints.checkpointer import Checkpointer

STEP, OLD, NEW = 4, 4, 1
"""Of the step that is saved twice, `model_step` of the first and of the second."""


def a_run(weight: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, weight)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def save(directory: Path, step: int, model_step: int) -> None:
    model, optimizer = a_run(float(model_step))
    Checkpointer(directory, model, [optimizer]).save(step, model_step, raise_errors=True)


def die_before(number: int, points: Path) -> None:
    """From here on the number-th change of a name, or removal of a tree, is not lived to see."""
    left = [number]

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                named = [Path(a).name for a in arguments if isinstance(a, str | Path)]
                points.write_text(" ".join([change.__name__, *named]))
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return call

    Path.rename = watched(Path.rename)  # type: ignore[method-assign]  # as the kernel would do it
    shutil.rmtree = watched(shutil.rmtree)  # type: ignore[assignment]  # as above


def killed(directory: Path, number: int) -> bool:
    """Whether a process of its own was killed while it saved."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_before(number, directory.with_suffix(".point"))
            save(directory, STEP, NEW)
            code = 0
        except BaseException:  # noqa: BLE001 - it ends here, and not in what the parent was doing
            traceback.print_exc()
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    return ended != 0


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    save(out / "before", 2, 2)
    save(out / "before", STEP, OLD)
    points = []
    for number in range(1, 20):
        directory = Path(shutil.copytree(out / "before", out / str(number)))
        if not killed(directory, number):
            break
        points.append(directory.with_suffix(".point").read_text())
    (out / "points.json").write_text(json.dumps(points))


if __name__ == "__main__":
    main()
