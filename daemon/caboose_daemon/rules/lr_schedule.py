"""lr_schedule: the learning rate does what no schedule would.

Design
------
Four things, each told from the schedules that look like it:

* A jump: up by more than `jump_ratio` from one step to the next, and by a good part of the highest rate so far (a
  rise out of a trough has huge ratios and tiny steps). Schedules jump in three ways. In a warm-up the rate has only
  ever risen; the regime knows. A warm restart goes back to the very peak it came from. And schedulers that are stepped
  once an epoch climb their warm-up in stairs: such a jump falls on a scheduler's step, as the steps before it did not.
  Where a log skips steps, what lies between is not known, and only a rate far above all before counts.
* A reset: the scheduler's own count goes back, or the rate after a resume is far from the one that the same step was
  taken with before. Rates are lowered on purpose after a resume, so downwards only the order of magnitude counts.
* Zero, or next to nothing of its peak, before the end: steps that change nothing, while the run goes on. Cosine
  schedules touch zero for one step, and a rate that a log has rounded stands at zero for the last few hundredths of a
  run.
* A scheduler that never moves the rate: it was never stepped (its count stands though epochs have passed), or it
  belongs to another optimizer (it counts, but a kind that moves at every step does not move). Kinds that are constant
  by design, or wait for a plateau or a milestone, are judged by their count alone, or not at all.

The highest rate of all groups is looked at: a group that is frozen or unfrozen is not the schedule. Declared restarts,
batch ramps and data switches are left alone. It is a warning: what a wrong rate does to the loss has rules of its own.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

DECLARED = frozenset({"restart", "batch_ramp", "data_switch"})
RISE = 0.25
"""Share of the highest rate so far by which a jump goes up at least."""
SAME_PEAK = 0.05
"""How close to its peak a warm restart comes back."""
RESUME_BELOW = 10.0
NEXT_TO_NOTHING = 1e-6
"""Share of its peak at which a rate is as good as zero: what it changes is below the weights' precision."""
ZERO_STEPS = 5
ZERO_STEPS_WITHOUT_END = 100
ZERO_SHARE = 0.05
"""How long a rate of zero is watched where the run's length is not known: steps, and the share of the run so far."""
END = 0.98
"""Share of the run from which on a rate of zero is its end."""
CALM_STEPS = 100
"""After so many steps a jump is no longer news, whatever became of it."""
NUM_EPOCHS = 2
EPOCH_STEPS = 10_000
"""What counts as an epoch where neither its length nor the run's is known; else the batches, or a tenth of the run."""
MOVING = frozenset(
    {
        "CosineAnnealingLR",
        "CosineAnnealingWarmRestarts",
        "CyclicLR",
        "ExponentialLR",
        "OneCycleLR",
        "PolynomialLR",
    }
)
"""Kinds that change the rate whenever they are stepped."""
UNMOVED = frozenset({"ConstantLR", "ReduceLROnPlateau"})
"""Kinds of which nothing is expected: constant by design, or waiting for a plateau."""
MOVES = 20
"""Scheduler's steps after which one of `MOVING` must have changed the rate."""


@dataclass(frozen=True)
class LrScheduleConfig(RuleConfig):
    """Thresholds of lr_schedule."""

    jump_ratio: float = 2.0
    """How many times the rate of the step before counts as a jump; also after a resume."""


@dataclass
class _Trouble:
    kind: str
    onset: int
    summary: str
    before: float
    lr: float


