"""plateau: the run learned, and then stopped, long before it should have.

Design
------
Most runs end flat, because they have converged: flatness alone is no news. The rule asks two things. Is the loss flat:
a straight line through the later half of the run's curve does not surely fall, and what it fell is next to nothing.
And is there a reason to think that this is not the end:

- the learning rate has been next to nothing, against its peak, for a good part of the run: what is left is wasted;
- the gradient norm has sunk to next to nothing while the loss still stands near where it began: gradients are gone;
- the loss still stands near where it began, with a healthy learning rate: a saddle, or too little capacity. Where
  it began is chance, if the number of classes is known: a fine-tuned model starts near its end. Without that, and
  where the beginning was not seen (the daemon was restarted, the run resumed), nobody can say, and nothing is said.

Where none of them holds the run has converged, and nothing is said. A run that never fell at all is `not_learning`'s.
"""

import math
from dataclasses import dataclass
from statistics import fmean

from caboose_daemon.rules.parts.beginning import is_in_sight
from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.view import JobView

MIN_BUCKETS = 32
START_POINTS = 5
EIGHTHS = 8
HEALTHY_LR = 0.5
"""Share of its peak above which a learning rate is not on its way to the schedule's end."""


@dataclass(frozen=True)
class PlateauConfig(RuleConfig):
    """Thresholds of plateau."""

    min_steps: int = 200
    """Steps (or logged points) before anything is said."""
    min_improvement: float = 0.005
    """Share of its level that the loss must fall by over the later half of the run."""
    near_start: float = 0.8
    """Share of its first level above which the loss still stands near where it began."""
    decayed_lr: float = 0.01
    """Share of its peak below which the learning rate has decayed away."""
    decayed_share: float = 0.25
    """Share of the run that it must have been so; schedules that end with the run stay below."""
    gone_gradient: float = 0.001
    """Share of its first level below which the gradient norm is gone."""


class Plateau(Rule[PlateauConfig]):
    """A standstill that is not the end."""

    name = "plateau"
    config_class = PlateauConfig
    needs = frozenset({"loss"})
    forgets_after = frozenset({"data_switch", "restart"})

    def __init__(self, config: PlateauConfig) -> None:
        super().__init__(config)
        self._curve = Curve()
        self._start: list[float] = []
        self._is_in_sight = True
        """Whether the run began where the curve does."""
        self._start_norm: list[float] = []
        self._norm = math.nan
        self._peak_lr = 0.0
        self._lr = math.nan
        self._num_decayed = 0
        self._reason = ""
        self._onset = 0

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the run stands still for a reason that can be named."""
        step = view.step
        if step is None or (loss := step.finite_loss) is None:
            return None
        self._follow(step.lr, step.finite_grad_norm)
        if not self._start:
            self._is_in_sight = is_in_sight(step, view.regime)
        if len(self._start) < START_POINTS:
            self._start.append(loss)
        has_new = self._curve.add(loss) and "warmup" not in view.regime.active
        if has_new and self._curve.num_points >= self.config.min_steps:
            reason = self._judge(view, step.step)
            ended, self._reason = self._reason if not reason else "", reason
            if reason and not self._onset:
                self._onset = step.step
            if ended:
                finding = self._finding(step.step, "resolved", "the loss falls again")
                self._onset = 0
                return finding
        if not self._reason:
            return None
        return self._finding(step.step, "open", f"loss stands at {self._curve.means[-1]:.4g}: {self._reason}")

    def resume(self, finding: Finding) -> None:
        """Since when, why, and where the run began; whether it still stands shows anew."""
        values = finding.values
        self._onset, self._reason = finding.onset_step, finding.summary.partition(": ")[2]
        self._start, self._peak_lr = [values["start"]] * START_POINTS, values["peak_lr"]
        self._start_norm = [values["start_norm"]] if math.isfinite(values["start_norm"]) else []

    def _follow(self, lr: tuple[float, ...], norm: float | None) -> None:
        if lr:
            self._lr = max(lr)
            self._peak_lr = max(self._peak_lr, self._lr)
            self._num_decayed = self._num_decayed + 1 if self._lr < self.config.decayed_lr * self._peak_lr else 0
        if norm is not None:
            if len(self._start_norm) < START_POINTS:
                self._start_norm.append(norm)
            self._norm = norm if math.isnan(self._norm) else self._norm + (norm - self._norm) / 32

    def _judge(self, view: JobView, step: int) -> str:
        means = self._curve.means
        if len(means) < MIN_BUCKETS:
            return ""
        line = trend(means[len(means) // 2 :])
        limit = self.config.min_improvement
        if self._reason:  # said once, it stands until the loss surely falls, and by enough
            if line.falls(2.5) and line.relative < -limit:
                return ""
        elif line.falls(2.5) or line.relative < -limit or line.relative_error > 2 * limit:
            return ""
        total = view.setting("total_steps")
        if total is not None and step > 0.9 * total:
            return ""  # it may end as it is
        if self._num_decayed > self.config.decayed_share * self._curve.num_points:
            share = self._lr / self._peak_lr
            return f"the learning rate has been {share:.1g} of its peak for {self._num_decayed} steps"
        if self._lr < HEALTHY_LR * self._peak_lr:
            return ""  # on its way down a schedule: this may be the end it was given
        classes = view.setting("num_classes")
        # A fine-tuned model begins far below chance, near its end: where chance is known, that is the beginning.
        start = max(self._first if self._is_in_sight else 0.0, math.log(classes) if classes is not None else 0.0)
        if start <= 0 or line.level < self.config.near_start * start or self._is_flat_since_the_beginning(start):
            return ""
        if self._start_norm and self._norm < self.config.gone_gradient * max(self._start_norm):
            return f"the gradient norm has sunk to {self._norm:.2g}, the loss has hardly fallen: gradients are gone"
        return f"it has hardly fallen from {start:.4g}, and the learning rate is healthy: a saddle, or no capacity"

    @property
    def _first(self) -> float:
        return sorted(self._start)[len(self._start) // 2]

    def _is_flat_since_the_beginning(self, start: float) -> bool:
        means = self._curve.means
        size = len(means) // EIGHTHS  # a single bucket of a noisy run lies low by chance
        eighths = (fmean(means[i : i + size]) for i in range(0, len(means) - size + 1, size))
        return min(eighths) > 0.97 * start

    def _finding(self, step: int, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.INFO if state == "resolved" else Severity.WARNING),
            step=step,
            onset_step=self._onset or step,
            summary=summary,
            state=state,
            values={
                "level": self._curve.means[-1],
                "start": self._first,
                "lr": self._lr,
                "peak_lr": self._peak_lr,
                "grad_norm": self._norm,
                "start_norm": max(self._start_norm, default=math.nan),
            },
        )
