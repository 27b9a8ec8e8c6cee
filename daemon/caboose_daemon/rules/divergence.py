"""divergence: the loss left its basin and does not come back.

Design
------
A spike is judged step by step; a divergence by where the loss *lies*: the median of its last few values against the
best level the run has sustained. The median cannot be moved by outliers, and the best level is a slow average, which
lucky batches cannot lower. The distance has to be large by ratio and by the uncertainty of the median in this run's own
noise, for `persist_steps` in a row, so noise of any size and a spike that heals in between are left alone. Of a loss
that has been negative a ratio says nothing, and the distance is measured by the way that the run has come (see
`progress`).

It is critical when what was learned is being lost, and the loss is not on its way back: it has risen by
`critical_share` of what the run gained and rises still, or it is back at its start `critical_steps` after it left. A
lesser distance, or one that shrinks, is a warning. The first steps have no basin to leave: initialisation and warm-up
may raise the loss before it falls, and that of a model which makes its own targets rises with them from the beginning.
So where little was gained it is critical only to lie at twice the best level for as long, once the run has stood there
for as long.

The best level is never forgotten within an attempt, so what has diverged is not learned as normal. But a run that came
back by itself several times, as those of two networks against each other do, is told of only when it goes higher, or
stays away for longer, than it did then (see `healed`).
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from caboose_daemon.rules.parts.baseline import Baseline
from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.past_spikes import Healed
from caboose_daemon.rules.parts.progress import Progress
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import JobView

RECENT = 9
MEDIAN_ERROR = 1.2533 / math.sqrt(RECENT)
"""Standard error of the median of that many normal values, in scales."""
SURE = 4.0
"""Standard errors of a rise that make it sure."""
STAYS = 0.8
"""Share of its peak above which a rise is not on its way back."""


@dataclass(frozen=True)
class DivergenceConfig(RuleConfig):
    """Thresholds of divergence."""

    ratio: float = 1.25
    """How many times its best level the loss must lie at; of one that has been negative, 1 + the share of its way."""
    critical_ratio: float = 1.5
    """How many times its best level it must lie at to be critical, and a run must have begun at that has learned."""
    critical_share: float = 0.25
    """Share of what the run has gained that must be lost, and more with every step, to be critical."""
    critical_steps: int = 100
    """Steps at which a loss that has lost all it gained, and has not come back, is critical."""
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
        self._progress = Progress()
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._since = Curve()
        """The losses since it left."""
        self._best = math.inf
        self._scale = math.nan
        self._limit = -math.inf
        """What the loss must lie above to be away, noise apart."""
        self._peak = -math.inf
        self._num_near = 0
        self._num_stood = 0
        self._lasting = Lasting(config.persist_steps, config.calm_steps)
        self._left_at = 0
        self._healed = Healed()
        self._is_told = False
        self._worst = Severity.WARNING

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step that the loss lies above its basin."""
        step = view.step
        if step is None or (loss := step.finite_loss) is None:
            return None
        self._progress.observe(loss, view)
        self._recent.append(loss)
        baseline = self._baseline
        # Between the best level and now the level may be learned: it is the best one that counts, and that stays.
        baseline.learn(loss)
        if not baseline.is_ready:
            return None
        if baseline.level < self._best and not self._lasting.is_open:
            self._best, self._scale = baseline.level, baseline.scale
            self._limit = self._best + (self.config.ratio - 1.0) * self._progress.size(self._best)
        is_near = loss <= self._limit
        self._num_near = self._num_near + 1 if is_near else 0
        self._num_stood += is_near
        if self._num_near > RECENT // 2 and self._lasting.onset is None:
            return None  # more than half of the recent values are near, and so is their median: most steps end here
        return self._judge(step.step, median(self._recent))

    def resume(self, finding: Finding) -> None:
        """The basin is in the finding."""
        values = finding.values
        self._best, self._scale, self._peak = values["best"], values["scale"], values["peak"]
        self._progress.take_up(values.get("first", self._best), self._best)
        self._limit = self._best + (self.config.ratio - 1.0) * self._progress.size(self._best)
        self._worst = finding.severity if finding.severity is not Severity.INFO else Severity.WARNING
        self._lasting.take_up(finding.onset_step)
        self._num_stood, self._is_told = self.config.critical_steps, True

    def _judge(self, step: int, middle: float) -> Finding | None:
        is_away = middle > self._limit and middle - self._best > self.config.errors * MEDIAN_ERROR * self._scale
        was_away = self._lasting.onset is not None
        verdict = self._lasting.judge(step, is_away)
        if self._lasting.onset is None:
            self._peak = -math.inf
            return None
        if not was_away:
            self._left_at, self._since = self._progress.num, Curve()
        self._since.add(self._recent[-1])
        self._peak = max(self._peak, middle)
        if verdict == "open":
            return self._open(step, middle)
        return self._end(step, middle) if verdict == "resolved" else None

    def _open(self, step: int, middle: float) -> Finding | None:
        height, length = self._peak - self._best, self._progress.num - self._left_at
        if not self._is_told and self._healed.is_usual(self._left_at, height, length):
            return None
        self._is_told = True
        is_returning = middle - self._best < STAYS * height
        if not is_returning and self._is_lost(middle, length):
            self._worst = Severity.CRITICAL
        state = "recovering" if is_returning else "diverging"
        num = step - (self._lasting.onset or step)
        where = "coming back" if is_returning else "not coming back"
        summary = f"loss lies at {middle:.4g} against its best level of {self._best:.4g} for {num} steps, {where}"
        return self._finding(step, middle, self._worst, state, summary)

    def _is_lost(self, middle: float, length: int) -> bool:
        """Whether what was gained is lost, or is just being."""
        rise, far = middle - self._best, self.config.critical_ratio - 1.0
        if rise <= far * self._progress.size(self._best):
            return False
        gained = self._progress.gained(self._best)
        has_stayed = length >= self.config.critical_steps
        if gained < far * abs(self._best):  # it has learned too little for a loss to be much of a measure
            return has_stayed and rise >= abs(self._best) and self._num_stood >= self.config.critical_steps
        is_losing = rise > self.config.critical_share * gained and self._rises_still()
        return is_losing or (has_stayed and rise >= gained)

    def _rises_still(self) -> bool:
        """Whether the loss surely rises, over the younger half of the time since it left: the way up is past then."""
        means = self._since.means
        return len(means) >= RECENT and trend(means[len(means) // 2 :]).rises(SURE)

    def _end(self, step: int, middle: float) -> Finding | None:
        self._healed.add(self._progress.num, self._peak - self._best, self._progress.num - self._left_at)
        finding = self._finding(step, middle, Severity.INFO, "resolved", "the loss is back in its basin")
        was_told, self._is_told = self._is_told, False
        self._worst, self._peak = Severity.WARNING, -math.inf
        return finding if was_told else None

    def _finding(self, step: int, middle: float, severity: Severity, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=self._lasting.onset if self._lasting.onset is not None else step,
            summary=summary,
            state=state,
            values={
                "level": middle,
                "best": self._best,
                "scale": self._scale,
                "peak": self._peak,
                "first": self._progress.first,
            },
        )
