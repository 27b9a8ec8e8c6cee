"""lr_schedule: the learning rate jumps, is reset, stays at zero or never moves, outside its schedule.

Design
------
Four conditions, each distinguished from the schedules that look like it:

* A jump: up by more than `jump_ratio` from one step to the next, and by a good part of the highest rate so far (a rise
  out of a minimum has huge ratios and tiny steps). Schedules jump in three ways. In a warm-up the rate has only risen
  so far; the regime shows that. A warm restart returns to the exact peak before it. And schedulers that are stepped
  once an epoch warm up in stairs: such a jump coincides with a scheduler step, and the steps before it do not. Where a
  log skips steps, the rates between are unknown, and only a rate far above all earlier ones counts.
* A reset: the scheduler's own step count goes back, within an attempt or from one to the next (one that starts over
  with a warm-up looks healthy by its rate), or the rate after a resume is far from the rate that the same step
  had before. Rates are often lowered on purpose after a resume, so downwards only the order of magnitude counts.
* Zero, a negligible share of its peak, or a low rate whose updates float32 rounds away, before the end: the run
  continues with steps that change nothing. Cosine schedules touch zero for one step, and a rate rounded by a log is
  zero for the last few percent of a run.
* A scheduler that never moves the rate: it was never stepped (its count is constant though epochs have passed), or it
  belongs to another optimizer (it counts, but a kind that changes the rate at every step does not). Kinds that are
  constant by design, or wait for a plateau or a milestone, are judged by their count alone, or not at all.

The highest rate of all groups is used: a group that is frozen or unfrozen does not change the schedule. Declared
restarts, batch ramps and data switches are ignored. It is a warning: other rules judge what a wrong rate does to the
loss.
"""

import math
from dataclasses import dataclass

from caboose_daemon.format import amount
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

DECLARED = frozenset({"restart", "batch_ramp", "data_switch"})
RISE = 0.25
"""Minimal height of a jump, as a share of the highest rate so far."""
SAME_PEAK = 0.05
"""Relative distance from its peak within which a warm restart returns."""
RESUME_BELOW = 10.0
LOW, ROUNDED = 1e-2, 2.0**-24
"""Share of its peak below which a rate is low, and the update, as a share of a weight, that float32 rounds away."""
FEW_COUNTS = 20
"""Scheduler steps below which one that starts over has lost nothing."""
NEXT_TO_NOTHING = 1e-6
"""Share of its peak below which a rate counts as zero: its updates are below the weights' precision."""
ZERO_STEPS = 5
ZERO_STEPS_WITHOUT_END = 100
ZERO_SHARE = 0.05
"""How long a rate may be zero where the run's length is unknown: steps, and share of the run so far."""
END = 0.98
"""Share of the run after which a rate of zero is its planned end."""
CALM_STEPS = 100
"""Steps after which a jump or reset is resolved, whatever the rate is."""
NUM_EPOCHS = 2
EPOCH_STEPS = 10_000
"""Length of an epoch where neither its batches nor the run's length is known; else its batches, or 1/10 of the run."""
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
"""Kinds that may never change the rate: constant by design, or waiting for a plateau."""
MOVES = 20
"""Scheduler steps after which one of `MOVING` must have changed the rate."""


@dataclass(frozen=True)
class LrScheduleConfig(RuleConfig):
    """Thresholds of lr_schedule."""

    jump_ratio: float = 2.0
    """Rate over that of the step before that is a jump; also after a resume."""


@dataclass
class _Fault:
    kind: str
    """jump, reset, zero or unmoved."""
    onset: int
    summary: str
    before: float
    lr: float


