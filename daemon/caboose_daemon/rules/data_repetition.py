"""data_repetition: the loss falls in stairs at the borders of epochs: samples are recognised, not learned from.

Design
------
Within the first epoch every sample is new. A model that has memorised samples is better from the first batch of the
next epoch on, though nothing else changed there, so its curve has a step down at each border and is flat in between. A
border counts as a step where the loss after it is below every quarter of the epoch before by `drop` of it, by more than
the trend within the epoch explains, and by several standard errors of both averages. `borders` of them in a row are a
finding.

Other things end with an epoch too. A learning rate that changes at the border makes the loss fall there: such a border
counts neither way. Data in a fixed order give a curve that repeats itself, with an early quarter as low as the loss
after the border. It is an info: a few epochs over small data are common, and wanted in fine-tuning. Once
the validation loss has risen from its best, it is a warning.

Epochs are those of the watched loader. Without one there is nothing to judge.
"""

import math
from dataclasses import dataclass

from caboose_daemon.rules.parts.curve import Curve, trend
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.validation import of_events
from caboose_daemon.steps.view import JobView

SIGMAS = 4.0
BEYOND_TREND = 2.0
"""How many times the fall that the trend within the epoch explains the drop must be."""
SAME_LR = 1.02
"""Ratio of two learning rates within which they count as the same."""
MIN_BUCKETS = 16
RISEN = 1.01
"""Validation loss over its best one at which it has risen; at two evaluations in a row."""


@dataclass(frozen=True)
class DataRepetitionConfig(RuleConfig):
    """Thresholds of data_repetition."""

    drop: float = 0.03
    """Share of the loss by which it must fall at a border."""
    borders: int = 2
    """Borders in a row at which it must fall."""
    min_steps: int = 32
    """Steps that an epoch must have."""


class _Epoch:
    """The losses of one epoch."""

    def __init__(self, number: int, lr: float | None) -> None:
        self.number = number
        self.curve = Curve()
        self.first_lr = self.last_lr = lr

    def add(self, loss: float, lr: float | None) -> None:
        self.curve.add(loss)
        self.last_lr = lr


class DataRepetition(LastingRule[DataRepetitionConfig]):
    """A staircase at the borders of epochs."""

    name = "data_repetition"
    config_class = DataRepetitionConfig
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch", "resume", "restart"})

    def __init__(self, config: DataRepetitionConfig) -> None:
        super().__init__(config)
        self._before: _Epoch | None = None
        self._now: _Epoch | None = None
        self._is_judged = True
        self._drops: list[float] = []
        self._best = math.inf
        self._num_worse = 0

    def observe(self, view: JobView) -> Finding | None:
        """A finding at every border of epochs while the loss falls in stairs."""
        self._see_validations(view)
        step = view.step
        loss = None if step is None else step.finite_loss
        if step is None or loss is None or step.epoch is None:
            return None
        if self._now is None or step.epoch != self._now.number:
            follows = self._now is not None and step.epoch == self._now.number + 1
            self._before = self._now if follows else None
            self._now, self._is_judged = _Epoch(step.epoch, step.main_lr), not follows
            if not follows:
                self._drops = []
        self._now.add(loss, step.main_lr)
        before = self._before
        if self._is_judged or before is None or 4 * self._now.curve.num_points < before.curve.num_points:
            return None
        self._is_judged = True
        return self._judge(step.step, before, self._now)

    def _see_validations(self, view: JobView) -> None:
        for found in of_events(view.events):
            if math.isfinite(found.loss):
                self._num_worse = self._num_worse + 1 if found.loss > RISEN * self._best else 0
                self._best = min(self._best, found.loss)

    def _judge(self, step: int, before: _Epoch, now: _Epoch) -> Finding | None:
        if not _is_same(before.last_lr, now.first_lr):
            return None
        drop = self._drop(before, now)
        if drop is None:
            return None
        if drop <= 0:
            self._drops = []
            return self._resolved(step, "the loss no longer falls at the border of an epoch")
        self._drops = [*self._drops, drop][-self.config.borders :]
        if len(self._drops) < self.config.borders:
            return None
        has_worse = self._num_worse >= 2
        end = ", and validation has got worse" if has_worse else ""
        return self._found(
            Severity.WARNING if has_worse else Severity.INFO,
            step,
            f"the loss falls in stairs: by {100 * drop:.2g} % from epoch {before.number + 1} to {now.number + 1}, and"
            f" hardly in between: samples are memorised{end}",
            values={"drop": drop, "epochs": float(now.number + 1)},
        )

    def _drop(self, before: _Epoch, now: _Epoch) -> float | None:
        """The fall at a border as a share of the loss; 0 where there is no step; None if that cannot be judged."""
        means, after = before.curve.means, now.curve.means
        if before.curve.num_points < self.config.min_steps or len(means) < MIN_BUCKETS or len(after) < 4:
            return None
        num = len(means) // 4
        quarters = [means[i * num : (i + 1) * num] for i in range(3)] + [means[3 * num :]]
        lowest = min(quarters, key=lambda quarter: math.fsum(quarter) / len(quarter))
        level = math.fsum(after) / len(after)
        height = math.fsum(lowest) / len(lowest) - level
        line = trend(means[len(means) // 2 :])
        # The middles of the last quarter and of the first are a quarter apart; the line is half an epoch long.
        explained = max(0.0, -line.change / 2.0)
        error = math.hypot(_error(lowest), _error(after))
        share = height / max(abs(level + height), 1e-12)
        is_step = share > self.config.drop and height > BEYOND_TREND * explained and height > SIGMAS * error
        return share if is_step else 0.0


def _is_same(a: float | None, b: float | None) -> bool:
    return a is None or b is None or (a <= SAME_LR * b and b <= SAME_LR * a)


def _error(values: list[float]) -> float:
    """Standard error of the mean, from the scatter around it."""
    middle = math.fsum(values) / len(values)
    power = math.fsum((value - middle) ** 2 for value in values)
    return math.sqrt(power / max(1, len(values) - 1) / len(values))
