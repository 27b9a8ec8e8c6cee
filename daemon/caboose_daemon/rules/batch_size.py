"""batch_size: is the batch far too small for the noise of its gradients, or far larger than pays off.

Design
------
The gradient noise scale (McCandlish et al., 2018) is the batch at which noise and signal of the gradient are equal.
Data parallelism gives it away for free: the ranks' own gradients are those of a small batch, their mean that of the
large one. With N ranks, the mean square norm of the own gradients s and the square norm of the averaged one b,

    signal = (N b - s) / (N - 1)        noise of the whole batch = (s - b) / (N - 1)

are unbiased, and noise / signal is the noise scale in units of the job's own batch, whatever that is. Each alone is so
uncertain that their ratio means nothing on one step: they are averaged apart, over sampled steps, and a verdict is
given only where it holds for the averages' uncertainty as well.

A batch far above the noise scale wastes its samples: an information. One far below is common in healthy runs, which
then merely take more steps than they would need, and so an information too. It is a warning once the loss no longer
falls: noise is then what the run is made of, and a larger batch or a lower learning rate is the way on.
"""

import math
from dataclasses import dataclass

import numpy as np

from caboose_daemon.aligned import AlignedStep
from caboose_daemon.rules.curve import Curve, trend
from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.view import JobView

SIGMAS = 2.0
TREND_BUCKETS = 8
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


class _Average:
    """An exponential average that knows how uncertain it is."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._square = 0.0
        self.num = 0

    def learn(self, value: float, memory: int) -> None:
        """Takes a value."""
        self.num += 1
        rate = 1.0 / min(self.num, memory)
        self.mean += rate * (value - self.mean)
        self._square += rate * (value * value - self._square)

    def error(self, memory: int) -> float:
        """Standard error of the mean."""
        num = min(self.num, 2 * memory - 1)
        return math.sqrt(max(self._square - self.mean**2, 0.0) / max(1, num - 1))


class BatchSize(Rule[BatchSizeConfig]):
    """The batch against the gradient noise scale."""

    name = "batch_size"
    config_class = BatchSizeConfig
    needs = frozenset({"gradients", "local_gradients"})
    muted_in = frozenset({"startup", "warmup"})
    forgets_after = frozenset({"batch_ramp", "data_switch"})

    def __init__(self, config: BatchSizeConfig) -> None:
        super().__init__(config)
        self._signal = _Average()
        self._noise = _Average()
        self._loss = Curve()
        self._kind = ""
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every sampled step on which the batch is far from the noise scale."""
        step = view.step
        if step is None:
            return None
        if math.isfinite(step.mean_loss):
            self._loss.add(step.mean_loss)
        if not step.is_sampled or not self._learn(step):
            return None
        if self._signal.num < self.config.min_looks:
            return None
        return self._judge(view, step)

    def resume(self, finding: Finding) -> None:
        """Since when, and of which kind; the ratio shows anew."""
        self._onset = finding.onset_step
        self._kind = "noisy" if finding.values["ratio"] > 1 else "wasteful"

    def _learn(self, step: AlignedStep) -> bool:
        """Takes a sampled step, if every rank's own gradient and the averaged one are there."""
        local = step.local_grad_norm
        num = len(local)
        if num < 2 or not step.has_grad_norm or not math.isfinite(step.grad_norm) or not np.isfinite(local).all():
            return False
        small, large = float(np.mean(np.square(local))), step.grad_norm**2
        if not (small > 0 and large > 0) or not math.isfinite(small + large):
            return False
        memory = self.config.memory_looks
        self._signal.learn((num * large - small) / (num - 1), memory)
        self._noise.learn((small - large) / (num - 1), memory)
        return True

    def _judge(self, view: JobView, step: AlignedStep) -> Finding | None:
        config = self.config
        signal, noise = self._signal.mean, self._noise.mean
        of_signal = SIGMAS * self._signal.error(config.memory_looks)
        of_noise = SIGMAS * self._noise.error(config.memory_looks)
        least = max(noise - of_noise, 0.0) / max(signal + of_signal, 1e-300)
        most = (noise + of_noise) / (signal - of_signal) if signal > of_signal else math.inf
        closer = CALM if self._onset is not None else 1.0
        is_noisy = least > config.noisy_ratio * (closer if self._kind == "noisy" else 1.0)
        is_wasteful = 0 <= most < 1.0 / (config.wasteful_ratio * (closer if self._kind == "wasteful" else 1.0))
        if not (is_noisy or is_wasteful):
            return self._over(step)
        kind = "noisy" if is_noisy else "wasteful"
        if self._onset is None or kind != self._kind:
            self._onset, self._kind = step.step, kind
        ratio = max(noise, 0.0) / signal if signal > 0 else least
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
        return len(means) >= 2 * TREND_BUCKETS and not trend(means[-TREND_BUCKETS:]).falls()

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
