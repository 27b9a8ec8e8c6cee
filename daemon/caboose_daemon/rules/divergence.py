"""divergence: the loss rose well above its best level and does not recover.

Design
------
A spike is judged step by step, a divergence by the *level* of the loss: the median of the last few values against the
best level that the run has sustained. Outliers cannot move the median, and lucky batches cannot lower the best level,
which is a slow average. The distance must be large by ratio and by the uncertainty of the median in this run's own
noise, for `persist_steps` in a row, so noise of any size and a spike that recovers in between are not reported. For a
loss that has been negative a ratio means nothing, and the distance is measured by the run's improvement so far (see
`progress`).

It is critical when what was learned is being lost and the loss is not recovering: it has risen by `critical_share` of
what the run gained and is still rising, or it is back at its start `critical_steps` after it left. A smaller distance,
or a shrinking one, is a warning. The first steps have no level to leave: initialisation and warm-up may raise the loss
before it falls, and the loss of a model that makes its own targets rises with them from the start. So where little was
gained, it is critical only at twice the best level for `critical_steps`, after the run was near its best for as long.

A rise can also be too slow for that, or have no level before it: a loss that has been above its best by `slow_ratio`
for a third of the run, and is not coming back (see `long_rise`). Above where the run began that is critical. So is
either of them at the last row of a log, at `ratio` times the best level or more: this run does not come back.

A loss that runs to minus infinity (see `runaway`) is critical as well: it is not the loss that was meant.

The best level is never forgotten within an attempt, so a diverged level is not learned as normal. A run that recovered
several times before, as in adversarial training, is reported only when the rise is higher or longer than those (see
`past_spikes`).
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from caboose_daemon.format import amount
from caboose_daemon.rules.parts.baseline import Baseline
from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.hindsight import is_last
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.long_rise import LongRise, Risen
from caboose_daemon.rules.parts.past_spikes import PastSpikes
from caboose_daemon.rules.parts.progress import Progress
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.runaway import Runaway
from caboose_daemon.steps.view import JobView

RECENT = 9
MEDIAN_ERROR = 1.2533 / math.sqrt(RECENT)
"""Standard error of the median of that many normal values, in scales."""
SURE = 4.0
"""Standard errors by which a rise must exceed zero to be significant."""
STAYS = 0.8
"""Share of its peak below which a rise is recovering."""


@dataclass(frozen=True)
class DivergenceConfig(RuleConfig):
    """Thresholds of divergence."""

    ratio: float = 1.25
    """Loss over its best level that is reported; for a loss that has been negative, 1 + a share of its improvement."""
    least_share: float = 0.01
    """Share of the run's improvement that a rise must undo to be one; guards losses near zero."""
    critical_ratio: float = 1.5
    """Loss over its best level that is needed to be critical, and start over best level of a run that has learned."""
    critical_share: float = 0.25
    """Share of the run's improvement that must be lost, while the loss still rises, to be critical."""
    critical_steps: int = 100
    """Steps after which a loss that is back at its start, and not recovering, is critical."""
    slow_ratio: float = 1.1
    """Loss over its best level that is reported where it lasted for a third of the run, in the measure of `ratio`."""
    slow_steps: int = 500
    """Steps of a live run before that is judged."""
    slow_points: int = 16
    """Points of a log before that is judged; most logs have one per many steps, or one per epoch."""
    errors: float = 8.0
    """Standard errors of the recent median above the best level that are needed; guards noisy losses."""
    persist_steps: int = 20
    """Steps in a row before it is reported."""
    calm_steps: int = 20
    """Steps near the best level before it is resolved."""
    warmup_steps: int = 20
    """Steps before there is a level to leave."""


