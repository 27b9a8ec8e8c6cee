"""A step in a few numbers: what is kept in memory, written to the journal, and drawn."""

from dataclasses import dataclass

import numpy as np

from caboose_daemon.steps.aligned import AlignedStep


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One aligned step, reduced. None means not reported; NaN means that NaN was reported."""

    attempt: int
    step: int
    time: float
    loss: float | None
    loss_min: float | None
    loss_max: float | None
    grad_norm: float | None
    lr: float | None
    """Of the first parameter group."""
    step_seconds: float | None
    data_seconds: float | None
    agent_seconds: float | None
    num_ranks: int
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    num_samples: int | None = None
    """Of all ranks together; None where a rank did not say."""
    num_tokens: int | None = None

    @property
    def samples_per_second(self) -> float | None:
        """Samples of all ranks over the mean time that the step took."""
        return self._rate(self.num_samples)

    @property
    def tokens_per_second(self) -> float | None:
        """Likewise."""
        return self._rate(self.num_tokens)

    def _rate(self, count: int | None) -> float | None:
        return count / self.step_seconds if count is not None and self.step_seconds else None


def summarize(step: AlignedStep) -> StepSummary:
    """The few numbers of an aligned step."""
    losses = step.loss[step.has_loss]
    finite = losses[np.isfinite(losses)]
    agent = step.agent_seconds[step.present]
    return StepSummary(
        attempt=step.attempt,
        step=step.step,
        time=step.time,
        loss=step.mean_loss,
        loss_min=float(finite.min()) if len(finite) else None,
        loss_max=float(finite.max()) if len(finite) else None,
        grad_norm=step.grad_norm,
        lr=_finite(step.lr[0]) if step.lr else None,
        step_seconds=step.phase_seconds("total"),
        data_seconds=step.phase_seconds("data"),
        agent_seconds=float(agent.mean()) if len(agent) else None,
        num_ranks=step.num_present,
        forward_seconds=step.phase_seconds("forward"),
        backward_seconds=step.phase_seconds("backward"),
        optimizer_seconds=step.phase_seconds("optimizer"),
        num_samples=step.num_samples,
        num_tokens=step.num_tokens,
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
