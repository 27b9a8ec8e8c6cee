"""oscillation: the loss oscillates, each step depending on the one before, and does not settle.

Design
------
The noise of small batches may be as large as any oscillation; the difference is memory. Independent batches leave no
trace in the next step, so neighbouring deviations from the slow level are uncorrelated, provided that the level is
right: an average lags behind a falling loss, and all deviations from it have one sign. So the level is twice the
average minus the average of the average, which follows any steady fall. A step size beyond what the curvature allows
makes each step react to the one before: the deviations alternate (strongly negative correlation) or swing in waves
(positive correlation with many crossings of the level, which a drift does not have). The rule needs that correlation,
an amplitude that matters against the level, and many swings, over a long exponential memory; a shrinking transient
drops out of it (see `swings`). The finding states whether the swings grow, shrink or are steady.

The gradient norm is followed in the same way. It has more noise than the loss, and data that is sorted makes waves in
it, so its swings alone are a note.

A row of a log is often a mean over more steps than one swing takes, and neighbouring rows are then uncorrelated. There
a run that was calm and has become restless (see `unrest`) oscillates as well. A log may be over in twenty rows, so that
is followed from its first one; settling steps are left out of the correlation only.
"""

from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.swings import Swings
from caboose_daemon.rules.parts.unrest import Unrest
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

SETTLING = frozenset({"startup", "warmup"})
"""Regimes in which the correlation of neighbouring steps is not measured."""


@dataclass(frozen=True)
class OscillationConfig(RuleConfig):
    """Thresholds of oscillation."""

    correlation: float = 0.35
    """Absolute correlation of neighbouring deviations that is needed; independent noise is near 0."""
    amplitude: float = 0.1
    """Standard deviation of the swings as a share of the level, times the correlation, that is needed."""
    memory_steps: int = 200
    """Steps over which correlation and amplitude are taken."""
    min_swings: int = 12
    """Crossings of the level and back within those steps that are needed."""
    persist_steps: int = 200
    """Steps in a row before it is reported."""
    growth: float = 5.0
    """Scatter of a log over the upper bound of its calmest one that is reported, where the level is no better."""
    norm_amplitude: float = 0.3
    """Standard deviation of the gradient norm's swings as a share of its level, times the correlation, for a note."""
    restless: float = 0.15
    """Scatter of a log, as a share of its level, that is needed as well."""


class Oscillation(Rule[OscillationConfig]):
    """A loss, or a gradient norm, that oscillates beyond its noise."""

    name = "oscillation"
    config_class = OscillationConfig
    judges_parts = True
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: OscillationConfig) -> None:
        super().__init__(config)
        self._swings = Swings(config.memory_steps)
        self._norms = Swings(config.memory_steps)
        self._norms_lasting = Lasting(config.persist_steps, config.persist_steps)
        self._lasting = Lasting(config.persist_steps, config.persist_steps)
        self._unrest = Unrest(config.growth, config.restless)
        self._restless_since: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the loss oscillates."""
        step = view.step
        if step is None or (loss := step.finite_loss) is None:
            return None
        restless = self._follow_unrest(step.step, loss) if step.stands_for_many else None
        if not SETTLING.isdisjoint(view.regime.active):
            return restless
        of_norms = self._follow_norm(step)
        if not self._swings.follow(loss):
            return restless or of_norms
        verdict = self._lasting.judge(step.step, self._is_swinging(self._swings, self.config.amplitude))
        if verdict == "quiet":
            return restless or of_norms
        return self._finding(step.step, verdict)

    def resume(self, finding: Finding) -> None:
        """Restores the onset; the swings are measured again."""
        self._lasting.restore(finding.onset_step)

    def _follow_unrest(self, step: int, loss: float) -> Finding | None:
        """A finding while a log that was calm is restless."""
        unrest = self._unrest
        unrest.add(loss)
        if not unrest.is_restless and self._restless_since is None:
            return None
        if self._restless_since is None:
            self._restless_since = step
        numbers = f"{100 * unrest.amplitude:.0f} % of its level, {unrest.growth:.0f} times as large as at its calmest"
        is_over = not unrest.is_restless
        finding = Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if is_over else Severity.WARNING),
            step=step,
            onset_step=self._restless_since,
            summary=f"loss {'no longer ' * is_over}swings: {numbers}",
            state="resolved" if is_over else "open",
            values={"amplitude": unrest.amplitude, "growth": unrest.growth},
        )
        self._restless_since = None if is_over else self._restless_since
        return finding

    def _follow_norm(self, step: AlignedStep) -> Finding | None:
        """A note while the gradient norm swings; a row of a log that stands for many steps averages that away."""
        norm = step.finite_grad_norm
        if norm is None or step.stands_for_many or not self._norms.follow(norm):
            return None
        verdict = self._norms_lasting.judge(step.step, self._is_swinging(self._norms, self.config.norm_amplitude))
        if verdict == "quiet":
            return None
        swings, onset = self._norms, self._norms_lasting.onset
        numbers = f"{100 * swings.amplitude:.0f} % of its level, correlation {swings.correlation:.2f}"
        is_over = verdict == "resolved"
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO),
            step=step.step,
            onset_step=step.step if onset is None else onset,
            summary=f"gradient norm {'no longer ' * is_over}oscillates, {swings.trend}: swings of {numbers}",
            state=verdict,
            values={"norm_amplitude": swings.amplitude, "norm_correlation": swings.correlation},
        )

    def _is_swinging(self, swings: Swings, amplitude: float) -> bool:
        correlation = abs(swings.correlation)
        return (
            correlation > self.config.correlation
            and swings.amplitude * correlation > amplitude
            and swings.num_swings > self.config.min_swings
        )

    def _finding(self, step: int, verdict: str) -> Finding:
        swings = self._swings
        correlation = swings.correlation
        onset = self._lasting.onset if self._lasting.onset is not None else step
        how = "from step to step" if correlation < 0 else "in waves"
        numbers = f"{100 * swings.amplitude:.0f} % of its level, correlation {correlation:.2f}"
        if verdict == "resolved":
            summary = f"loss no longer oscillates: swings of {numbers}"
        else:
            summary = f"loss oscillates {how}, {swings.trend}: swings of {numbers}, since step {onset:,}"
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if verdict == "resolved" else Severity.WARNING),
            step=step,
            onset_step=onset,
            summary=summary,
            state=verdict,
            values={
                "amplitude": swings.amplitude,
                "correlation": correlation,
                "swings": swings.num_swings,
                "growth_of_swings": swings.growth,
            },
        )
