"""lr_too_high: steps so large that they undo what they learn.

Design
------
Four witnesses, each of which is enough for a warning. Where the agent looks at the weights: the typical weight matrix
moves by more than `max_update` of itself in one step, on several sampled steps. A hundredth is large, a tenth means
that ten steps write the weights anew; zero-initialised tensors, biases and norms do that in healthy runs and are left
out. A single update of a good part of the matrix (`rewritten`) has wiped out what the model began with. Weights grow
with such steps, which hides the next ones; so what is asked then is whether the loss has since come to anything, or
falls at least, as it does in a model that was merely given tiny weights. And in the curve: soon after the start, and
not in a warm-up, the loss lies well above where the run *began*, for many steps: an untrained model is at chance
already, and only steps that are too large make it worse than that. Where it began is its very first loss, since the
second one may be broken already; a first batch that was merely easy has its like among the next ones. Or the loss, or
the gradient norm, jumped soon after the start and the run has stood where it began ever since, dead (see `thrown`).
Large updates with a loss above its beginning are critical. A later divergence has many possible causes, and is
`divergence`'s.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

from caboose_daemon.rules.parts.beginning import is_in_sight
from caboose_daemon.rules.parts.blown_up_start import FALLS, Peak, Thrown
from caboose_daemon.rules.parts.chance import known
from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting import Lasting
from caboose_daemon.rules.parts.rule import Rule, RuleConfig
from caboose_daemon.rules.parts.updates import Updates
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView

LEVEL_MEMORY = 8.0
JUMPS = 15
TO_SIGMA = 1.05
"""Median absolute difference of two independent values to the standard deviation of one, if they are normal."""
NOISE = 2.5
"""Standard deviations of the batches' noise by which a first loss may lie low without meaning anything."""


@dataclass(frozen=True)
class LrTooHighConfig(RuleConfig):
    """Thresholds of lr_too_high."""

    max_update: float = 0.1
    """Median update-to-weight ratio of the weight matrices that is too much."""
    samples: int = 2
    """Sampled steps in a row on which it must be."""
    worse_than_start: float = 1.5
    """How many times the run's first loss its level must reach, or a jump that it dies of."""
    start_steps: int = 300
    """Steps that count as soon after the start."""
    persist_steps: int = 30
    """Steps in a row that the loss must lie there."""
    rewritten: float = 0.3
    """Update-to-weight ratio of a single step that writes the typical matrix anew."""
    near_start: float = 0.5
    """Share of the run's first loss above which little has been learned since then."""
    stuck_steps: int = 100
    """Steps over which the loss must then fall by a twentieth, or it is stuck."""


