"""Defines a drill: a training job with a fault of known cause, and what must be reported about it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from caboose_drills.run import DrillRun


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One fault with its real cause, or, without a rule, a healthy run."""

    name: str
    """The name of its file."""
    about: str
    """One sentence for people: the fault and its cause."""
    train: Callable[[DrillRun], None]
    """Trains once: builds model and data from `run.seed`, attaches, steps `run.steps` times."""
    rule: str = ""
    """The rule that must fire; empty for a healthy run."""
    cause: str | tuple[str, ...] = ()
    """The id of the true cause; several where more than one is right."""
    companions: tuple[str, ...] = ()
    """Rules that may fire too, because they see the same fault; any other at warning or above is wrong."""
    severity: str = "warning"
    """The severity that the rule must reach to count as found; `info` only where the rule reports nothing higher."""
    origin_ranks: tuple[int, ...] = ()
    """The ranks on which it starts, where they can be known."""
    origin_layers: tuple[str, ...] = ()
    """The layers in which it starts, by name or by that of a parent; the finding must name one of them first."""
    fault_step: int = 0
    """The first faulty step; 0 if it is faulty from the start. A finding before it is a false alarm."""
    steps: int = 1000
    ranks: int = 1
    """With more than one, it runs under torchrun with gloo."""
    seconds: float = 5.0
    """Approximate duration of one seed."""
    settle_seconds: float = 0.0
    """How long after its processes end the daemon is queried; for faults that show as silence."""
    is_launched_per_seed: bool = False
    """Whether each seed needs separate processes, because they do not survive it."""
    is_side_by_side: bool = False
    """Whether all seeds are launched at once, because they mostly wait; only with a launch per seed."""
    may_fail: bool = False
    """Whether its processes end with an error by design."""

    @property
    def causes(self) -> tuple[str, ...]:
        """The ids that count as right."""
        return (self.cause,) if isinstance(self.cause, str) else self.cause

    def described(self) -> dict[str, Any]:
        """All fields except `train`, as plain values."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "train"}
        return {**values, "cause": list(self.causes)}
