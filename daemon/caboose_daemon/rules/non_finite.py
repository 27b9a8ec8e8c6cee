"""non_finite: NaN or infinity in inputs, activations, loss, gradients or weights; names where it started.

Design
------
The all-reduce spreads one rank's NaN to every rank within the step, so the origin is read from numbers that are not yet
mixed (see `origins`), once, at the first bad step, and kept: later everything is NaN everywhere.

Bad elements of the input name the origin but are no fault alone: models mask them. An activation that is not finite
while loss and gradients are is a warning where that module had been finite before. Where it was so at the first sample,
or did no harm, it is by design: scores masked with minus infinity, padded rows of a softmax.

A GradScaler finds its scale by overflowing: a skipped step changed nothing, so its bad gradients are counted and not
reported. A loss that is not finite is reported also then; it does not come from the scale.

A loss that was positive and then stays at exactly 0.0 is how some trainers print NaN.

One bad loss is a warning, and several in a row page. A row of a log stands for many steps: there a second one pages
however late it comes, and so does the last row, because nothing shows that the run went on.

A validation loss that is not finite any more while training is finite is a warning (see `bad_validation`).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caboose_daemon.rules.parts.bad_validation import BadValidation
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.hindsight import is_last
from caboose_daemon.rules.parts.origins import (
    BadModule,
    Origin,
    WatchedModules,
    bad_local_ranks,
    bad_weights,
    circumstances,
    locate,
    module_name,
    where,
)
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.scaling import SkippedSteps
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView

CIRCUMSTANCES = ("was_looked_into", "bad_inputs", "loss_is_infinite", "largest_activation")


@dataclass(frozen=True)
class NonFiniteConfig(RuleConfig):
    """Thresholds of non_finite."""

    zero_steps: int = 3
    """Steps with a loss of exactly 0.0, after a positive one, that count as NaN."""
    calm_steps: int = 3
    """Finite steps in a row before it is resolved."""


@dataclass(frozen=True)
class _Bad:
    """What is not finite in one step."""

    loss: bool
    gradient: bool
    module: BadModule | None
    weights: NDArray[np.intp]
    zero: bool

    @property
    def is_harmful(self) -> bool:
        return self.loss or self.gradient or self.zero or bool(len(self.weights))

    @property
    def is_any(self) -> bool:
        return self.is_harmful or self.module is not None


class NonFinite(Rule[NonFiniteConfig]):
    """NaN or infinity, and where it started."""

    name = "non_finite"
    config_class = NonFiniteConfig
    judges_parts = True
    needs = frozenset({"loss"})

    def __init__(self, config: NonFiniteConfig) -> None:
        super().__init__(config)
        self._origin: Origin | None = None
        self._was_positive = False
        self._num_zero = 0
        self._is_zero_usual = False
        """Whether the objective moves: where nothing is better than expected, the loss of a policy is 0."""
        self._skipped = SkippedSteps()
        self._num_skipped = 0
        self._modules = WatchedModules()
        self._validation = BadValidation()
        self._num_losses = 0
        self._num_bad_losses = 0
        self._validation_onset: int | None = None
        """The onset of a bad validation that is reported."""

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step with a bad number, with the origin of the first one."""
        step = view.step
        if step is None:
            return None
        self._num_losses += step.mean_loss is not None
        if view.events:
            self._validation.observe(view, step.step)
        if self._is_finite_log_row(step):
            return self._of_validation(step.step)
        is_skipped = self._skipped.observe(step)
        self._is_zero_usual = MOVING_OBJECTIVE in view.visible
        bad = self._look(step, is_skipped=is_skipped)
        if not bad.is_any:
            return self._calm(step) if self._origin is not None else self._of_validation(step.step)
        self._validation_onset = None
        if self._origin is None:
            self._origin = self._begin(view, step, bad)
        origin = self._origin
        origin.num_calm = 0
        origin.num_bad += bad.is_harmful
        origin.is_only_inside &= not bad.is_harmful
        if bad.loss and origin.loss_step is None:
            origin.loss_step = step.step
        self._refine(view, step, origin, bad)
        self._num_bad_losses += bad.loss
        is_critical = (bad.loss and bad.gradient) or origin.num_bad >= 2 or bad.zero or self._is_lost(view, step, bad)
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.CRITICAL if is_critical else Severity.WARNING),
            step=step.step,
            onset_step=origin.step,
            summary=self._summary(origin, step, bad),
            ranks=origin.ranks,
            layers=origin.layers,
            phase=origin.phase,
            values=self._values(origin, step),
        )

    def _is_lost(self, view: JobView, step: AlignedStep, bad: _Bad) -> bool:
        """Whether a row of a log, which stands for many steps, is not the first bad one, or is where the log ends."""
        if not (bad.loss and step.stands_for_many):
            return False
        return self._num_bad_losses >= 2 or is_last(view, self._num_losses)

    def resume(self, finding: Finding) -> None:
        """Keeps the origin; a loss that is now 0.0 was positive once."""
        num_bad = int(finding.values["steps"])
        lead = finding.values.get("steps_before_loss")
        self._origin = Origin(
            finding.onset_step,
            finding.ranks,
            finding.layers,
            finding.phase,
            num_bad=num_bad,
            is_only_inside=not num_bad,
            circumstances={name: finding.values[name] for name in CIRCUMSTANCES if name in finding.values},
        )
        if lead is not None or finding.values["ranks_with_bad_loss"]:
            self._origin.loss_step = finding.onset_step + int(lead or 0)
        self._was_positive = True

    def _look(self, step: AlignedStep, *, is_skipped: bool) -> _Bad:
        is_loss = bool(step.bad_loss_ranks)
        is_gradient = step.has_bad_grad_norm
        if not is_gradient and len(step.layer_grad_norm):
            is_gradient = bool(step.layer_grad_norm.is_bad.any())
        is_gradient = is_gradient or bool(bad_local_ranks(step))
        if is_skipped and is_gradient:
            self._num_skipped += 1
            is_gradient = False
        weights = bad_weights(step)
        is_harmful = is_loss or is_gradient or bool(len(weights))
        module = None
        if not is_skipped or is_loss:
            module = self._modules.look(step, is_harmful=is_harmful)
        is_zero = self._is_nan_as_zero(step) and not self._is_zero_usual
        return _Bad(is_loss, is_gradient, module, weights, is_zero)

    def _begin(self, view: JobView, step: AlignedStep, bad: _Bad) -> Origin:
        if bad.zero and not (bad.loss or bad.gradient):
            return Origin(step.step - self._num_zero + 1)
        origin = locate(view, step, module=bad.module, has_bad_gradient=bad.gradient)
        origin.is_only_inside = not bad.is_harmful
        origin.circumstances = circumstances(step, self._modules.largest)
        return origin

    def _refine(self, view: JobView, step: AlignedStep, origin: Origin, bad: _Bad) -> None:
        """A sample after the onset names the module, as long as the weights are still finite."""
        if origin.phase != "forward" or origin.layers or bad.module is None or len(bad.weights):
            return
        if step.layer_values("weight_norm") is not None and set(bad.module.ranks) & set(origin.ranks):
            origin.layers = module_name(view, bad.module.row)

    def _is_finite_log_row(self, step: AlignedStep) -> bool:
        """Whether the step has only a loss and a norm, both finite, as most rows of a log."""
        loss = step.mean_loss
        if self._origin is not None or step.reports or loss is None or not (loss > 0 and loss < math.inf):
            return False
        self._was_positive, self._num_zero = True, 0
        return not step.has_bad_grad_norm

    def _is_nan_as_zero(self, step: AlignedStep) -> bool:
        """Whether the loss was positive and has been exactly 0.0 for a while."""
        if step.mean_loss is None:
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
        summary = f"all numbers finite again after {origin.num_bad:,} bad steps"
        if origin.is_only_inside:
            self._modules.accept()
            summary = "non-finite activation did no harm: loss and gradients stayed finite"
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=origin.step,
            summary=summary,
            ranks=origin.ranks,
            layers=origin.layers,
            phase=origin.phase,
            state="resolved",
        )

    def _of_validation(self, step: int) -> Finding | None:
        """A finding while the last validation loss was not finite, and training is."""
        onset, last = self._validation.onset, self._validation_onset
        self._validation_onset = onset
        if onset is None and last is None:
            return None
        is_over = onset is None or (last is not None and onset != last)
        summary = f"validation loss is {self._validation.value:g} since step {onset}, training is finite"
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if is_over else Severity.WARNING),
            step=step,
            onset_step=last if is_over and last is not None else onset if onset is not None else step,
            summary="validation loss finite again" if is_over else summary,
            phase="validation",
            state="resolved" if is_over else "open",
            values={"steps": 0.0, "ranks_with_bad_loss": 0.0},
        )

    def _values(self, origin: Origin, step: AlignedStep) -> dict[str, float]:
        values = {
            "ranks_with_bad_loss": float(len(step.bad_loss_ranks)),
            "layers_with_bad_gradient": float(step.layer_grad_norm.is_bad.sum()),
            "steps": float(origin.num_bad),
            **origin.circumstances,
        }
        if origin.loss_step is not None and origin.loss_step > origin.step:
            values["steps_before_loss"] = float(origin.loss_step - origin.step)
        if self._num_skipped:
            values["skipped_steps"] = float(self._num_skipped)
        return values

    def _summary(self, origin: Origin, step: AlignedStep, bad: _Bad) -> str:
        if bad.zero:
            return f"loss exactly 0.0 for {self._num_zero:,} steps after positive values: NaN printed as 0?"
        lead = 0 if origin.loss_step is None else origin.loss_step - origin.step
        before = f" ({lead} step{'s' if lead > 1 else ''} before the loss)" if lead > 0 else ""
        started = f"started at step {origin.step:,}{before} in the {origin.phase or 'step'} on {where(origin)}"
        if bad.loss:
            return f"loss is {step.loss[step.bad_loss_ranks[0]]:g}; {started}"
        if bad.gradient:
            norm = "not finite" if step.grad_norm is None else f"{step.grad_norm:g}"
            return f"gradient norm is {norm}; {started}"
        if len(bad.weights):
            return f"weights of {len(bad.weights)} layers are not finite; {started}"
        return f"activation not finite, loss and gradient finite; {started}"
