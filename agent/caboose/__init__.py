"""The agent: `caboose.attach(model, optimizer)` and the monitor it returns.

Importing this package needs no torch; attaching does. The tools for before the run are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from caboose.attachment.attach import attach
from caboose.checkpoints.plan import ResumePlan, resume_plan
from caboose.checkpoints.resuming import load_checkpoint
from caboose.monitor import Monitor
from caboose.rollback.errors import RollbackFailed, RollbackInDoubt
from caboose.settings.options import Checkpoints, Rollback, Sampling, Snapshots
from caboose.version import __version__

if TYPE_CHECKING:
    from caboose.checklist.batch_check import validate_batch
    from caboose.checklist.running import preflight
    from caboose.hunting.direct import hunt_nan
    from caboose.trials.diagnosing import analyze_activations, diagnose_gradients
    from caboose.trials.find_lr import find_lr
    from caboose.trials.inspecting import inspect
    from caboose.trials.noise import gradient_noise
    from caboose.trials.overfit import overfit_one_batch
    from caboose.trials.sharpness import sharpness

__all__ = [
    "Checkpoints",
    "Monitor",
    "ResumePlan",
    "Rollback",
    "RollbackFailed",
    "RollbackInDoubt",
    "Sampling",
    "Snapshots",
    "__version__",
    "analyze_activations",
    "attach",
    "diagnose_gradients",
    "find_lr",
    "gradient_noise",
    "hunt_nan",
    "inspect",
    "load_checkpoint",
    "overfit_one_batch",
    "preflight",
    "resume_plan",
    "sharpness",
    "validate_batch",
]

_BEFORE_THE_RUN = {
    "analyze_activations": "caboose.trials.diagnosing",
    "diagnose_gradients": "caboose.trials.diagnosing",
    "hunt_nan": "caboose.hunting.direct",
    "validate_batch": "caboose.checklist.batch_check",
    "find_lr": "caboose.trials.find_lr",
    "gradient_noise": "caboose.trials.noise",
    "inspect": "caboose.trials.inspecting",
    "overfit_one_batch": "caboose.trials.overfit",
    "preflight": "caboose.checklist.running",
    "sharpness": "caboose.trials.sharpness",
}
"""Their modules; all of them need torch."""


def __getattr__(name: str) -> Any:
    if name not in _BEFORE_THE_RUN:
        raise AttributeError(f"module 'caboose' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_BEFORE_THE_RUN[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RuntimeError(f"caboose.{name} needs torch, which is not installed here") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
