"""scheduler_state: whether the schedule continues where it was after a restart.

Design
------
A given checkpoint (what your code saves, or a function that returns it) is searched for the scheduler's state. Without
one, only the scheduler itself is tested: its state is taken, it makes some steps, the state is loaded again, and it
must make the same steps again.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from caboose.checklist.flight import Flight
from caboose.checklist.verdict import CheckResult, failed, passed, skipped

ASKS = "Does the schedule survive a restart?"
NUM_STEPS = 3
SAVE = "save scheduler.state_dict() beside the model, or pass scheduler= to attach and use monitor.checkpoint()"
MAX_DEPTH = 4


def run(flight: Flight) -> CheckResult:
    """Searches the checkpoint for the state, and tests it."""
    scheduler = flight.scheduler
    if scheduler is None:
        return skipped("no scheduler was given", "pass scheduler=, if the run has one")
    kind = type(scheduler).__name__
    if not (hasattr(scheduler, "state_dict") and hasattr(scheduler, "load_state_dict")):
        return failed(
            kind, f"a {kind} has no state_dict and load_state_dict", "use one of torch's schedulers, or give it both"
        )
    state = copy.deepcopy(scheduler.state_dict())
    checkpoint = flight.checkpoint() if callable(flight.checkpoint) else flight.checkpoint
    if checkpoint is not None and not _holds(checkpoint, state):
        return failed("not saved", f"the checkpoint does not hold the state of the {kind}", SAVE)
    groups = [group for optimizer in flight.trial.optimizers for group in optimizer.param_groups]
    if groups and not _needs_metric(scheduler):
        before = [float(group["lr"]) for group in groups]
        ahead = _rates(scheduler, groups)
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate
        scheduler.load_state_dict(state)
        if _rates(scheduler, groups) != ahead:
            return failed(
                "changes",
                f"after load_state_dict the {kind} gives other rates",
                "put all that it counts with into its state_dict",
            )
    if checkpoint is None:
        return skipped(
            f"the {kind} can be restored; whether your checkpoints hold it is not known",
            "pass checkpoint=, what your code saves; monitor.checkpoint() saves what attach(scheduler=...) was given",
        )
    return passed("saved", f"the checkpoint holds the {kind}, which can be restored")


def _rates(scheduler: Any, groups: list[dict[str, Any]]) -> list[float]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an optimizer without steps in between
        for _ in range(NUM_STEPS):
            try:
                scheduler.step()
            except ValueError:  # a finished schedule refuses to step
                break
            found += [float(group["lr"]) for group in groups]
    return found


def _needs_metric(scheduler: Any) -> bool:
    return type(scheduler).__name__ == "ReduceLROnPlateau"


def _holds(tree: Any, state: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a mapping in it has the state's keys, which are rarely another object's."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(tree, Mapping):
        if state and set(state) <= set(tree):
            return True
        return any(_holds(value, state, depth + 1) for value in tree.values())
    if isinstance(tree, list | tuple):
        return any(_holds(value, state, depth + 1) for value in tree[:100])
    return False
