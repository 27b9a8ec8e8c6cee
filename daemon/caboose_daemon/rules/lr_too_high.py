"""lr_too_high: steps are so large that they undo what was learned.

Design
------
Four signs, each of which is enough for a warning. Two come from sampled weights. The typical weight matrix changes by
more than `max_update` of its norm in one step, on several sampled steps. A hundredth is large; a tenth means that ten
steps replace the weights. Zero-initialised tensors, biases and norms do that in healthy runs and are left out. Or a
single update by a large part of the matrix (`rewritten`) has erased what the model started with. Weights grow with such
steps, which hides the next ones. So the loss decides then: it must not have improved since, nor be falling, as it does
in a model that was only initialised with tiny weights.

Two come from the curve. Soon after the start, and not in a warm-up, the loss is well above its *first* value for many
steps, or it is at twice its first three for ten of the first forty, which no warm-up explains: an untrained model is at
chance already, and only steps that are too large make it worse. The reference is the very first loss, because the
second may already be broken; a first batch that was only easy has similar ones among the next. Or the loss or the
gradient norm jumped soon after the start, and the run has been stuck near its first loss since (see `blown_up_start`).
Large updates with a loss above its start are critical. A later divergence has many possible causes, and is
`divergence`'s.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

from caboose_daemon.rules.parts.beginning import is_start_of_run
from caboose_daemon.rules.parts.blown_up_start import FALLS, BlownUpStart, Peak
from caboose_daemon.rules.parts.chance import known
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

LEVEL_MEMORY = 8.0
JUMPS = 15
FIRST_LOSSES = 3
FIRST_LOSSES_JUDGED = 40
MANY = 10
"""So many of those, far above the first ones, are no warm-up."""
RECENT = 9
TO_SIGMA = 1.05
"""Median absolute difference of two independent values to the standard deviation of one, if they are normal."""
NOISE = 2.5
"""Standard deviations of the batch noise by which a first loss may be low by chance."""


@dataclass(frozen=True)
class LrTooHighConfig(RuleConfig):
    """Thresholds of lr_too_high."""

    max_update: float = 0.1
    """Median update-to-weight ratio of the weight matrices that is too large."""
    samples: int = 2
    """Sampled steps in a row above it before it is reported."""
    worse_than_start: float = 1.5
    """Loss over the run's first loss that is reported, for its level or for a jump after which the run is stuck."""
    far_worse: float = 2.0
    """Loss over the highest of its first three that is reported, for ten of the first forty; pages for twenty."""
    start_steps: int = 300
    """Steps that count as soon after the start."""
    persist_steps: int = 30
    """Steps in a row above the start before it is reported."""
    rewritten: float = 0.3
    """Update-to-weight ratio at which a single step replaces the typical matrix."""
    near_start: float = 0.5
    """Share of the run's first loss above which little has been learned since."""
    stuck_steps: int = 100
    """Steps over which the loss must then fall by 5 %, or it is stuck."""


