"""gradient_explosion: the gradient norm is far above its own history, or doubles step after step.

Design
------
Healthy norms differ by orders of magnitude between models, and between a mean and a sum as the loss. So the norm is
judged against its own history, in logarithms: by scales of its recent scatter, by its own outliers (the baseline's
tail), and by ratio. A norm that at least doubles on each of three consecutive steps needs no history: that is how a
blow-up starts, also in a run that was attached to in the middle. Between two norms that are some steps apart it must
have doubled at each of these steps; where many lie between them, a high norm counts only with a high loss. Where
there is history, the doublings must exceed the run's own outliers. Without history the norm alone never pages.

One high norm is one batch, which clipping handles: an info, unless it is `outlier_ratio` times the level. A norm that
stays high, keeps doubling or is that high is a warning. It is critical when the loss is above its level too, or when
the norm stays high for long. While the loss is clearly below its level before, it is a note: many runs begin with
small gradients, which grow as they begin to learn. The rule is silent in the first steps, before there is a level. The
slow rise of norms during a learning-rate warm-up is learned as the level.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from caboose_daemon.format import amount
from caboose_daemon.rules.parts.baseline import Baseline
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.progress import Progress
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import MOVING_OBJECTIVE, JobView

DOUBLED = math.log(2.0)
SOLVED = 0.01
"""Share of its first loss below which a run has solved its task: its gradients are those of a few samples."""
RECENT, BETTER = 5, 3.0
"""Losses whose median is below the level before, by so many scales of their scatter, in a run that learns."""
MAX_GAP = 4
"""Steps since the last norm, above which a rise is no jump: where norms are taken rarely, the loss must tell."""
MIN_SCALE = 0.05
MOVING_TIMES = 5
"""Times as many steps as are critical elsewhere are a warning where the objective moves."""
"""Smallest scale of the norm's logarithm: the level is not taken to be known to better than 5 %."""


@dataclass(frozen=True)
class GradientExplosionConfig(RuleConfig):
    """Thresholds of gradient_explosion."""

    scales: float = 6.0
    """Height of the norm's logarithm above its level, in scales of its recent scatter, that is high."""
    ratio: float = 3.0
    """Norm over its level that is needed as well."""
    outlier_ratio: float = 10.0
    """Norm over its level at which a single step is a warning."""
    tails: float = 2.0
    """Height over that of the run's own outliers (one norm in a hundred) that is needed as well."""
    doublings: int = 3
    """Consecutive norms, each at least twice the one before, that are a warning without any history."""
    persist_steps: int = 3
    """High norms in a row that are a warning."""
    critical_steps: int = 10
    """High norms in a row that are critical, even if the loss stays at its level."""
    calm_steps: int = 5
    """Norms near the level before it is resolved."""
    warmup_steps: int = 20
    """Norms from which the level is learned."""


