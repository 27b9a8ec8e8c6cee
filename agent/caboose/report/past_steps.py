"""Steps that were taken before their optimizer was watched, reported once it is: loss, learning rates and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from caboose.report.record import SHORT_SECONDS
from caboose_wire import Phases, StepReport

if TYPE_CHECKING:
    import torch

    from caboose.tensors.readback import Readback


class PastStep(NamedTuple):
    """What is kept of a step until then."""

    loss: "torch.Tensor | None"
    lr: tuple[float, ...]
    time: float
    """When it ended, in Unix time."""
    seconds: float | None
    """Since the step before it ended; None where that is not known."""


@dataclass(slots=True)
class PastRecord:
    """One of them, on its way to the daemon."""

    past: PastStep
    attempt: int
    seq: int
    step: int
    model_step: int
    losses: "Readback | None"
    """Of all of them, where this one has a loss at `place`."""
    place: int

    @property
    def is_short(self) -> bool:
        """Whether a message for each such step would be too many."""
        return self.past.seconds is not None and self.past.seconds < SHORT_SECONDS

    def is_ready(self) -> bool:
        """Whether the loss is on the host."""
        return self.losses is None or self.losses.is_ready()

    def message(self, num_dropped: int) -> StepReport:
        """The report; called on the sender's thread."""
        past = self.past
        return StepReport(
            attempt=self.attempt,
            seq=self.seq,
            step=self.step,
            model_step=self.model_step,
            time=past.time,
            loss=None if self.losses is None else float(self.losses.read()[self.place]),
            lr=past.lr,
            phases=None if past.seconds is None else Phases(past.seconds),
            num_dropped=num_dropped,
        )


def read_back(steps: Sequence[PastStep]) -> "list[tuple[Readback | None, int]]":
    """For each step the losses that are copied to the host together, and its place among them."""
    known = [step.loss for step in steps if step.loss is not None]
    if not known:
        return [(None, 0)] * len(steps)
    import torch

    from caboose.tensors.readback import Readback

    device = known[0].device
    together = [loss.reshape(()).to(device, torch.float32, non_blocking=True) for loss in known]
    copied, place, found = Readback(torch.stack(together)), 0, list[tuple[Readback | None, int]]()
    for step in steps:
        found.append((None, 0) if step.loss is None else (copied, place))
        place += step.loss is not None
    return found
