"""What a monitor consists of: a shell from the beginning on, and the components that `attach` builds around it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caboose.governor import Governor
from caboose.guard import Guard
from caboose.observe.loader import BatchSkip
from caboose.observe.phases import PhaseClock
from caboose.report.session import Session
from caboose.report.step_count import StepCount
from caboose.report.step_reporter import StepReporter

if TYPE_CHECKING:
    from caboose.checkpoints.checkpointer import Checkpointer
    from caboose.hunting.hunter import Hunter
    from caboose.observe.observer import Observer
    from caboose.observe.parts import Outline
    from caboose.rollback.brake import Brake
    from caboose.rollback.skip_step import StepSkipper


class Shell:
    """The components that a monitor has from the beginning, also while it waits."""

    def __init__(self, start_step: int = 0, start_model_step: int | None = None) -> None:
        self.guard = Guard()
        self.clock = PhaseClock()
        self.skip = BatchSkip()
        self.count = StepCount(start_step, start_model_step, lambda error: self.guard.failed("step", error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What `attach` built for one rank, around a shell."""

    session: Session
    governor: Governor
    observer: "Observer"
    observe: "Callable[[Outline], Observer]"
    """Makes an observer of other models and optimizers, to take over from this one."""
    reporter: StepReporter
    make_hunter: "Callable[[], Hunter]"
    """For a hunt that the user calls, where hunting is off."""
    hunter: "Hunter | None" = None
    brake: "Brake | None" = None
    skipper: "StepSkipper | None" = None
    checkpointer: "Checkpointer | None" = None
