"""batch_size: is the batch far too small for the noise of its gradients, or far larger than pays off.

Design
------
Compared with the gradient noise scale, which data parallelism gives away (see `noise`); a verdict is given only where
it holds for the uncertainty of the averages as well.

A batch far above the noise scale wastes its samples: an information. One far below is common in healthy runs, which
then merely take more steps than they would need, and so an information too. It is a warning once the loss no longer
falls: noise is then what the run is made of, and a larger batch or a lower learning rate is the way on.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.noise import NoiseScale
from caboose_daemon.steps.view import JobView

SIGMAS = 2.0
TREND_BUCKETS = 8
VISIBLE_FALL = 0.1
"""A fall of this share of the loss must have been visible in its noise before it is said not to be there."""
CALM = 0.7
"""It is over when the ratio has come so much closer, so that a run at the threshold is told once."""


@dataclass(frozen=True)
class BatchSizeConfig(RuleConfig):
    """Thresholds of batch_size."""

    noisy_ratio: float = 10.0
    """How many times the batch the noise scale is, to call the batch far too small."""
    wasteful_ratio: float = 10.0
    """How many times the noise scale the batch is, to call it wasteful."""
    min_looks: int = 10
    """Sampled steps before anything is judged; the noise scale of a run's beginning says little."""
    memory_looks: int = 20
    """How many sampled steps the averages remember."""


class BatchSize(Rule[BatchSizeConfig]):
    """The batch against the gradient noise scale."""

    name = "batch_size"
    config_class = BatchSizeConfig
    needs = frozenset({"gradients", "local_gradients"})
    muted_in = frozenset({"startup", "warmup"})
    forgets_after = frozenset({"batch_ramp", "data_switch"})

    def __init__(self, config: BatchSizeConfig) -> None:
        super().__init__(config)
        self._scale = NoiseScale(config.memory_looks)
        self._loss = Curve()
        self._kind = ""
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every sampled step on which the batch is far from the noise scale."""
        step = view.step
        if step is None:
            return None
        if (loss := step.finite_loss) is not None:
            self._loss.add(loss)
        if not step.is_sampled or not self._scale.observe(step):
            return None
        if self._scale.signal.num < self.config.min_looks:
            return None
        return self._judge(view, step)

    def resume(self, finding: Finding) -> None:
        """Since when, and of which kind; the ratio shows anew."""
        self._onset = finding.onset_step
        self._kind = "noisy" if finding.values["ratio"] > 1 else "wasteful"

    def _judge(self, view: JobView, step: AlignedStep) -> Finding | None:
        config = self.config
        signal, noise = self._scale.signal.mean, self._scale.noise.mean
        of_signal, of_noise = SIGMAS * self._scale.signal.error, SIGMAS * self._scale.noise.error
        least = max(noise - of_noise, 0.0) / max(max(signal, 0.0) + of_signal, 1e-300)  # a square is not negative
        most = (noise + of_noise) / (signal - of_signal) if signal > of_signal else math.inf
        closer = CALM if self._onset is not None else 1.0
        is_noisy = least > config.noisy_ratio * (closer if self._kind == "noisy" else 1.0)
        is_wasteful = 0 <= most < 1.0 / (config.wasteful_ratio * (closer if self._kind == "wasteful" else 1.0))
        if not (is_noisy or is_wasteful):
            return self._over(step)
        kind = "noisy" if is_noisy else "wasteful"
        if self._onset is None or kind != self._kind:
            self._onset, self._kind = step.step, kind
        ratio = max(noise, 0.0) / signal if signal > of_signal else least  # else it may be anything above
        severity = Severity.WARNING if is_noisy and self._has_stopped_falling() else Severity.INFO
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step.step,
            onset_step=self._onset,
            summary=_summary(view, step, kind, max(ratio, least) if is_noisy else ratio, severity),
            values={"ratio": ratio if is_wasteful else max(ratio, least), "at_least": least, "signal": signal},
        )

    def _has_stopped_falling(self) -> bool:
        means = self._loss.means
        if len(means) < 2 * TREND_BUCKETS:
            return False
        line = trend(means[-TREND_BUCKETS:])
        return not line.falls() and 2.0 * line.relative_error < VISIBLE_FALL

    def _over(self, step: AlignedStep) -> Finding | None:
        onset, self._onset, self._kind = self._onset, None, ""
        if onset is None:
            return None
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=onset,
            summary="the batch is of the order of the gradient noise scale",
            state="resolved",
        )


def _summary(view: JobView, step: AlignedStep, kind: str, ratio: float, severity: Severity) -> str:
    samples = step.num_samples
    per_rank = view.setting("batch_size")
    if samples is None and per_rank is not None:
        samples = int(per_rank) * step.world
    batch = "the batch" if samples is None else f"the batch of {samples}"
    scale = "" if samples is None else f" (about {samples * ratio:.2g})"
    if kind == "wasteful":
        return (
            f"{batch} is {1 / max(ratio, 1e-9):.0f} times the gradient noise scale{scale}: a smaller one learns as much"
        )
    end = ", and the loss no longer falls" if severity is Severity.WARNING else ""
    return f"the gradient noise scale is {ratio:.0f} times {batch}{scale}: its gradients are mostly noise{end}"