class GradientExplosion(Rule[GradientExplosionConfig]):
    """A norm that blows up."""

    name = "gradient_explosion"
    config_class = GradientExplosionConfig
    judges_parts = True
    needs = frozenset({"gradient_norm"})
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: GradientExplosionConfig) -> None:
        super().__init__(config)
        self._norm = Baseline(config.warmup_steps)
        self._loss = Baseline(config.warmup_steps)
        self._progress = Progress()
        self._is_solved = False
        """Whether next to nothing is left of the first loss."""
        self._last = math.nan
        self._num_since = 0
        """Steps since the last norm; those in which a part did not step do not count."""
        self._num_doubled = 0
        self._lasting = Lasting(1, config.calm_steps)
        self._num_high = 0
        self._longest = 0
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._loss_before = math.nan
        """What the loss must be below to be better than before the norm rose."""
        self._is_known = True
        """Whether the level was learned; without history it is a guess, and not enough to page."""
        self._level = math.nan
        self._scale = math.nan
        self._peak = 0.0
        self._worst = Severity.INFO

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step of an explosion."""
        step = view.step
        if step is None:
            return None
        self._follow_progress(view)
        self._num_since += step.mean_loss is not None or step.grad_norm is not None
        if (norm := step.finite_grad_norm) is None or norm <= 0:
            return None  # NaN and infinity are non_finite's; an exact zero is no explosion
        value = math.log(norm)
        is_doubled = value - self._last >= DOUBLED * max(1, self._num_since)
        is_after_gap = self._num_since > MAX_GAP
        self._num_doubled = self._num_doubled + 1 if is_doubled else 0
        before, self._last, self._num_since = self._last, value, 0
        is_high = self._is_high(value)
        is_doubling = self._is_doubling(value) and "startup" not in view.regime.active
        is_loss_high = self._is_loss_high(step.finite_loss)
        if is_after_gap and is_high and not (self._lasting.is_open or is_doubling or is_loss_high):
            is_high = False  # a norm may grow tenfold over dozens of steps as a run begins to learn
        if not self._lasting.is_open:
            self._is_known = self._norm.is_ready
            self._level, self._scale = self._norm.level, self._norm.scale
            self._loss_before = self._loss.level - BETTER * self._loss.scale if self._loss.is_ready else math.nan
            if is_doubling and not is_high:
                self._level, self._scale = before - (self.config.doublings - 1) * DOUBLED, MIN_SCALE
        verdict = self._lasting.judge(step.step, is_high or is_doubling)
        if verdict == "quiet":
            self._norm.learn(value)
            return None
        self._peak = max(self._peak, norm)
        if not self._is_known:
            self._find_level(value)
        if verdict == "resolved":
            return self._end(step.step, norm)
        self._num_high = self._num_high + 1 if is_high or is_doubling else 0
        self._longest = max(self._longest, self._num_high)
        if MOVING_OBJECTIVE in view.visible:
            now = self._severity_while_moving(norm)
        else:
            now = self._severity(norm, is_doubling=is_doubling, is_loss_high=is_loss_high)
        self._worst = max(self._worst, now, key=lambda s: s.rank)
        level = math.exp(self._level)
        onset = self._lasting.onset if self._lasting.onset is not None else step.step
        how = f", doubled {self._num_doubled} times in a row" if is_doubling else ""
        loss = "; the loss is high too" if is_loss_high else ""
        times = f"{amount(norm)} against {amount(level)} before step {onset:,} ({amount(norm / level)}x)"
        summary = f"gradient norm {times}{how}{loss}"
        return self._finding(step.step, norm, self._worst, "open", summary)

    def resume(self, finding: Finding) -> None:
        """The level before it is in the finding."""
        self._level, self._scale = math.log(finding.values["level"]), finding.values["scale"]
        self._peak, self._worst = finding.values["peak"], finding.severity
        self._lasting.restore(finding.onset_step)

    def _is_high(self, value: float) -> bool:
        is_open = self._lasting.is_open
        level, scale = (self._level, self._scale) if is_open else (self._norm.level, self._norm.scale)
        if not is_open and not self._norm.is_ready:
            return False
        above = value - level
        if above <= math.log(self.config.ratio):
            return False
        return above > max(self.config.scales, self.config.tails * self._norm.tail) * max(scale, MIN_SCALE)

    def _is_doubling(self, value: float) -> bool:
        """Whether the norm keeps doubling; where its scatter is known, to beyond its own outliers."""
        if self._num_doubled < self.config.doublings:
            return False
        return not self._norm.is_ready or self._norm.excess(value) > self._norm.tail

    def _find_level(self, value: float) -> None:
        """Keeps learning in an episode that started without history: the norm may settle at its normal level."""
        self._norm.learn(value)
        if self._norm.is_ready:
            self._level, self._scale, self._is_known = self._norm.level, self._norm.scale, True
            self._num_high = 0

    def _follow_progress(self, view: JobView) -> None:
        loss = None if view.step is None else view.step.finite_loss
        if loss is not None:
            self._progress.observe(loss, view)
            self._losses.append(loss)
            self._is_solved = not self._progress.is_signed and median(self._losses) < SOLVED * self._progress.first

    def _is_loss_high(self, loss: float | None) -> bool:
        if loss is None:
            return False
        baseline = self._loss
        is_high = baseline.is_ready and baseline.excess(loss) > max(self.config.scales, baseline.tail)
        if not (is_high and self._lasting.is_open):
            baseline.learn(loss)
        return is_high

    def _severity(self, norm: float, *, is_doubling: bool, is_loss_high: bool) -> Severity:
        if self._is_solved or self._is_learning:
            return Severity.INFO
        num, ratio = self._num_high, norm / math.exp(self._level)
        if (num >= self.config.critical_steps and self._is_known) or (
            is_loss_high and num >= self.config.persist_steps
        ):
            return Severity.CRITICAL
        is_warning = is_doubling or num >= self.config.persist_steps or ratio >= self.config.outlier_ratio
        return Severity.WARNING if is_warning else Severity.INFO

    @property
    def _is_learning(self) -> bool:
        """Whether the loss is better than before the norm rose."""
        return len(self._losses) == RECENT and median(self._losses) < self._loss_before

    def _severity_while_moving(self, norm: float) -> Severity:
        """Where the objective moves, norms jump with it: a copied target network, a new reward, a better opponent.

        Such a jump alone never pages: a run that is lost shows it in its loss or its numbers.
        """
        num, ratio = self._num_high, norm / math.exp(self._level)
        is_far = self._is_known and num >= self.config.critical_steps and ratio >= self.config.outlier_ratio**2
        return Severity.WARNING if is_far or num >= MOVING_TIMES * self.config.critical_steps else Severity.INFO

    def _end(self, step: int, norm: float) -> Finding:
        summary = f"gradient norm back at {norm:.3g} after a peak of {self._peak:.3g}"
        finding = self._finding(step, norm, Severity.INFO, "resolved", summary)
        if self._longest == 1:  # an outlier of one batch is normal for this run; an explosion is not
            self._norm.learn(math.log(self._peak))
        self._norm.learn(math.log(norm))
        self._num_high, self._longest, self._peak, self._worst = 0, 0, 0.0, Severity.INFO
        return finding

    def _finding(self, step: int, norm: float, severity: Severity, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=self._lasting.onset if self._lasting.onset is not None else step,
            summary=summary,
            state=state,
            values={"grad_norm": norm, "level": math.exp(self._level), "scale": self._scale, "peak": self._peak},
        )