class LrTooHigh(Rule[LrTooHighConfig]):
    """Steps that are too large."""

    name = "lr_too_high"
    config_class = LrTooHighConfig
    judges_parts = True
    needs = frozenset({"loss"})
    assumes_falling_loss = True
    forgets_after = frozenset({"resume", "restart"})

    def __init__(self, config: LrTooHighConfig) -> None:
        super().__init__(config)
        self._updates = Updates()
        self._first = math.nan
        self._level = math.nan
        self._num = 0
        self._last = math.nan
        self._jumps: deque[float] = deque(maxlen=JUMPS)
        self._update = math.nan
        self._num_large = 0
        self._losses: list[float] = []
        """The first ones, as many as are judged."""
        self._is_far = False
        self._above = Lasting(config.persist_steps, 2 * config.persist_steps)
        self._rewritten = 0.0
        self._rewritten_step = 0
        self._window: list[float] = []
        self._last_mean = math.nan
        self._is_stuck_since_rewrite = False
        self._blown_up = BlownUpStart(config.worse_than_start, config.stuck_steps)
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding while one of the four signs lasts."""
        step = view.step
        if step is None:
            return None
        update = self._updates.typical(view)
        if update is not None:
            self._update = update
            self._num_large = self._num_large + 1 if update > self.config.max_update else 0
            if update > max(self.config.rewritten, self._rewritten):
                self._rewritten_step = self._rewritten_step or step.step
                self._rewritten = update
        is_above = self._is_above(view, step)
        is_large = self._num_large >= self.config.samples
        is_stuck = self._is_stuck(step.finite_loss)
        is_blown_up = self._is_blown_up(view, step)
        if not (is_above or is_large or is_stuck or is_blown_up):
            return self._end(step.step)
        if self._onset is None:
            self._onset = self._above.onset if is_above and self._above.onset is not None else step.step
            if is_stuck:
                self._onset = min(self._onset, self._rewritten_step)
            if is_blown_up:
                self._onset = min(self._onset, self._blown_up.step)
        lr = f" (learning rate {max(step.lr):.3g})" if step.lr else ""
        parts = []
        if is_large:
            limit = f"limit {100 * self.config.max_update:.2g} %"
            parts.append(f"weights change by {100 * self._update:.2g} % per step, {limit}")
        elif is_stuck:
            parts.append(f"one step changed the weights by {100 * self._rewritten:.3g} %")
            if not is_above:
                parts.append(f"loss stuck at {self._level:.4g} since, {self._first:.4g} at the start")
        elif is_blown_up and not is_above:
            parts.append(self._describe_blow_up())
        if is_above:
            parts.append(f"loss {self._level:.4g} against {self._first:.4g} at the start")
        severity = Severity.CRITICAL if is_above and (is_large or self._is_far) else Severity.WARNING
        return self._finding(step.step, severity, "open", "; ".join(parts) + lr)

    def resume(self, finding: Finding) -> None:
        """Each sign is taken as it was until the next measurement; the first loss is in the finding."""
        values = finding.values
        self._onset, self._update = finding.onset_step, values["update_ratio"]
        self._num_large = self.config.samples if self._update > self.config.max_update else 0
        self._first, self._level, self._last, self._num = values["first"], values["level"], values["level"], 1
        if values["is_above"]:
            self._above.restore(finding.onset_step)
        self._rewritten = values.get("rewritten", 0.0)
        if values.get("is_stuck"):
            self._is_stuck_since_rewrite, self._last_mean = True, values["level"]
            self._rewritten_step = finding.onset_step
        if values.get("is_thrown"):
            self._blown_up.restore(
                values["first"], Peak(finding.onset_step, values["thrown_to"], values["thrown_to"]), values["level"]
            )

    def _is_above(self, view: JobView, step: AlignedStep) -> bool:
        loss = step.finite_loss
        if loss is None:
            return self._above.is_open
        self._num += 1
        self._level = loss if self._num == 1 else self._level + (loss - self._level) / LEVEL_MEMORY
        self._jumps.append(abs(loss - self._last) if self._num > 1 else 0.0)
        self._last = loss
        if math.isnan(self._first):
            if "resume" in view.regime.active or not is_start_of_run(step, view.regime):
                self._num = self.config.start_steps  # the start was not seen, so this is not soon after it
                return False
            self._first = loss
            chance = known(view)
            if chance is not None and chance / 2 < loss < chance:
                self._first = chance  # an untrained model is better only by luck; a fine-tuned one is far better
        if self._is_blowing_up(step, loss):
            return True
        if not self._above.is_open and (self._num > self.config.start_steps or "warmup" in view.regime.active):
            return False
        if self._above.is_open:  # once reported, it lasts until the loss is back at its first value
            is_worse = self._level > self._first
        else:
            ratio = self.config.worse_than_start
            is_worse = 0 < self._first < loss and self._level > ratio * self._first
            is_worse = is_worse and self._level - self._first > NOISE * TO_SIGMA * median(self._jumps)
        return self._above.judge(step.step, is_worse) == "open"

    def _is_blowing_up(self, step: AlignedStep, loss: float) -> bool:
        """Whether many of the first losses are far above the first ones; also in a warm-up, which raises no loss so.

        The highest of the first three is the reference: of losses that scatter as those of single samples do, the first
        one alone may be a hundredth of the usual. A log's row stands for many steps, so fewer rows page. It scatters
        less, too: there it is a warning already at `worse_than_start` times the median of the first three.
        """
        losses = self._losses
        if len(losses) >= FIRST_LOSSES_JUDGED:
            return False
        losses.append(loss)
        first, limit = max(losses[:FIRST_LOSSES]), self.config.far_worse
        recent = median(losses[-RECENT:])
        num_far = sum(value > limit * first for value in losses)
        is_log = step.stands_for_many
        if first <= 0 or num_far < MANY or recent <= limit * first:
            return is_log and self._is_worse_than_start(step.step, losses, recent)
        if not is_log and recent - first <= NOISE * TO_SIGMA * median(self._jumps):
            return False
        self._is_far = is_log or num_far >= 2 * MANY
        if not self._above.is_open:
            self._above.restore(step.step)
        return True

    def _is_worse_than_start(self, step: int, losses: list[float], recent: float) -> bool:
        limit = self.config.worse_than_start * median(losses[:FIRST_LOSSES])
        if limit <= 0 or recent <= limit or sum(value > limit for value in losses) < MANY:
            return False
        if not self._above.is_open:
            self._above.restore(step)
        return True

    def _is_blown_up(self, view: JobView, step: AlignedStep) -> bool:
        """Whether the run blew up soon after its start, and has been stuck near its first loss since."""
        if math.isnan(self._first):
            return False
        is_early = self._num <= self.config.start_steps and view.regime.active.isdisjoint(("warmup", "resume"))
        if (loss := step.finite_loss) is not None:
            self._blown_up.observe(step.step, loss, step.finite_grad_norm, is_early=is_early, chance=known(view))
        return self._blown_up.is_stuck

    def _describe_blow_up(self) -> str:
        loss, norm = self._blown_up.loss_peak, self._blown_up.norm_peak
        if loss is not None:
            jump = f"loss jumped from {self._first:.4g} to {loss.value:.4g} at step {loss.step:,}"
        else:
            assert norm is not None, "one of the two has jumped"
            jump = f"gradient norm jumped to {norm.value:.3g} at step {norm.step:,}"
        return f"{jump}, loss stuck at {self._blown_up.level:.4g} since"

    def _is_stuck(self, loss: float | None) -> bool:
        """Whether a step replaced the weights, and the loss has not improved since."""
        if not self._rewritten or loss is None or math.isnan(self._first):
            return self._is_stuck_since_rewrite
        self._window.append(loss)
        if len(self._window) >= self.config.stuck_steps:
            mean, self._window = fmean(self._window), []
            is_high = self._first > 0 and mean > self.config.near_start * self._first
            self._is_stuck_since_rewrite = is_high and mean > FALLS * self._last_mean
            self._last_mean = mean
        return self._is_stuck_since_rewrite

    def _end(self, step: int) -> Finding | None:
        if self._onset is None:
            return None
        finding = self._finding(step, Severity.INFO, "resolved", "updates and loss back within their limits")
        self._onset = None
        return finding

    def _finding(self, step: int, severity: Severity, state: str, summary: str) -> Finding:
        return Finding(
            rule=self.name,
            severity=self.capped(severity),
            step=step,
            onset_step=self._onset if self._onset is not None else step,
            summary=summary,
            state=state,
            phase="update",
            values={
                "update_ratio": self._update,
                "level": self._level,
                "first": self._first,
                "is_above": float(self._above.is_open),
                "is_stuck": float(self._is_stuck_since_rewrite),
                "rewritten": self._rewritten,
                "is_thrown": float(self._blown_up.is_stuck),
                "thrown_to": math.nan if self._blown_up.loss_peak is None else self._blown_up.loss_peak.value,
                "norm_thrown_to": math.nan if self._blown_up.norm_peak is None else self._blown_up.norm_peak.value,
            },
        )