class LrSchedule(Rule[LrScheduleConfig]):
    """Jumps, resets, an early zero, and a scheduler without effect."""

    name = "lr_schedule"
    config_class = LrScheduleConfig
    needs = frozenset({"lr"})

    def __init__(self, config: LrScheduleConfig) -> None:
        super().__init__(config)
        self._lr: float | None = None
        self._first_lr = 0.0
        self._has_moved = False
        self._peak = 0.0
        self._has_fallen = False
        self._count: int | None = None
        self._first_count: int | None = None
        self._was_stepped = False
        self._first_step = 0
        self._last_step = 0
        self._num_skipped = 0
        self._first_epoch: int | None = None
        self._num_zero = 0
        self._trouble: _Trouble | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step while the schedule is in trouble."""
        step = view.step
        if step is None or not step.lr:
            return None
        lr = max(step.lr)
        if not math.isfinite(lr) or lr < 0:
            return None
        before, last_step = self._lr, self._last_step
        self._last_step = step.step
        self._num_skipped = max(0, step.step - last_step - 1)
        found = self._begin(view, step, lr) if before is None else self._look(view, step, lr, before)
        self._lr = lr
        if view.regime.active and not view.regime.active.isdisjoint(DECLARED):
            found = None
        if self._trouble is None:
            self._trouble = found
            return None if found is None else self._open(step, found)
        if found is not None and found.kind == self._trouble.kind:
            self._trouble.lr = max(self._trouble.lr, lr)
        return self._open(step, self._trouble) if self._lasts(view, step, lr) else self._over(step, lr)

    def resume(self, finding: Finding) -> None:
        """What was found, and the rate before it, are in the finding."""
        values = finding.values
        kind = next(kind for kind in ("jump", "reset", "zero", "unmoved") if kind in values)
        self._trouble = _Trouble(kind, finding.onset_step, finding.summary, values["before"], values["lr"])
        if kind == "unmoved":
            self._first_lr = values["lr"]
        elif kind == "zero":
            self._peak = values["before"]

    def _begin(self, view: JobView, step: AlignedStep, lr: float) -> _Trouble | None:
        self._first_lr = self._first_lr or lr
        self._peak = max(self._peak, lr)
        self._first_step, self._first_epoch = step.step, step.epoch
        self._count = self._first_count = _scheduler_steps(step)
        earlier, now = view.previous_lr, step.lr[0]
        if earlier is None or earlier <= 0:
            return None
        if self.config.jump_ratio * earlier >= now >= earlier / RESUME_BELOW:
            return None
        summary = f"after the resume the learning rate is {now:.3g}; at this step it was {earlier:.3g} before"
        return _Trouble("reset", step.step, f"{summary}: was the scheduler's state restored?", earlier, now)

    def _look(self, view: JobView, step: AlignedStep, lr: float, before: float) -> _Trouble | None:
        count = _scheduler_steps(step)
        known, was_stepped = self._count, self._was_stepped
        self._count = count
        self._was_stepped = count is not None and known is not None and count > known
        is_reset = count is not None and known is not None and count < known
        self._num_zero = self._num_zero + 1 if self._is_zero(lr) else 0
        if self._num_zero and self._peak > 0 and self._num_zero >= self._patience_at_zero(view, step) and not is_reset:
            return self._trouble_of("zero", step, lr, before)
        if lr != before:
            found = self._changed(view, step, lr, before, is_stair=self._was_stepped and not was_stepped)
            return self._trouble_of("reset", step, lr, before) if is_reset else found
        if is_reset:
            return self._trouble_of("reset", step, lr, before)
        if not self._has_moved and "scheduler" in view.facts and self._is_unmoved(view, step):
            return self._trouble_of("unmoved", step, lr, before)
        return None

    def _changed(
        self, view: JobView, step: AlignedStep, lr: float, before: float, *, is_stair: bool
    ) -> _Trouble | None:
        self._has_moved = True
        peak, has_fallen = self._peak, self._has_fallen
        self._peak = max(peak, lr)
        self._has_fallen = has_fallen or lr < before
        ratio = self.config.jump_ratio
        if lr <= ratio * before or lr - before <= RISE * peak or peak == 0.0:
            return None
        if self._num_skipped and lr <= ratio * peak:
            return None
        is_warmup = "warmup" in view.regime.active or (is_stair and not has_fallen)
        is_restart = has_fallen and abs(lr - peak) <= SAME_PEAK * peak
        return None if is_warmup or is_restart else self._trouble_of("jump", step, lr, before)

    def _is_zero(self, lr: float) -> bool:
        return lr <= NEXT_TO_NOTHING * self._peak

    def _patience_at_zero(self, view: JobView, step: AlignedStep) -> float:
        total = _total_steps(view)
        if total is None:
            return max(ZERO_STEPS_WITHOUT_END, ZERO_SHARE * (step.step - self._first_step))
        return ZERO_STEPS if step.step < END * total else math.inf

    def _is_unmoved(self, view: JobView, step: AlignedStep) -> bool:
        """Whether this scheduler should have changed the rate by now."""
        kind = view.facts["scheduler"]
        if kind in UNMOVED:
            return False
        if self._count is not None and self._first_count is not None and self._count > self._first_count:
            return kind in MOVING and self._count - self._first_count >= MOVES
        if self._count is None and kind not in MOVING:
            return False
        if step.epoch is not None and self._first_epoch is not None and step.epoch > self._first_epoch:
            return step.epoch - self._first_epoch >= NUM_EPOCHS
        length = view.setting("num_batches") or (_total_steps(view) or 10.0 * EPOCH_STEPS) / 10.0
        return step.step - self._first_step >= NUM_EPOCHS * length

    def _trouble_of(self, kind: str, step: AlignedStep, lr: float, before: float) -> _Trouble:
        onset = step.step
        if kind == "jump":
            summary = f"the learning rate jumped from {before:.3g} to {lr:.3g} in one step, no warm-up and no restart"
        elif kind == "reset":
            summary = f"the scheduler began anew: its count went back, and the learning rate went to {lr:.3g}"
        elif kind == "zero":
            onset, before = step.step - self._num_zero + 1, self._peak
            rate = "0" if lr == 0.0 else f"next to nothing ({lr:.1g}, from {self._peak:.2g})"
            summary = f"the learning rate is {rate} since step {onset}, and the run goes on: nothing is learned"
        else:
            counted = "it is never stepped" if self._count == self._first_count else "it is stepped without effect"
            summary = f"a scheduler is attached, but the learning rate has stood at {lr:.3g} from the start: {counted}"
        return _Trouble(kind, onset, summary, before, lr)

    def _lasts(self, view: JobView, step: AlignedStep, lr: float) -> bool:
        trouble = self._trouble
        assert trouble is not None, "asked only while there is one"
        if view.regime.active and not view.regime.active.isdisjoint(DECLARED):
            return False
        if trouble.kind == "zero":
            return self._is_zero(lr)
        if trouble.kind == "unmoved":
            return lr == trouble.lr
        if step.step - trouble.onset >= CALM_STEPS:
            return False
        near = self.config.jump_ratio
        return not trouble.before / near <= lr <= trouble.before * near

    def _open(self, step: AlignedStep, trouble: _Trouble) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.WARNING),
            step=step.step,
            onset_step=trouble.onset,
            summary=trouble.summary,
            values={trouble.kind: 1.0, "lr": trouble.lr, "before": trouble.before},
        )

    def _over(self, step: AlignedStep, lr: float) -> Finding:
        trouble, self._trouble = self._trouble, None
        assert trouble is not None, "only what began can end"
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=trouble.onset,
            summary=f"the learning rate is {lr:.3g} now",
            state="resolved",
        )


def _scheduler_steps(step: AlignedStep) -> int | None:
    for report in step.reports.values():
        return report.num_scheduler_steps
    return None


def _total_steps(view: JobView) -> float | None:
    names = ("total_steps", "max_steps", "num_training_steps")
    return next((total for name in names if (total := view.setting(name)) is not None and total > 0), None)
