"""noise_growth: the gradient noise scale has outgrown the batch since the start: a larger batch would now pay.

Design
------
The gradient noise scale (see `noise`) is the batch at which a step's signal and noise are equal. It grows while a model
learns, so a batch that was large at first becomes small: large language models are trained with a batch that is raised
in steps. This rule suggests such a ramp, and how far: the noise scale has grown `growth` times since it was first
known, and is now `ratio` times the batch, both by more than the uncertainty of the averages. `batch_size` judges the
present batch alone, at a larger distance. It is a suggestion, so always an info: a run without a ramp learns as well,
only with more steps than necessary. Near the end of the run a ramp has nothing left to save.
"""

from dataclasses import dataclass

from caboose_daemon.format import amount
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.steps.noise import NoiseScale
from caboose_daemon.steps.view import JobView

LATE = 0.75
"""Share of the run after which no ramp is suggested."""
CALM = 0.7
"""Share of the thresholds below which it is resolved."""


@dataclass(frozen=True)
class NoiseGrowthConfig(RuleConfig):
    """Thresholds of noise_growth."""

    growth: float = 4.0
    """Growth of the noise scale since it was first known, for a suggestion."""
    ratio: float = 2.0
    """Noise scale over batch that is needed as well."""
    memory_samples: int = 20
    """Sampled steps over which the averages are taken."""


class NoiseGrowth(LastingRule[NoiseGrowthConfig]):
    """A batch that could be raised in steps."""

    name = "noise_growth"
    config_class = NoiseGrowthConfig
    needs = frozenset({"gradients", "local_gradients"})
    assumes_falling_loss = True
    muted_in = frozenset({"startup", "warmup"})
    forgets_after = frozenset({"batch_ramp", "data_switch", "restart", "resume"})

    def __init__(self, config: NoiseGrowthConfig) -> None:
        super().__init__(config)
        self._scale = NoiseScale(config.memory_samples)
        self._first: tuple[int, float, float] | None = None
        """Where the scale was first known: the step, the scale in batches, and the most it may have been."""

    def observe(self, view: JobView) -> Finding | None:
        """An info at every sampled step at which a larger batch would pay."""
        step, config = view.step, self.config
        if step is None or not step.is_sampled or not self._scale.observe(step):
            return None
        ratio = self._scale.ratio
        if self._scale.signal.num < config.memory_samples or ratio is None:
            return None
        least, most = self._scale.bounds()
        if self._first is None:
            self._first = (step.step, ratio, most) if 0 < ratio <= most < float("inf") else None
            return None
        since, before, most_before = self._first
        easier = CALM if self.is_open else 1.0
        is_grown = least > easier * config.growth * most_before and least > easier * config.ratio
        total = view.setting("total_steps")
        if not is_grown or (total is not None and step.step > LATE * total):
            return self._resolved(step.step, "gradient noise scale no longer far above what it was at first")
        growth = ratio / before
        samples = "" if step.num_samples is None else f" of {step.num_samples:,} samples"
        to = "" if step.num_samples is None else f", up to about {step.num_samples * ratio:,.2g}"
        return self._found(
            Severity.INFO,
            step.step,
            f"gradient noise scale is {amount(ratio)}x the batch{samples}, {amount(growth)}x what it was at step"
            f" {since:,}: a larger batch would pay now{to}",
            values={"ratio": ratio, "growth": growth, "at_least": least, "before": before},
        )
