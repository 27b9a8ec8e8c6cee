"""clipping: how often gradient clipping acts.

Design
------
Clipping is a belt for rare steps. The share of clipped steps is followed with an exponential memory, in which one
step counts the same however hard it was clipped, so no outlier moves it far. Where most steps are clipped, the
clipper sets the length of each step and the learning rate no longer means what it says. While the rate warms up norms
are large by nature, so those steps are not counted. A clipper that has never acted is an information: the norm it
waits for may be far above what the run has.
"""

from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.view import JobView

EASIER = 0.9
"""It is over only below this part of the threshold."""


@dataclass(frozen=True)
class ClippingConfig(RuleConfig):
    """Thresholds of clipping."""

    share: float = 0.5
    """Share of clipped steps above which it is told."""
    ruling_share: float = 0.8
    """Share above which clipping is the optimizer, and the summary says so."""
    memory_steps: int = 200
    """Steps over which the share is taken; as many are waited for before it is judged."""
    quiet_steps: int = 1000
    """Steps in which clipping never acted before that is told."""


class Clipping(LastingRule[ClippingConfig]):
    """Clipping that acts on most steps, or on none."""

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

    def observe(self, view: JobView) -> Finding | None:
        """A warning while most steps are clipped; an information while none ever was."""
        step = view.step
        ratio = None if step is None else step.clip_ratio
        if step is None or ratio is None or (norm := step.finite_grad_norm) is None:
            return None
        is_clipped = ratio < 1.0
        self._num_steps += 1
        self._num_clipped += is_clipped
        self._largest = max(self._largest, norm)
        self._share += (is_clipped - self._share) / min(self._num_steps, self.config.memory_steps)
        is_quiet = self._num_clipped == 0
        was_quiet = self._last is not None and "never" in self._last.values
        if self.is_open and was_quiet and not is_quiet:
            return self._resolved(step.step, f"clipping acted: the norm was {norm:.3g}")
        if is_quiet and self._num_steps >= self.config.quiet_steps:
            return self._found(
                Severity.INFO,
                step.step,
                f"clipping has not acted in {self._num_steps} steps; the largest norm was {self._largest:.3g}",
                values={"share": 0.0, "never": 1.0},
            )
        limit = self.config.share * (EASIER if self.is_open else 1.0)
        if self._num_steps < self.config.memory_steps and not self.is_open:
            return None
        if self._share <= limit:
            return self._resolved(step.step, f"clipping acts on {self._share:.0%} of the steps")
        rules = (
            ": it, not the learning rate, sets the length of the steps"
            if self._share > self.config.ruling_share
            else ""
        )
        return self._found(
            Severity.WARNING,
            step.step,
            f"{self._share:.0%} of the steps are clipped, this one to {ratio:.2g} of its gradient{rules}",
            values={"share": self._share, "clip_ratio": ratio},
        )

    def resume(self, finding: Finding) -> None:
        """The share goes on from where it was."""
        super().resume(finding)
        self._share = finding.values["share"]
        is_quiet = "never" in finding.values
        self._num_steps = self.config.quiet_steps if is_quiet else self.config.memory_steps
        self._num_clipped = int(not is_quiet)
