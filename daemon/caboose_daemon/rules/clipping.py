"""clipping: gradient clipping acts on most steps, on none, or on gradients that still have the scaler's scale.

Design
------
Clipping is a safeguard for rare steps. The share of clipped steps is an exponential average in which each step counts
the same however strongly it was clipped, so no outlier moves it far. Where most steps are clipped, the clipping and not
the learning rate sets the step length. Norms are large while the rate warms up, so those steps are not counted. A
clipping that has never acted is an info: its limit may be far above the norms of this run.

It has lasted since the first step of the share that is reported, whatever the step of the report.

Frequent clipping alone harms nothing. It is an info where the loss falls and steps are not cut to a tenth, and with an
optimizer that divides the gradient by its own size, as Adam does: a limit that cuts all steps alike changes none.

A clipper that is called before `GradScaler.unscale_` compares its limit with gradients that are multiplied by the
scale, often 65,536. It then acts on nearly every step and shortens all of them to the same tiny norm. That is a mistake
in the loop, whatever the share, so it is reported after `scaled_steps`, and the share is not judged.

In reinforcement learning and adversarial training the scale of a loss is that of rewards or of the other network, and
clipping every step is the usual way to a step length that does not depend on it. There it is an info.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.scale_free import is_scale_free
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView

CALM = 0.9
"""Share of the threshold below which it is resolved."""
TENTH = 0.1
"""Share of its length to which the typical step is cut, below which clipping slows a run however the loss falls."""
CLEARLY = 3.0
"""Standard errors by which a loss has fallen."""
MIN_HALF = 10
MIN_SEEN = 20
"""Steps with norms over a memory's length, where norms are taken more rarely than at every step."""


@dataclass(frozen=True)
class ClippingConfig(RuleConfig):
    """Thresholds of clipping."""

    share: float = 0.5
    """Share of clipped steps above which it is reported."""
    ruling_share: float = 0.8
    """Share above which the summary adds that clipping sets the step length."""
    memory_steps: int = 200
    """Steps over which the share is taken; nothing is judged before as many."""
    scaled_steps: int = 10
    """Steps clipped before the scale was removed after which that is reported."""
    quiet_steps: int = 1000
    """Steps without any clipping after which that is reported."""


class Clipping(LastingRule[ClippingConfig]):
    """Clipping that acts on most steps, on none, or before the scale is removed."""

    name = "clipping"
    config_class = ClippingConfig
    needs = frozenset({"clipping"})
    muted_in = frozenset({"startup", "warmup", "resume"})

    def __init__(self, config: ClippingConfig) -> None:
        super().__init__(config)
        self._share = 0.0
        self._num_steps = 0
        self._num_clipped = 0
        self._largest = 0.0
        self._num_scaled = 0
        self._losses: deque[float] = deque(maxlen=config.memory_steps)
        self._ratios: deque[float] = deque(maxlen=config.memory_steps)
        self._steps: deque[int] = deque(maxlen=config.memory_steps)

    def _typical_ratio(self) -> float:
        return statistics.median(self._ratios) if self._ratios else 1.0

    def _is_falling(self) -> bool:
        """Whether the loss is clearly lower in the second half of the steps that are remembered."""
        half = len(self._losses) // 2
        if half < MIN_HALF:
            return False
        before, after = list(self._losses)[:half], list(self._losses)[-half:]
        error = math.hypot(statistics.pstdev(before), statistics.pstdev(after)) / math.sqrt(half)
        return statistics.fmean(before) - statistics.fmean(after) > CLEARLY * error

    def observe(self, view: JobView) -> Finding | None:
        """A warning while most steps are clipped; an info while none ever was."""
        step = view.step
        ratio = None if step is None else step.clip_ratio
        if step is None or ratio is None or (norm := step.finite_grad_norm) is None:
            return None
        is_clipped = ratio < 1.0
        if step.clipped_scale is not None and step.clipped_scale > 1.0 and is_clipped:
            return self._scaled(step.step, norm, ratio, step.clipped_scale)
        if self._last is not None and "scaled" in self._last.values:
            self._num_scaled = 0
            return self._resolved(step.step, "gradients are clipped without the scale")
        self._num_steps += 1
        self._num_clipped += is_clipped
        self._largest = max(self._largest, norm)
        self._ratios.append(ratio)
        self._steps.append(step.step)
        if step.mean_loss is not None and math.isfinite(step.mean_loss):
            self._losses.append(step.mean_loss)
        self._share += (is_clipped - self._share) / min(self._num_steps, self.config.memory_steps)
        is_quiet = self._num_clipped == 0
        was_quiet = self._last is not None and "never" in self._last.values
        if self.is_open and was_quiet and not is_quiet:
            return self._resolved(step.step, f"clipping acted at a norm of {norm:.3g}")
        if is_quiet and self._num_steps >= self.config.quiet_steps:
            return self._found(
                Severity.INFO,
                step.step,
                f"clipping never acted in {self._num_steps:,} steps, largest norm {self._largest:.3g}",
                values={"share": 0.0, "never": 1.0},
            )
        limit = self.config.share * (CALM if self.is_open else 1.0)
        spans = self._num_steps >= MIN_SEEN and step.step - self._steps[0] >= self.config.memory_steps
        if self._num_steps < self.config.memory_steps and not (self.is_open or spans):
            return None
        if self._share <= limit:
            return self._resolved(
                step.step, f"{100 * self._share:.0f} % of steps clipped, limit {100 * self.config.share:.0f} %"
            )
        is_ruling = self._share > self.config.ruling_share
        harms = (
            MOVING_OBJECTIVE not in view.visible
            and not is_scale_free([group.optimizer for group in view.groups])
            and (self._typical_ratio() < TENTH or not self._is_falling())
        )
        ruling = ": clipping sets the step length" if is_ruling else ""
        return self._found(
            Severity.WARNING if harms else Severity.INFO,
            step.step,
            f"{100 * self._share:.0f} % of the last {self.config.memory_steps:,} steps clipped, "
            f"step {step.step:,} to {ratio:.2g} of its norm{ruling}",
            onset=self._steps[0],
            values={"share": self._share, "clip_ratio": ratio},
        )

    def _scaled(self, step: int, norm: float, ratio: float, scale: float) -> Finding | None:
        self._num_scaled += 1
        if self._num_scaled < self.config.scaled_steps and not self.is_open:
            return None
        limit, used = norm * ratio * scale, norm * ratio
        return self._found(
            Severity.WARNING,
            step,
            f"clipping acts on scaled gradients: norm {norm:.3g} x scale {scale:,.0f} was cut to {limit:.3g}, so the "
            f"step used a norm of {used:.3g}; call scaler.unscale_(optimizer) before clip_grad_norm_",
            values={"scaled": scale, "clip_ratio": ratio},
        )

    def resume(self, finding: Finding) -> None:
        """Restores the share."""
        super().resume(finding)
        if "scaled" in finding.values:
            self._num_scaled = self.config.scaled_steps
            return
        self._share = finding.values["share"]
        is_quiet = "never" in finding.values
        self._num_steps = self.config.quiet_steps if is_quiet else self.config.memory_steps
        self._num_clipped = int(not is_quiet)
