"""gradient_oscillation: the gradient norm jumps up and down from step to step, beyond the noise of batches.

Design
------
A step that is too large for the curvature crosses the valley and meets a steep wall there; the next one goes back. The
norm then alternates, often long before the loss shows it. Neighbouring batches are independent, so their norms are
uncorrelated however noisy they are (see `swings`): the rule needs a clearly negative correlation and swings that are
large against the level. Waves are no sign of it here: data that is sorted by length has them. It judges reports of
single steps; a row of a log that stands for many averages the jumps away.
"""

from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.swings import Swings
from caboose_daemon.steps.view import JobView

SETTLING = frozenset({"startup", "warmup"})


@dataclass(frozen=True)
class GradientOscillationConfig(RuleConfig):
    """Thresholds of gradient_oscillation."""

    correlation: float = 0.35
    """Negative correlation of neighbouring deviations that is needed; independent noise is near 0."""
    amplitude: float = 0.2
    """Standard deviation of the swings as a share of the level, times the correlation, that is needed."""
    memory_steps: int = 200
    """Steps over which both are taken."""
    persist_steps: int = 100
    """Steps in a row before it is reported, and without it before it is resolved."""


class GradientOscillation(Rule[GradientOscillationConfig]):
    """A gradient norm that alternates beyond its noise."""

    name = "gradient_oscillation"
    config_class = GradientOscillationConfig
    judges_parts = True
    needs = frozenset({"gradients"})
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: GradientOscillationConfig) -> None:
        super().__init__(config)
        self._swings = Swings(config.memory_steps)
        self._lasting = Lasting(config.persist_steps, config.persist_steps)

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the norm alternates."""
        step = view.step
        if step is None or step.stands_for_many or (norm := step.finite_grad_norm) is None:
            return None
        if not SETTLING.isdisjoint(view.regime.active) or not self._swings.follow(norm):
            return None
        verdict = self._lasting.judge(step.step, self._is_alternating())
        return None if verdict == "quiet" else self._finding(step.step, verdict)

    def resume(self, finding: Finding) -> None:
        """Restores the onset; the swings are measured again."""
        self._lasting.restore(finding.onset_step)

    def _is_alternating(self) -> bool:
        swings = self._swings
        is_correlated = -swings.correlation > self.config.correlation
        return is_correlated and -swings.correlation * swings.amplitude > self.config.amplitude

    def _finding(self, step: int, verdict: str) -> Finding:
        swings, is_over = self._swings, verdict == "resolved"
        onset = self._lasting.onset if self._lasting.onset is not None else step
        numbers = f"{100 * swings.amplitude:.0f} % of its level, correlation {swings.correlation:.2f}"
        what = "no longer alternates" if is_over else f"alternates from step to step, {swings.trend}"
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if is_over else Severity.WARNING),
            step=step,
            onset_step=onset,
            summary=f"gradient norm {what}: swings of {numbers}" + ("" if is_over else f", since step {onset:,}"),
            state=verdict,
            values={
                "amplitude": swings.amplitude,
                "correlation": swings.correlation,
                "growth_of_swings": swings.growth,
            },
        )