class Divergence(Rule[DivergenceConfig]):
    """A loss that rose and stays up."""

    name = "divergence"
    config_class = DivergenceConfig
    judges_parts = True
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: DivergenceConfig) -> None:
        super().__init__(config)
        self._baseline = Baseline(config.warmup_steps)
        self._progress = Progress()
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._since = Curve()
        """The losses since it rose above the limit."""
        self._best = math.inf
        self._scale = math.nan
        self._limit = -math.inf
        """The loss must exceed this to be away from its best level, noise apart."""
        self._peak = -math.inf
        self._num_near_in_a_row = 0
        self._num_near = 0
        self._lasting = Lasting(config.persist_steps, config.calm_steps)
        self._left_at = 0
        self._past = PastSpikes()
        self._rise = LongRise()
        self._runaway = Runaway()
        self._rise_onset: int | None = None
        self._first_step: int | None = None
        self._num_losses = 0
        self._ends_here = False
        """Whether this is the last row of a log."""
        self._is_reported = False
        self._worst = Severity.WARNING

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step while the loss is away from its best level."""
        step = view.step
        if step is None or step.mean_loss is None:
            return None
        self._num_losses += 1
        if (loss := step.finite_loss) is None:
            return None
        if self._first_step is None:
            self._first_step = step.step
        self._ends_here = step.stands_for_many and is_last(view, self._num_losses)
        self._progress.observe(loss, view)
        self._rise.add(loss, self.config.slow_points if step.stands_for_many else self.config.slow_steps)
        self._runaway.add(loss)
        slow = None if self._is_reported else self._follow_rise(step.step)
        quick = self._follow_level(step.step, loss)
        return slow or quick or (self._run_away(step.step, loss) if self._runaway.since else None)

    def _follow_level(self, step: int, loss: float) -> Finding | None:
        """By the level of the last few losses."""
        self._recent.append(loss)
        baseline = self._baseline
        # Learning a diverged level does no harm: only the best one counts, and it never rises.
        baseline.learn(loss)
        if not baseline.is_ready:
            return None
        if baseline.level < self._best and not self._lasting.is_open:
            self._best, self._scale = baseline.level, baseline.scale
            self._limit = self._best + (self.config.ratio - 1.0) * self._progress.size(self._best)
        is_near = loss <= self._limit
        self._num_near_in_a_row = self._num_near_in_a_row + 1 if is_near else 0
        self._num_near += is_near
        if self._num_near_in_a_row > RECENT // 2 and self._lasting.onset is None:
            return None  # more than half of the recent values are near, and so is their median: most steps end here
        return self._judge(step, median(self._recent))

    def _follow_rise(self, step: int) -> Finding | None:
        """By the curve of the whole run."""
        risen = self._rise.found
        if risen is not None and self._is_long_rise(risen):
            if self._rise_onset is None:
                assert self._first_step is not None, "there was a loss"
                share = risen.num_since / self._progress.num
                self._rise_onset = step - round(share * (step - self._first_step))
            is_lost = risen.level > self._progress.first or self._has_ended_high(risen.level - risen.best, risen.best)
            severity = Severity.CRITICAL if is_lost else Severity.WARNING
            summary = f"loss rising: {risen.level:.4g} against {risen.best:.4g} before step {self._rise_onset:,}"
            return self._slow_finding(step, risen, severity, "diverging", summary)
        if self._rise_onset is None:
            return None
        summary = f"loss no longer rising: {self._recent[-1]:.4g}"
        finding = self._slow_finding(step, risen, Severity.INFO, "resolved", summary)
        self._rise_onset = None
        return finding

    def resume(self, finding: Finding) -> None:
        """The best level is in the finding."""
        values = finding.values
        if "runs_away" in values:
            self._runaway.restore(values["first"])
            return
        self._best, self._scale, self._peak = values["best"], values["scale"], values["peak"]
        self._progress.restore(values.get("first", self._best), self._best)
        self._limit = self._best + (self.config.ratio - 1.0) * self._progress.size(self._best)
        self._worst = finding.severity if finding.severity is not Severity.INFO else Severity.WARNING
        self._lasting.restore(finding.onset_step)
        self._num_near, self._is_reported = self.config.critical_steps, True

    def _judge(self, step: int, middle: float) -> Finding | None:
        rise, least = middle - self._best, self.config.least_share * self._progress.gained(self._best)
        is_away = middle > self._limit and rise > max(self.config.errors * MEDIAN_ERROR * self._scale, least)
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
        if not self._is_reported and self._past.is_usual(self._left_at, height, length):
            return None
        self._is_reported = True
        is_recovering = middle - self._best < STAYS * height
        if not is_recovering and (
            self._is_lost(middle, length) or self._has_ended_high(middle - self._best, self._best)
        ):
            self._worst = Severity.CRITICAL
        state = "recovering" if is_recovering else "diverging"
        onset = self._lasting.onset if self._lasting.onset is not None else step
        trend_now = "recovering" if is_recovering else "not recovering"
        summary = f"loss diverged: {middle:.4g} against {self._best:.4g} before step {onset:,}, {trend_now}"
        return self._finding(step, middle, self._worst, state, summary)

    def _is_lost(self, middle: float, length: int) -> bool:
        """Whether the run's improvement is lost, or is being lost."""
        rise, far = middle - self._best, self.config.critical_ratio - 1.0
        if rise <= far * self._progress.size(self._best):
            return False
        gained = self._progress.gained(self._best)
        has_stayed = length >= self.config.critical_steps
        if gained < far * abs(self._best):  # too little was gained to measure a loss by it
            return has_stayed and rise >= abs(self._best) and self._num_near >= self.config.critical_steps
        is_losing = rise > self.config.critical_share * gained and self._is_still_rising()
        return is_losing or (has_stayed and rise >= gained)

    def _has_ended_high(self, rise: float, best: float) -> bool:
        """Whether this is the end of a log, which is well above its best level: it will not come back."""
        return self._ends_here and rise > (self.config.ratio - 1.0) * self._progress.size(best)

    def _is_still_rising(self) -> bool:
        """Whether the loss rises significantly over the later half of the time since it left its best level."""
        means = self._since.means
        return len(means) >= RECENT and trend(means[len(means) // 2 :]).rises(SURE)

    def _end(self, step: int, middle: float) -> Finding | None:
        self._past.add(self._progress.num, self._peak - self._best, self._progress.num - self._left_at)
        summary = f"loss back at {middle:.4g} after a peak of {self._peak:.4g}, best level {self._best:.4g}"
        finding = self._finding(step, middle, Severity.INFO, "resolved", summary)
        was_reported, self._is_reported = self._is_reported, False
        self._worst, self._peak = Severity.WARNING, -math.inf
        return finding if was_reported else None

    def _run_away(self, step: int, loss: float) -> Finding:
        """The loss has no least value: it is critical, for nothing of it will be of use."""
        first = self._runaway.first
        summary = f"loss runs to minus infinity: {loss:.4g}, {amount(abs(loss) / max(first, 1e-12))}x its first size"
        values = {"level": loss, "best": loss, "scale": self._scale, "peak": loss, "first": self._progress.first}
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.CRITICAL),
            step=step,
            onset_step=self._first_step if self._first_step is not None else step,
            summary=summary,
            state="diverging",
            values={**values, "runs_away": 1.0},
        )

    def _is_long_rise(self, risen: Risen) -> bool:
        height = risen.level - risen.best
        is_high = height >= (self.config.slow_ratio - 1.0) * self._progress.size(risen.best)
        return is_high and not self._past.is_usual_height(height)

    def _slow_finding(self, step: int, risen: Risen | None, severity: Severity, state: str, summary: str) -> Finding:
        level = self._recent[-1] if risen is None else risen.level
        best = self._best if risen is None else risen.best
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=self._rise_onset if self._rise_onset is not None else step,
            summary=summary,
            state=state,
            values={"level": level, "best": best, "scale": self._scale, "peak": level, "first": self._progress.first},
        )

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
