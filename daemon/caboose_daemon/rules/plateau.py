"""plateau: the loss improved and then went flat, too early to be converged.

Design
------
Most runs end flat because they have converged: flatness alone means nothing. The rule tests two things. Is the loss
flat: a straight line through the later half of the run's curve does not fall significantly, and its fall is negligible.
And is there a reason to think that the run is not converged:

- the learning rate has been a negligible share of its peak for a good part of the run: the remaining steps are wasted;
- the gradient norm has become negligible while the loss is still near its start: the gradients have vanished;
- the loss is still near its start at a healthy learning rate: a saddle, or too little capacity. The start is chance if
  the number of classes is known, because a fine-tuned model starts near its end. Without that, and where the start was
  not seen (the daemon was restarted, the run resumed), this cannot be judged.

Where none of them holds, the run has converged and nothing is reported; nor while an accuracy still rises (see
`rising_score`). A run that never fell is `not_learning`'s.

Logs have few rows, each for many steps, and often neither norm nor rate. There the length of the run itself is the
reason: a loss that has stood still for three quarters of it (see `standstill`) is stuck, unless it fell so far before
(`kept`) that nothing may be left to learn, or so little (`learned`) that `not_learning` reports it. A live run is not
judged so: a small model may be at its noise floor within a hundred steps.
"""

import math
from dataclasses import dataclass
from statistics import fmean

from caboose_daemon.rules.parts.beginning import is_start_of_run
from caboose_daemon.rules.parts.chance import known
from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.hindsight import is_too_early
from caboose_daemon.rules.parts.rising_score import RisingScore
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.standstill import PART, standstill
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

MIN_BUCKETS = 32
START_POINTS = 5
EIGHTHS = 8
HEALTHY_LR = 0.5
"""Share of its peak above which a learning rate is not yet decaying to the schedule's end."""


@dataclass(frozen=True)
class PlateauConfig(RuleConfig):
    """Thresholds of plateau."""

    min_steps: int = 200
    """Steps (or logged points) before the first judgement."""
    min_improvement: float = 0.005
    """Fall of the loss over the later half of the run, as a share of its level, below which it is flat."""
    near_start: float = 0.8
    """Share of its first level above which the loss is still near its start."""
    decayed_lr: float = 0.01
    """Share of its peak below which the learning rate has decayed."""
    decayed_share: float = 0.25
    """Share of the run with a decayed rate that is reported; schedules that end with the run stay below."""
    gone_gradient: float = 0.001
    """Share of its first level below which the gradient norm has vanished."""
    min_points: int = 16
    """Rows of a log before it can have stood still for three quarters of its run."""
    learned: float = 0.6
    """Share of its first loss (or of chance) above which a log that stands still is `not_learning`'s."""
    kept: float = 0.25
    """Share of it below which a log that stands still may have converged."""


