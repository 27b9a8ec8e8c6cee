"""non_finite: NaN or infinity in loss or gradients, and where it began.

Design
------
The all-reduce spreads one rank's NaN to every rank within the step, so the origin is read from what is not yet
mixed: a rank's own loss (the forward went wrong there), else its own gradients before the reduction where the step
was sampled. A NaN in the backward flows towards the input, so the layer nearest the output that shows it is where it
began. Where neither can be seen the layer is named and the rank is left open, not guessed.

A loss that was positive and then stands at exactly 0.0 is how some trainers print NaN.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.aligned import AlignedStep
from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.view import JobView


@dataclass(frozen=True)
class NonFiniteConfig(RuleConfig):
    """Thresholds of non_finite."""

    zero_steps: int = 3
    """Steps with a loss of exactly 0.0, after a positive one, that count as a hidden NaN."""
    calm_steps: int = 3
    """Finite steps in a row after which the episode is over."""


@dataclass
class _Origin:
    step: int
    ranks: tuple[int, ...]
    layers: tuple[str, ...]
    phase: str
    num_bad: int = 0
    num_calm: int = 0


class NonFinite(Rule[NonFiniteConfig]):
    """NaN or infinity, with its origin."""

    name = "non_finite"
    config_class = NonFiniteConfig
    needs = frozenset({"loss"})

    def __init__(self, config: NonFiniteConfig) -> None:
        super().__init__(config)
        self._origin: _Origin | None = None
        self._was_positive = False
        self._num_zero = 0

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step with a bad number, naming the first one's origin."""
        step = view.step
        if step is None:
            return None
        layers = tuple(layer.name for layer in view.layers)
        bad_loss = bool(step.bad_loss_ranks)
        bad_gradient = (step.has_grad_norm and not np.isfinite(step.grad_norm)) or _bad_local_ranks(step) != ()
        is_zero = self._is_hidden_by_zero(step)
        if not (bad_loss or bad_gradient or is_zero):
            return self._calm(step)
        if self._origin is None:
            self._origin = self._locate(step, layers, is_zero=is_zero)
        origin = self._origin
        origin.num_bad += 1
        origin.num_calm = 0
        is_critical = (bad_loss and bad_gradient) or origin.num_bad >= 2 or is_zero
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.CRITICAL if is_critical else Severity.WARNING),
            step=step.step,
            onset_step=origin.step,
            summary=self._summary(origin, step, bad_loss=bad_loss, is_zero=is_zero),
            ranks=origin.ranks,
            layers=origin.layers,
            phase=origin.phase,
            values={
                "ranks_with_bad_loss": float(len(step.bad_loss_ranks)),
                "layers_with_bad_gradient": float(np.sum(~np.isfinite(step.layer_grad_norm))),
                "steps": float(origin.num_bad),
            },
        )

    def resume(self, finding: Finding) -> None:
        """The origin stays the one that was found; a loss that stands at 0.0 was positive once."""
        num_bad = int(finding.values["steps"])
        self._origin = _Origin(finding.onset_step, finding.ranks, finding.layers, finding.phase, num_bad)
        self._was_positive = True

    def _is_hidden_by_zero(self, step: AlignedStep) -> bool:
        if not step.has_loss.any():
            return False
        if step.mean_loss == 0.0:
            self._num_zero += 1
        else:
            self._num_zero = 0
            self._was_positive |= step.mean_loss > 0.0
        return self._was_positive and self._num_zero >= self.config.zero_steps

    def _calm(self, step: AlignedStep) -> Finding | None:
        origin = self._origin
        if origin is None:
            return None
        origin.num_calm += 1
        if origin.num_calm < self.config.calm_steps:
            return None
        self._origin = None
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=origin.step,
            summary=f"all numbers are finite again after {origin.num_bad} bad steps",
            ranks=origin.ranks,
            layers=origin.layers,
            phase=origin.phase,
            state="resolved",
        )

    def _locate(self, step: AlignedStep, layers: tuple[str, ...], *, is_zero: bool) -> _Origin:
        if step.bad_loss_ranks:
            return _Origin(step.step, step.bad_loss_ranks, (), "forward")
        if is_zero:
            return _Origin(step.step - self._num_zero + 1, (), (), "")
        local = _bad_local_ranks(step)
        norms = step.local_layer_grad_norm[local[0]] if local else step.layer_grad_norm
        return _Origin(step.step, local, _nearest_output(norms, layers), "backward")

    def _summary(self, origin: _Origin, step: AlignedStep, *, bad_loss: bool, is_zero: bool) -> str:
        if is_zero:
            return f"the loss has been exactly 0.0 for {self._num_zero} steps after it was positive: a hidden NaN?"
        where = f"rank {origin.ranks[0]}" if len(origin.ranks) == 1 else _ranks(origin.ranks)
        layer = f", layer {origin.layers[0]}" if origin.layers else ""
        what = "loss" if bad_loss else "gradient"
        value = step.loss[step.bad_loss_ranks[0]] if bad_loss else step.grad_norm
        return f"{what} is {value:g}; it began at step {origin.step} in the {origin.phase or 'step'} on {where}{layer}"


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "an unknown rank"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _bad_local_ranks(step: AlignedStep) -> tuple[int, ...]:
    bad = (rank for rank, norms in step.local_layer_grad_norm.items() if not np.isfinite(norms).all())
    return tuple(sorted(bad))


def _nearest_output(norms: NDArray[np.floating], layers: tuple[str, ...]) -> tuple[str, ...]:
    bad = np.flatnonzero(~np.isfinite(norms))
    return (layers[int(bad[-1])],) if len(bad) and bad[-1] < len(layers) else ()