class LrSchedule(Rule[LrScheduleConfig]):
    """Jumps, resets, an early zero, or a scheduler without effect."""

    name = "lr_schedule"
    config_class = LrScheduleConfig
    judges_parts = True
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
        self._updates = Updates()
        self._update = math.inf
        self._fault: _Fault | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every step while one of the four conditions lasts."""
        step = view.step
        if step is None or not step.lr:
            return None
        lr = max(step.lr)
        if not math.isfinite(lr) or lr < 0:
            return None
        update = self._updates.typical(view)
        self._update = self._update if update is None else update
        before, last_step = self._lr, self._last_step
        self._last_step = step.step
        self._num_skipped = max(0, step.step - last_step - 1)
        found = self._begin(view, step, lr) if before is None else self._look(view, step, lr, before)
        self._lr = lr
        if view.regime.active and not view.regime.active.isdisjoint(DECLARED):
            found = None
        if self._fault is None:
            self._fault = found
            return None if found is None else self._open(step, found)
        if found is not None and found.kind == self._fault.kind:
            self._fault.lr = max(self._fault.lr, lr)
        return self._open(step, self._fault) if self._lasts(view, step, lr) else self._over(step, lr)

    def resume(self, finding: Finding) -> None:
        """The kind, and the rate before it, are in the finding."""
        values = finding.values
        kind = next(kind for kind in ("jump", "reset", "zero", "unmoved") if kind in values)
        self._fault = _Fault(kind, finding.onset_step, finding.summary, values["before"], values["lr"])
        if kind == "unmoved":
            self._first_lr = values["lr"]
        elif kind == "zero":
            self._peak = values["before"]

    def _begin(self, view: JobView, step: AlignedStep, lr: float) -> _Fault | None:
        self._first_lr = self._first_lr or lr
        self._peak = max(self._peak, lr)
        self._first_step, self._first_epoch = step.step, step.epoch
        self._count = self._first_count = _scheduler_steps(step)
        earlier, now = view.previous_lr, step.main_lr
        count, known = self._count, view.previous_scheduler_steps
        if count is not None and known is not None and known >= FEW_COUNTS and count < known / 2:
            summary = (
                f"scheduler counts {count:,} at the resume at step {step.step:,}, {known:,} before: it starts over"
            )
            return _Fault("reset", step.step, summary, earlier or self._first_lr, now or self._first_lr)
        if earlier is None or earlier <= 0 or now is None:
            return None
        if self.config.jump_ratio * earlier >= now >= earlier / RESUME_BELOW:
            return None
        summary = f"learning rate {now:.3g} after the resume at step {step.step:,}, {earlier:.3g} before"
        return _Fault("reset", step.step, f"{summary}: scheduler state not restored?", earlier, now)

    def _look(self, view: JobView, step: AlignedStep, lr: float, before: float) -> _Fault | None:
        count = _scheduler_steps(step)
        known, was_stepped = self._count, self._was_stepped
        self._count = count
        self._was_stepped = count is not None and known is not None and count > known
        is_reset = count is not None and known is not None and count < known
        self._num_zero = self._num_zero + 1 if self._is_zero(lr) else 0
        if self._num_zero and self._peak > 0 and self._num_zero >= self._patience_at_zero(view, step) and not is_reset:
            return self._fault_of("zero", step, lr, before)
        if lr != before:
            found = self._changed(view, step, lr, before, is_stair=self._was_stepped and not was_stepped)
            return self._fault_of("reset", step, lr, before) if is_reset else found
        if is_reset:
            return self._fault_of("reset", step, lr, before)
        if not self._has_moved and "scheduler" in view.facts and self._is_unmoved(view, step):
            return self._fault_of("unmoved", step, lr, before)
        return None

    def _changed(self, view: JobView, step: AlignedStep, lr: float, before: float, *, is_stair: bool) -> _Fault | None:
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
        return None if is_warmup or is_restart else self._fault_of("jump", step, lr, before)

    def _is_zero(self, lr: float) -> bool:
        is_rounded_away = lr <= LOW * self._peak and self._update < ROUNDED
        return is_rounded_away or lr <= NEXT_TO_NOTHING * self._peak

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

    def _fault_of(self, kind: str, step: AlignedStep, lr: float, before: float) -> _Fault:
        onset = step.step
        if kind == "jump":
            times = f" {amount(lr / before)}x" if before > 0 else ""
            summary = f"learning rate jumped{times} ({before:.3g} to {lr:.3g}) at step {onset:,}, outside its schedule"
        elif kind == "reset":
            summary = f"scheduler restarted at step {onset:,}: its step count went back, learning rate now {lr:.3g}"
        elif kind == "zero":
            onset, before = step.step - self._num_zero + 1, self._peak
            summary = f"learning rate {lr:.1g} since step {onset:,} (peak {self._peak:.2g}): nothing is learned"
        else:
            how = "is never stepped" if self._count == self._first_count else "has no effect"
            summary = f"learning rate constant at {lr:.3g} since step {self._first_step:,}: the scheduler {how}"
        return _Fault(kind, onset, summary, before, lr)

    def _lasts(self, view: JobView, step: AlignedStep, lr: float) -> bool:
        fault = self._fault
        assert fault is not None, "called only while there is one"
        if view.regime.active and not view.regime.active.isdisjoint(DECLARED):
            return False
        if fault.kind == "zero":
            return self._is_zero(lr)
        if fault.kind == "unmoved":
            return lr == fault.lr
        if step.step - fault.onset >= CALM_STEPS:
            return False
        near = self.config.jump_ratio
        return not fault.before / near <= lr <= fault.before * near

    def _open(self, step: AlignedStep, fault: _Fault) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(Severity.WARNING),
            step=step.step,
            onset_step=fault.onset,
            summary=fault.summary,
            values={fault.kind: 1.0, "lr": fault.lr, "before": fault.before},
        )

    def _over(self, step: AlignedStep, lr: float) -> Finding:
        fault, self._fault = self._fault, None
        assert fault is not None, "called only while there is one"
        return Finding(
            rule=self.name,
            severity=Severity.INFO,
            step=step.step,
            onset_step=fault.onset,
            summary=f"learning rate now {lr:.3g}",
            state="resolved",
        )


def _scheduler_steps(step: AlignedStep) -> int | None:
    for report in step.reports.values():
        return report.num_scheduler_steps
    return None


def _total_steps(view: JobView) -> float | None:
    names = ("total_steps", "max_steps", "num_training_steps")
    return next((total for name in names if (total := view.setting(name)) is not None and total > 0), None)
