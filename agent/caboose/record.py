"""One step's record between the two threads: filled on the training thread, made into a report by the sender."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from caboose_wire import Event, Phases, StepReport
from caboose_wire.messages import Float32

NO_GRADIENT = np.float32(-1.0)
"""Where a layer had no gradient: a norm is never negative, and NaN is a finding of its own."""


@dataclass(slots=True)
class StepRecord:
    """Everything about one step that does not depend on the device having finished, and what does, as `seen`."""

    attempt: int
    seq: int
    step: int
    model_step: int
    time: float
    num_samples: int | None
    phases: Phases
    metrics: dict[str, float]
    agent_seconds: float
    num_layers: int
    seen: Any  # an observer.Seen; naming its type here would import torch

    def is_ready(self) -> bool:
        """Whether the values have come off the device."""
        return self.seen.vector is None or self.seen.vector.is_ready()

    def message(self, num_dropped: int) -> StepReport:
        """The report; called on the sender's thread."""
        seen = self.seen
        values: Float32 = seen.vector.read() if seen.vector is not None else np.empty(0, dtype=np.float32)
        first = 1 if seen.has_loss else 0
        split = first + len(seen.rows)
        norms = values[first:split]
        local = values[split:]
        arrays = {}
        if len(seen.rows):
            arrays["grad_norm"] = _spread(norms, seen.rows, self.num_layers)
        if len(seen.local_rows):
            arrays["local_grad_norm"] = _spread(local, seen.local_rows, self.num_layers)
        return StepReport(
            attempt=self.attempt,
            seq=self.seq,
            step=self.step,
            model_step=self.model_step,
            time=self.time,
            loss=float(values[0]) if seen.has_loss else seen.loss,
            num_samples=self.num_samples,
            lr=seen.lr,
            phases=self.phases,
            metrics=self.metrics,
            grad_norm=_total(norms),
            local_grad_norm=_total(local),
            agent_seconds=self.agent_seconds,
            num_dropped=num_dropped,
            arrays=arrays,
        )


@dataclass(slots=True)
class EventRecord:
    """A declared event, in the same queue so that it keeps its place among the steps."""

    event: Event

    def is_ready(self) -> bool:
        """Always: an event holds no device values."""
        return True

    def message(self, num_dropped: int) -> Event:
        """The event itself."""
        return self.event


def _spread(norms: Float32, rows: Any, num_layers: int) -> Float32:
    spread = np.full(num_layers, NO_GRADIENT, dtype=np.float32)
    spread[rows] = norms
    return spread


def _total(norms: Float32) -> float | None:
    if not len(norms):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.sum(np.square(norms, dtype=np.float64))))