class LrTooHigh(Rule[LrTooHighConfig]):
    """Steps that are too large."""

    name = "lr_too_high"
    config_class = LrTooHighConfig
    needs = frozenset({"loss"})
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
        self._above = Lasting(config.persist_steps, 2 * config.persist_steps)
        self._rewritten = 0.0
        self._rewritten_step = 0
        self._window: list[float] = []
        self._last_mean = math.nan
        self._is_at_a_stand = False
        self._thrown = Thrown(config.worse_than_start, config.stuck_steps)
        self._onset: int | None = None

    def observe(self, view: JobView) -> Finding | None:
        """A finding while updates are too large, or the loss lies above its beginning."""
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
        is_thrown = self._is_thrown(view, step)
        if not (is_above or is_large or is_stuck or is_thrown):
            return self._end(step.step)
        if self._onset is None:
            self._onset = self._above.onset if is_above and self._above.onset is not None else step.step
            if is_stuck:
                self._onset = min(self._onset, self._rewritten_step)
            if is_thrown:
                self._onset = min(self._onset, self._thrown.step)
        lr = f" at a learning rate of {max(step.lr):.3g}" if step.lr else ""
        says = []
        if is_large:
            says.append(f"the typical weight matrix moves by {100 * self._update:.2g} % of itself in a step")
        elif is_stuck:
            says.append(f"one step changed the typical weight matrix by {100 * self._rewritten:.3g} % of itself")
            if not is_above:
                says.append(f"the loss has stayed at {self._level:.4g} since, from {self._first:.4g} at the start")
        elif is_thrown and not is_above:
            says.append(self._how_thrown())
        if is_above:
            says.append(f"the loss lies at {self._level:.4g}, above the {self._first:.4g} it began with")
        severity = Severity.CRITICAL if is_above and is_large else Severity.WARNING
        return self._finding(step.step, severity, "open", " and ".join(says) + lr)

    def resume(self, finding: Finding) -> None:
        """Each witness stands as it was until it is seen otherwise; where the run began is in the finding."""
        values = finding.values
        self._onset, self._update = finding.onset_step, values["update_ratio"]
        self._num_large = self.config.samples if self._update > self.config.max_update else 0
        self._first, self._level, self._last, self._num = values["first"], values["level"], values["level"], 1
        if values["is_above"]:
            self._above.take_up(finding.onset_step)
        self._rewritten = values.get("rewritten", 0.0)
        if values.get("is_stuck"):
            self._is_at_a_stand, self._last_mean = True, values["level"]
            self._rewritten_step = finding.onset_step
        if values.get("is_thrown"):
            self._thrown.take_up(
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
            if "resume" in view.regime.active or not is_in_sight(step, view.regime):
                self._num = self.config.start_steps  # where it began is not in sight, and this is not soon after it
                return False
            self._first = loss
            chance = known(view)
            if chance is not None and chance / 2 < loss < chance:
                self._first = chance  # an untrained model is better than that by luck alone; a fine-tuned one by far
        if not self._above.is_open and (self._num > self.config.start_steps or "warmup" in view.regime.active):
            return False
        if self._above.is_open:  # said once, it stands until the loss is back at where it began
            is_worse = self._level > self._first
        else:
            ratio = self.config.worse_than_start
            is_worse = 0 < self._first < loss and self._level > ratio * self._first
            is_worse = is_worse and self._level - self._first > NOISE * TO_SIGMA * median(self._jumps)
        return self._above.judge(step.step, is_worse) == "open"

    def _is_thrown(self, view: JobView, step: AlignedStep) -> bool:
        """Whether the run was thrown off soon after its start, and has stood where it began since."""
        if math.isnan(self._first):
            return False
        is_early = self._num <= self.config.start_steps and view.regime.active.isdisjoint(("warmup", "resume"))
        if (loss := step.finite_loss) is not None:
            self._thrown.observe(step.step, loss, step.finite_grad_norm, is_early=is_early, chance=known(view))
        return self._thrown.stands

    def _how_thrown(self) -> str:
        thrown = self._thrown
        peak = thrown.loss_peak
        if peak is not None:
            jump = f"the loss jumped to {peak.value:.4g} at step {peak.step}, from {self._first:.4g} at the start"
        else:
            assert thrown.norm_peak is not None
            jump = f"the gradient norm jumped to {thrown.norm_peak.value:.3g} at step {thrown.norm_peak.step}"
        return f"{jump}, and the loss has stood at {thrown.level:.4g} since"

    def _is_stuck(self, loss: float | None) -> bool:
        """Whether a step wrote the weights anew, and the loss has come to nothing since."""
        if not self._rewritten or loss is None or math.isnan(self._first):
            return self._is_at_a_stand
        self._window.append(loss)
        if len(self._window) >= self.config.stuck_steps:
            mean, self._window = fmean(self._window), []
            is_high = self._first > 0 and mean > self.config.near_start * self._first
            self._is_at_a_stand = is_high and mean > FALLS * self._last_mean
            self._last_mean = mean
        return self._is_at_a_stand

    def _end(self, step: int) -> Finding | None:
        if self._onset is None:
            return None
        finding = self._finding(step, Severity.INFO, "resolved", "updates and loss are in range again")
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
                "is_stuck": float(self._is_at_a_stand),
                "rewritten": self._rewritten,
                "is_thrown": float(self._thrown.stands),
                "thrown_to": math.nan if self._thrown.loss_peak is None else self._thrown.loss_peak.value,
                "norm_thrown_to": math.nan if self._thrown.norm_peak is None else self._thrown.norm_peak.value,
            },
        )
