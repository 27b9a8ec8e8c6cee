"""oscillation: the loss swings to and fro, step depending on step, and does not calm down.

Design
------
Noise of small batches may be as large as any oscillation; what tells them apart is memory. Independent batches leave no
trace in the next step, so the deviations from the slow level are uncorrelated with their neighbours, provided that the
level is where the loss lies: an average lags behind a loss that falls, and all deviations from it are of one sign. So
the level is twice the average less the average's own average, which keeps up with any steady fall. A step size beyond
what the curvature allows makes each step answer the one before: the deviations alternate (strongly negative
correlation) or swing in waves (positive correlation, with many returns through the level, which a mere drift does not
make). The rule asks for that correlation, for an amplitude that matters against the level, and for many swings, over a
long exponential memory; a transient that shrinks drops out of it by itself.

Deviations are taken of the logarithm where the loss is positive, so that swings over decades count as what they are,
and each is limited to a few of its own scales: a single spike is no swing. They are compared with their neighbours in
units of the scatter around them, or a run's first fall, which is steeper than anything later, would be all that counts.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import JobView

LEVEL_MEMORY = 32.0
CLIP = 3.0


@dataclass(frozen=True)
class OscillationConfig(RuleConfig):
    """Thresholds of oscillation."""

    correlation: float = 0.35
    """How strongly neighbouring deviations must be tied, in either direction; independent noise is near 0."""
    amplitude: float = 0.1
    """Standard deviation of the swings as a share of the level, weighted by the correlation."""
    memory_steps: int = 200
    """Steps over which correlation and amplitude are taken."""
    min_swings: int = 12
    """Returns through the level within the memory."""
    persist_steps: int = 200
    """Steps that all of this must hold."""


class Oscillation(Rule[OscillationConfig]):
    """Swings that are not noise."""

    name = "oscillation"
    config_class = OscillationConfig
    needs = frozenset({"loss"})
    muted_in = frozenset({"startup", "warmup"})
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: OscillationConfig) -> None:
        super().__init__(config)
        self._level: float | None = None
        self._slow = 0.0
        """The average of the level, which lags behind it by as much as the level does behind the loss."""
        self._is_positive = True
        self._num = 0
        self._last = 0.0
        self._variance = 0.0
        self._near = 0.0
        """The variance of late: what a deviation is measured in before it is compared with the one before."""
        self._power = 0.0
        self._product = 0.0
        self._side = 0
        self._swings = 0.0
        self._lasting = Lasting(config.persist_steps, config.persist_steps)

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the swings go on."""
        step = view.step
        if step is None or (loss := step.finite_loss) is None:
            return None
        if not self._follow(loss):
            return None
        verdict = self._lasting.judge(step.step, self._is_swinging())
        if verdict == "quiet":
            return None
        return self._finding(step.step, verdict)

    def resume(self, finding: Finding) -> None:
        """Since when; the swings show anew."""
        self._lasting.take_up(finding.onset_step)

    def _follow(self, loss: float) -> bool:
        """Takes one loss in; whether enough was seen to judge."""
        if loss <= 0 and self._is_positive:
            self._is_positive, self._level = False, None  # no logarithm any more: begin again on the plain scale
        value = math.log(loss) if self._is_positive else loss
        if self._level is None:
            self._level, self._slow, self._num = value, value, 0
            self._variance = self._near = self._power = self._product = self._swings = 0.0
        self._num += 1
        rate = 1.0 / min(self._num, self.config.memory_steps)
        deviation = value - (2.0 * self._level - self._slow)
        share = max(1.0 / self._num, 1.0 / LEVEL_MEMORY)
        self._level += share * (value - self._level)
        self._slow += share * (self._level - self._slow)
        if self._num > LEVEL_MEMORY:
            most = CLIP * math.sqrt(self._variance) if self._variance > 0 else abs(deviation)
            deviation = max(-most, min(most, deviation))
        self._variance += rate * (deviation * deviation - self._variance)
        self._near += share * (deviation * deviation - self._near)
        scaled = deviation / math.sqrt(self._near) if self._near > 0 else 0.0
        self._power += rate * (scaled * scaled - self._power)
        self._product += rate * (scaled * self._last - self._product)
        self._last = scaled
        self._swings -= rate * self._swings
        side = 1 if deviation > 0.5 * math.sqrt(self._variance) else -1 if deviation < 0 else self._side
        if side != self._side:
            self._side = side
            self._swings += 0.5
        return self._num > self.config.memory_steps

    @property
    def _amplitude(self) -> float:
        """Of the swings, as a share of the level."""
        sigma = math.sqrt(self._variance)
        return sigma if self._is_positive else sigma / max(abs(self._level or 0.0), 1e-12)

    @property
    def _correlation(self) -> float:
        return self._product / self._power if self._power > 0 else 0.0

    def _is_swinging(self) -> bool:
        correlation = abs(self._correlation)
        return (
            correlation > self.config.correlation
            and self._amplitude * correlation > self.config.amplitude
            and self._swings > self.config.min_swings
        )

    def _finding(self, step: int, verdict: str) -> Finding:
        correlation = self._correlation
        how = "alternates from step to step" if correlation < 0 else "swings in waves"
        summary = (
            "the loss has calmed down"
            if verdict == "resolved"
            else f"loss {how}: swings of {100 * self._amplitude:.0f} % of its level, correlation {correlation:.2f}"
        )
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if verdict == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._lasting.onset if self._lasting.onset is not None else step,
            summary=summary,
            state=verdict,
            values={"amplitude": self._amplitude, "correlation": correlation, "swings": self._swings},
        )
