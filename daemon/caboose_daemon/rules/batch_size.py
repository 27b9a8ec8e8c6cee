"""batch_size: the batch is far below or far above the gradient noise scale.

Design
------
The batch is compared with the gradient noise scale, which data-parallel gradients give for free (see `noise`). The
threshold must be exceeded by more than the uncertainty of the averages.

A batch far above the noise scale wastes samples: an info. A batch far below it is common in healthy runs, which then
only take more steps than necessary: an info as well. It is a warning once the loss no longer falls: the steps are then
mostly noise, and a larger batch or a lower learning rate helps.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.noise import NoiseScale
from caboose_daemon.steps.view import JobView

TREND_BUCKETS = 8
VISIBLE_FALL = 0.1
"""A fall of the loss by this share must be detectable in its noise before the loss counts as flat."""
CALM = 0.7
"""Share of the threshold below which it is resolved, so that a run at the threshold is reported once."""


@dataclass(frozen=True)
class BatchSizeConfig(RuleConfig):
    """Thresholds of batch_size."""

    noisy_ratio: float = 10.0
    """Noise scale over batch above which the batch is far too small."""
    wasteful_ratio: float = 10.0
    """Batch over noise scale above which the batch is wasteful."""
    min_samples: int = 10
    """Sampled steps before the first judgement; the noise scale of the first steps means little."""
    memory_samples: int = 20
    """Sampled steps over which the averages are taken."""


class BatchSize(Rule[BatchSizeConfig]):
    """The batch against the gradient noise scale."""

    name = "batch_size"
    config_class = BatchSizeConfig
    needs = frozenset({"gradients", "local_gradients"})
    muted_in = frozenset({"startup", "warmup"})
    forgets_after = frozenset({"batch_ramp", "data_switch"})

    def __init__(self, config: BatchSizeConfig) -> None:
        super().__init__(config)
        self._scale = NoiseScale(config.memory_samples)
        self._loss = Curve()
        self._kind = ""
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every sampled step at which the batch is far from the noise scale."""
        step = view.step
        if step is None:
            return None
        if (loss := step.finite_loss) is not None:
            self._loss.add(loss)
        if not step.is_sampled or not self._scale.observe(step):
            return None
        if self._scale.signal.num < self.config.min_samples:
            return None
        return self._judge(view, step)

    def resume(self, finding: Finding) -> None:
        """Restores onset and kind; the ratio is measured again."""
        self._onset = finding.onset_step
        self._kind = "noisy" if finding.values["ratio"] > 1 else "wasteful"

    def _judge(self, view: JobView, step: AlignedStep) -> Finding | None:
        config = self.config
        signal, noise = self._scale.signal.mean, self._scale.noise.mean
        least, most = self._scale.bounds()
        closer = CALM if self._onset is not None else 1.0
        is_noisy = least > config.noisy_ratio * (closer if self._kind == "noisy" else 1.0)
        is_wasteful = 0 <= most < 1.0 / (config.wasteful_ratio * (closer if self._kind == "wasteful" else 1.0))
        if not (is_noisy or is_wasteful):
            return self._over(step)
        kind = "noisy" if is_noisy else "wasteful"
        if self._onset is None or kind != self._kind:
            self._onset, self._kind = step.step, kind
        ratio = max(noise, 0.0) / signal if math.isfinite(most) else least  # else `least` is only a lower bound
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
            summary="batch within the thresholds of the gradient noise scale again",
            state="resolved",
        )


def _summary(view: JobView, step: AlignedStep, kind: str, ratio: float, severity: Severity) -> str:
    samples = step.num_samples
    per_rank = view.setting("batch_size")
    if samples is None and per_rank is not None:
        samples = int(per_rank) * step.world
    batch = "batch" if samples is None else f"batch of {samples:,}"
    scale = "" if samples is None else f" (about {samples * ratio:,.3g})"
    if kind == "wasteful":
        return f"{batch} is {1 / max(ratio, 1e-9):.0f}x the gradient noise scale{scale}: a smaller one learns as much"
    end = ", and the loss no longer falls" if severity is Severity.WARNING else ""
    return f"gradient noise scale{scale} is {ratio:.0f}x the {batch}: gradients are mostly noise{end}"
