"""bad_batch: the loss jumped or broke on a batch that is itself bad; names rank and batch.

Design
------
Neither half is enough. A model may handle odd inputs without harm, and a loss jumps for other reasons too. So a symptom
(loss or gradients not finite, or the mean loss far above its level, as in `loss_spike`) must coincide with evidence
about the batch of the same step:

    the batch has elements that are not finite;
    its range is far outside that of all batches sampled before (both only where the batch was sampled);
    or the loss jumped on this rank only. All ranks of a step have the same weights, so their data differs.

The batch is named by its index in the watched loader. Where several were accumulated in a step, the range of indices is
named. Never critical: `non_finite` and `loss_spike` page, and this rule names the batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from caboose_daemon.rules.parts.baseline import Baseline
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.origins import bad_elements
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.scaling import SkippedSteps
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView
from caboose_wire import Batch, StepReport

MIN_SAMPLES = 3
"""Sampled steps before a range can be judged."""
RELEARN_STEPS = 3
"""High steps in a row after which their loss is the new level."""


@dataclass(frozen=True)
class BadBatchConfig(RuleConfig):
    """Thresholds of bad_batch."""

    scales: float = 6.0
    """Height of the loss above its level, in scales of its scatter, that is a jump."""
    ratio: float = 1.25
    """Loss over its level that is needed as well."""
    range_widths: float = 2.0
    """Distance outside the range of earlier batches, in widths of that range, that is out of range."""
    calm_steps: int = 3
    """Steps without symptoms after which it is resolved."""


class BadBatch(LastingRule[BadBatchConfig]):
    """A batch that breaks a step."""

    name = "bad_batch"
    config_class = BadBatchConfig
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"data_switch", "batch_ramp", "resume"})

    def __init__(self, config: BadBatchConfig) -> None:
        super().__init__(config)
        self._loss = Baseline()
        self._skipped = SkippedSteps()
        self._before: Mapping[int, StepReport] = {}
        self._lowest = math.inf
        self._highest = -math.inf
        self._num_sampled = 0
        self._num_high = 0
        self._num_calm = 0

    def observe(self, view: JobView) -> Finding | None:
        """A warning from a bad step with a bad batch until the steps are good again."""
        step = view.step
        if step is None or not step.reports:
            return None  # a log has no batches
        before, self._before = self._before, step.reports
        is_skipped = self._skipped.observe(step)
        is_broken = bool(step.bad_loss_ranks) or (step.has_bad_grad_norm and not is_skipped)
        loss = step.finite_loss
        is_high = not is_broken and loss is not None and self._is_high(loss)
        self._num_high = self._num_high + 1 if is_high else 0
        if loss is not None and (not is_high or self._num_high >= RELEARN_STEPS):
            self._loss.learn(loss)
        if not (is_broken or is_high):
            if step.is_sampled:
                self._learn_range(step)
            return self._calm(step.step)
        self._num_calm = 0
        found = self._bad_batch(step)
        if found is None:
            return msgspec.structs.replace(self._last, step=step.step) if self._last is not None else None
        rank, why = found
        return self._report(step, rank, why, before)

    def _is_high(self, loss: float) -> bool:
        if not self._loss.is_ready:
            return False
        level = self._loss.level
        return self._loss.excess(loss) > self.config.scales and (level <= 0 or loss > level * self.config.ratio)

    def _bad_batch(self, step: AlignedStep) -> tuple[int, str] | None:
        """The rank of the bad batch, and what is bad about it."""
        if step.bad_inputs:
            rank = min(step.bad_inputs)
            return rank, bad_elements(step.bad_inputs[rank])
        for rank, report in step.reports.items():
            if report.batch is not None and self._is_out_of_range(report.batch):
                low, high = report.batch.lowest, report.batch.highest
                return rank, f"values {low:.3g} to {high:.3g}, others {self._lowest:.3g} to {self._highest:.3g}"
        return self._single_high_rank(step)

    def _single_high_rank(self, step: AlignedStep) -> tuple[int, str] | None:
        """The one rank whose loss jumped, where at least two others did not."""
        if step.has_loss.sum() < 3 or not self._loss.is_ready or step.finite_loss is None:
            return None
        level = self._loss.level
        limit = max(level + self.config.scales * self._loss.scale, level * self.config.ratio)
        high = np.flatnonzero(step.has_loss & (step.loss > limit))
        if len(high) != 1 or step.reports[int(high[0])].batch is None:
            return None
        return int(high[0]), "the loss jumped on this rank only"

    def _is_out_of_range(self, batch: Batch) -> bool:
        if self._num_sampled < MIN_SAMPLES or batch.lowest is None or batch.highest is None:
            return False
        room = self.config.range_widths * (self._highest - self._lowest)
        return batch.highest > self._highest + room or batch.lowest < self._lowest - room

    def _learn_range(self, step: AlignedStep) -> None:
        seen = [b for r in step.reports.values() if (b := r.batch) is not None and b.lowest is not None]
        lows = [b.lowest for b in seen if b.lowest is not None and math.isfinite(b.lowest)]
        highs = [b.highest for b in seen if b.highest is not None and math.isfinite(b.highest)]
        if lows and highs:
            self._num_sampled += 1
            self._lowest, self._highest = min(self._lowest, *lows), max(self._highest, *highs)

    def _calm(self, step: int) -> Finding | None:
        self._num_calm += 1
        if self._num_calm < self.config.calm_steps:
            return None
        return self._resolved(step, f"loss and gradients normal for {self.config.calm_steps} steps")

    def _report(self, step: AlignedStep, rank: int, why: str, before: Mapping[int, StepReport]) -> Finding:
        batch = step.reports[rank].batch
        assert batch is not None, "only a rank with a batch is found"
        widths: dict[str, float] = {}
        if self._is_out_of_range(batch) and batch.lowest is not None and batch.highest is not None:
            widths = {"width": batch.highest - batch.lowest, "usual_width": self._highest - self._lowest}
        which, places = _which(batch, before[rank].batch if rank in before else None)
        at = f"at step {step.step:,}"
        loss = f"no loss reported {at}" if step.mean_loss is None else f"loss {step.mean_loss:.4g} {at}"
        if step.finite_loss is not None and self._loss.is_ready:
            loss += f", usually {self._loss.level:.4g}"
        return self._found(
            Severity.WARNING,
            step.step,
            f"{which.format(rank=rank)}: {why}; {loss}",
            ranks=(rank,),
            phase="input",
            values={**places, **widths, **_bad(step, rank)},
        )


def _bad(step: AlignedStep, rank: int) -> dict[str, float]:
    """How many of its elements are not finite, where any are."""
    seen = step.bad_inputs.get(rank)
    return {} if seen is None else {"bad_elements": float((seen.num_bad or 0) + (seen.num_bad_targets or 0))}


def _which(batch: Batch, earlier: Batch | None) -> tuple[str, dict[str, float]]:
    """Which batch of a rank it is, in words and as values; nothing is known of its place without a watched loader."""
    last = batch.index
    if last is None:
        return "the model's input on rank {rank}", {}
    known = None if earlier is None else earlier.index
    first = last if known is None or known >= last else known + 1
    which = f"batch {last}" if first == last else f"one of batches {first} to {last}"
    places = {"first_batch": float(first), "last_batch": float(last), "epoch": float(batch.epoch)}
    return f"{which} of rank {{rank}} (epoch {batch.epoch})", places