class Plateau(Rule[PlateauConfig]):
    """A flat loss that has not converged."""

    name = "plateau"
    config_class = PlateauConfig
    judges_parts = True
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch", "restart"})

    def __init__(self, config: PlateauConfig) -> None:
        super().__init__(config)
        self._curve = Curve()
        self._evaluations = Curve()
        self._start: list[float] = []
        self._is_start_seen = True
        """Whether the curve begins at the start of the run."""
        self._first_step = 0
        self._start_norm: list[float] = []
        self._norm = math.nan
        self._peak_lr = 0.0
        self._lr = math.nan
        self._num_decayed = 0
        self._score = RisingScore()
        self._summary = ""
        """What is reported; empty while nothing is."""
        self._onset = 0

    def observe(self, view: JobView) -> Finding | None:
        """A finding while the loss is flat for one of the reasons."""
        step = view.step
        for evaluation in of_events(view.events) if view.events else ():
            if math.isfinite(evaluation.loss):
                self._evaluations.add(evaluation.loss)
        self._score.observe(view)
        if step is None or (loss := step.finite_loss) is None:
            return None
        self._follow(step.lr, step.finite_grad_norm)
        if not self._start:
            self._is_start_seen, self._first_step = is_start_of_run(step, view.regime), step.step
        if len(self._start) < START_POINTS:
            self._start.append(loss)
        has_new = self._curve.add(loss) and "warmup" not in view.regime.active
        is_log, num = step.stands_for_many, self._curve.num_points
        enough = self.config.min_points if is_log else self.config.min_steps
        if has_new and num >= enough and not (is_log and is_too_early(view, num)):
            reason = self._judge(view, step.step) if num >= self.config.min_steps else ""
            began = step.step
            if is_log and not reason and (reason := self._stands_still(view)):
                began = self._first_step + (step.step - self._first_step) // PART
            reason = "" if self._score.is_rising else reason
            has_ended = bool(self._summary) and not reason
            if reason and not self._onset:
                self._onset = began
            level = f"{self._curve.means[-1]:.4g}"
            self._summary = f"loss flat at {level} since step {self._onset:,}: {reason}" if reason else ""
            if has_ended:
                finding = self._finding(step.step, "resolved", f"loss falls again, now {level}")
                self._onset = 0
                return finding
        return self._finding(step.step, "open", self._summary) if self._summary else None

    def resume(self, finding: Finding) -> None:
        """Restores onset, summary and start; whether it is still flat is judged again."""
        values = finding.values
        self._onset, self._summary = finding.onset_step, finding.summary
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
        """The reason why this flat loss is not converged; empty where it is not flat, or has no such reason."""
        means = self._curve.means
        if len(means) < MIN_BUCKETS:
            return ""
        line = trend(means[len(means) // 2 :], remembers=True)
        limit = self.config.min_improvement
        if self._summary:  # once reported, it lasts until the loss falls significantly, and by enough
            if line.falls(2.5) and line.relative < -limit:
                return ""
        elif line.falls(2.5) or line.relative < -limit or line.relative_error > 2 * limit:
            return ""
        total = view.setting("total_steps")
        if total is not None and step > 0.9 * total:
            return ""  # the run is nearly over
        if self._num_decayed > self.config.decayed_share * self._curve.num_points:
            share = 100 * self._lr / self._peak_lr
            return f"learning rate at {share:.1g} % of its peak for {self._num_decayed:,} steps"
        if self._lr < HEALTHY_LR * self._peak_lr:
            return ""  # the schedule is decaying: this may be its planned end
        classes = view.setting("num_classes")
        # A fine-tuned model starts far below chance, near its end: where chance is known, that is the start.
        start = max(self._first if self._is_start_seen else 0.0, math.log(classes) if classes is not None else 0.0)
        if start <= 0 or line.level < self.config.near_start * start:
            return ""
        # A first loss that is worse than chance is that of an odd batch, or of odd weights: falling to it is no start.
        if self._is_flat_since_start(start if classes is None else min(start, math.log(classes))):
            return ""
        if self._start_norm and self._norm < self.config.gone_gradient * max(self._start_norm):
            fall = f"from {max(self._start_norm):.2g} to {self._norm:.2g}"
            return f"gradient norm vanished ({fall}), start {start:.4g}"
        rate = "" if math.isnan(self._lr) else f", learning rate {self._lr:.2g} near its peak"
        return f"start {start:.4g}{rate} (saddle or too little capacity)"

    def _stands_still(self, view: JobView) -> str:
        """The reason where a log has stood still for three quarters of its run; empty where it has not."""
        line = standstill(self._curve, self._evaluations, self.config.min_improvement, is_open=bool(self._summary))
        start = max(self._start[0], known(view) or 0.0)
        if line is None or not self._is_start_seen:
            return ""
        if not self.config.kept * start <= line.level <= self.config.learned * start:
            return ""
        return f"it has not fallen for three quarters of the run, start {start:.4g}"

    @property
    def _first(self) -> float:
        return sorted(self._start)[len(self._start) // 2]

    def _is_flat_since_start(self, start: float) -> bool:
        means = self._curve.means
        size = len(means) // EIGHTHS  # a single bucket of a noisy run may be low by chance
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
