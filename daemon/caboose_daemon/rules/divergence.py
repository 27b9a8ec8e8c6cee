"""divergence: the loss left its basin and does not come back.

Design
------
A spike is judged step by step; a divergence by where the loss *lies*: the median of its last few values against the
best level the run has sustained. The median cannot be moved by outliers, and the best level is a slow average, which
lucky batches cannot lower. The distance has to be large by ratio and by the uncertainty of the median in this run's own
noise, for `persist_steps` in a row, so noise of any size and a spike that heals in between are left alone.

The first steps have no basin to leave: initialisation and warm-up may raise the loss before it falls. It is critical
once the loss lies far above (`critical_ratio`) and is not on its way back; a lesser distance, or one that shrinks, is a
warning. The best level is never forgotten within an attempt, so what has diverged is not learned as normal.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from caboose_daemon.rules.baseline import Baseline
from caboose_daemon.rules.finding import Finding, Severity
from caboose_daemon.rules.lasting import Lasting
from caboose_daemon.rules.rule import Rule, RuleConfig
from caboose_daemon.view import JobView

RECENT = 9
MEDIAN_ERROR = 1.2533 / math.sqrt(RECENT)
"""Standard error of the median of that many normal values, in scales."""


@dataclass(frozen=True)
class DivergenceConfig(RuleConfig):
    """Thresholds of divergence."""

    ratio: float = 1.25
    """How many times its best level the loss must lie at."""
    critical_ratio: float = 1.5
    """How many times its best level, without coming back, is critical."""
    errors: float = 8.0
    """How many standard errors of the recent median above the best level; guards noisy losses."""
    persist_steps: int = 20
    """Steps in a row that it has to lie there."""
    calm_steps: int = 20
    """Steps back near the best level before it is over."""
    warmup_steps: int = 20
    """Steps before there is a basin to leave."""


class Divergence(Rule[DivergenceConfig]):
    """A loss that rose and stays up."""

    name = "divergence"
    config_class = DivergenceConfig
    needs = frozenset({"loss"})
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: DivergenceConfig) -> None:
        super().__init__(config)
        self._baseline = Baseline(config.warmup_steps)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._best = math.inf
        self._scale = math.nan
        self._peak = -math.inf
        self._num_near = 0
        self._lasting = Lasting(config.persist_steps, config.calm_steps)
        self._worst = Severity.WARNING

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step that the loss lies above its basin."""
        step = view.step
        if step is None or not math.isfinite(step.mean_loss):
            return None
        loss = step.mean_loss
        self._recent.append(loss)
        baseline = self._baseline
        # Between the best level and now the level may be learned: it is the best one that counts, and that stays.
        baseline.learn(loss)
        if not baseline.is_ready:
            return None
        if baseline.level < self._best and not self._lasting.is_open:
            self._best, self._scale = baseline.level, baseline.scale
        self._num_near = self._num_near + 1 if 0 < loss <= self._best * self.config.ratio else 0
        if self._num_near > RECENT // 2 and self._lasting.onset is None:
            return None  # more than half of the recent values are near, and so is their median: most steps end here
        middle = median(self._recent)
        verdict = self._lasting.judge(step.step, self._is_away(middle))
        if verdict == "quiet":
            self._peak = max(self._peak, middle) if self._lasting.onset is not None else -math.inf
            return None
        if verdict == "resolved":
            self._worst, self._peak = Severity.WARNING, -math.inf
            return self._finding(step.step, middle, Severity.INFO, "resolved", "the loss is back in its basin")
        self._peak = max(self._peak, middle)
        return self._open(step.step, middle)

    def resume(self, finding: Finding) -> None:
        """The basin is in the finding."""
        self._best, self._scale = finding.values["best"], finding.values["scale"]
        self._peak = finding.values["peak"]
        self._worst = finding.severity if finding.severity is not Severity.INFO else Severity.WARNING
        self._lasting.take_up(finding.onset_step)

    def _is_away(self, middle: float) -> bool:
        best = self._best
        if best > 0 and middle <= best * self.config.ratio:
            return False
        return middle - best > self.config.errors * MEDIAN_ERROR * self._scale

    def _open(self, step: int, middle: float) -> Finding:
        rise = middle - self._best
        is_returning = rise < 0.8 * (self._peak - self._best)
        if not is_returning and (self._best <= 0 or middle > self.config.critical_ratio * self._best):
            self._worst = Severity.CRITICAL
        state = "recovering" if is_returning else "diverging"
        num = step - (self._lasting.onset or step)
        where = "coming back" if is_returning else "not coming back"
        summary = f"loss lies at {middle:.4g} against its best level of {self._best:.4g} for {num} steps, {where}"
        return self._finding(step, middle, self._worst, state, summary)

    def _finding(self, step: int, middle: float, severity: Severity, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=self._lasting.onset if self._lasting.onset is not None else step,
            summary=summary,
            state=state,
            values={"level": middle, "best": self._best, "scale": self._scale, "peak": self._peak},
        )
