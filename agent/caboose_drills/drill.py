"""What a drill is: a training job with a disease of known cause, and what must be said about it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from caboose_drills.run import DrillRun


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One disease with its genuine cause, or, without a rule, a healthy run."""

    name: str
    """The name of its file."""
    about: str
    """One sentence for people: the disease and what causes it."""
    train: Callable[[DrillRun], None]
    """Trains once: builds model and data from `run.seed`, attaches, steps `run.steps` times."""
    rule: str = ""
    """The rule that must fire; empty for a healthy run."""
    cause: str | tuple[str, ...] = ()
    """The id of the true cause; several where the same thing has more than one right name."""
    companions: tuple[str, ...] = ()
    """Rules that may fire too, because they see the same disease; any other at warning or above is wrong."""
    severity: str = "warning"
    """How loud the rule must be to count as found; `info` only where that is all it ever says."""
    origin_ranks: tuple[int, ...] = ()
    """The ranks on which it starts, where they can be known."""
    origin_layers: tuple[str, ...] = ()
    """The layers it begins in, by name or by the name of what holds them; the finding must name one of them first."""
    fault_step: int = 0
    """The first step that is wrong; 0 if it is so from the start. Whatever is said before it is wrong."""
    steps: int = 1000
    ranks: int = 1
    """With more than one, it runs under torchrun with gloo."""
    seconds: float = 5.0
    """About what one seed takes."""
    settle_seconds: float = 0.0
    """How long after its processes are gone the daemon is asked; for what shows by silence."""
    is_launched_per_seed: bool = False
    """Whether each seed needs processes of its own, because they do not survive it."""
    is_side_by_side: bool = False
    """Whether all seeds are launched at once, because they mostly wait; only with a launch per seed."""
    may_fail: bool = False
    """Whether its processes end with an error by design."""

    @property
    def causes(self) -> tuple[str, ...]:
        """The ids that are right."""
        return (self.cause,) if isinstance(self.cause, str) else self.cause

    def described(self) -> dict[str, Any]:
        """All but `train`, as plain values."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "train"}
        return {**values, "cause": list(self.causes)}
