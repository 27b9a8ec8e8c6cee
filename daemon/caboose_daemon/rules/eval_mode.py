"""eval_mode: the model, its norms or its dropouts are in eval mode during training, or in train mode in evaluations.

Design
------
The mode is the one in which the training forward ran. An evaluation without `model.train()` after it leaves the model
in eval mode for every later step, so a few steps in a row are needed. The agent does not count norms whose own
parameters take no gradient; others may be declared (`frozen_norms` in the job's own settings). Dropouts alone, in a
partly frozen model, belong to a backbone that was put into eval mode on purpose.

An evaluation with gradients enabled looks like one training step in eval mode, each time a validation is reported; or,
where it runs after the step boundary, like forwards in eval mode before that of the next step. It only wastes memory,
and is an info.

An evaluation in train mode changes the statistics of batch norms with validation data, and its results depend on
dropout: forwards without gradients, in train mode, each time a validation is reported and at no other time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caboose_daemon.rules.parts.finding import Finding, Severity
from caboose_daemon.rules.parts.lasting_rule import LastingRule
from caboose_daemon.rules.parts.origins import list_ranks
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_daemon.rules.parts.train_evaluations import TrainEvaluations
from caboose_daemon.steps.aligned import AlignedStep
from caboose_daemon.steps.view import JobView
from caboose_wire import Layer, Mode


@dataclass(frozen=True)
class EvalModeConfig(RuleConfig):
    """Thresholds of eval_mode."""

    persist_steps: int = 3
    """Steps in a row in the wrong mode before it is reported, and in the right one before it is resolved."""
    evaluations: int = 2
    """Evaluations in a row with gradients enabled, or in train mode, before that is reported."""


class EvalMode(LastingRule[EvalModeConfig]):
    """Training in eval mode."""

    name = "eval_mode"
    config_class = EvalModeConfig
    needs = frozenset({"modes"})

    def __init__(self, config: EvalModeConfig) -> None:
        super().__init__(config)
        self._layers: Sequence[Layer] | None = None
        self._is_part_frozen = False
        self._num_bad = 0
        self._num_good = 0
        self._num_evaluations = 0
        self._evaluated = -1
        self._train_evaluations = TrainEvaluations()
        self._began = 0

    def observe(self, view: JobView) -> Finding | None:
        """A finding while training steps run in eval mode."""
        step = view.step
        if step is None or not step.has_mode:
            return None
        if view.layers is not self._layers and view.layers != self._layers:
            self._layers = view.layers
            self._is_part_frozen = any(not layer.trainable for layer in view.layers)
        bad = self._bad_modes(view, step) if step.odd_modes else {}
        is_evaluation = "evaluation" in view.regime.active
        in_train_mode = self._in_train_mode(step, is_evaluation=is_evaluation)
        if in_train_mode is not None:
            return in_train_mode
        if is_evaluation and not self._num_bad and (self._last is None or "evaluations" in self._last.values):
            return self._after_evaluation(step.step, bad or _with_evaluations(step))
        if not bad:
            self._num_bad, self._num_good = 0, self._num_good + 1
            return self._calm(step.step)
        if not self._num_bad:
            self._began = self._evaluated if self._evaluated == step.step - 1 else step.step
        self._num_bad, self._num_good = self._num_bad + 1, 0
        return self._report(step, bad) if self._num_bad >= self.config.persist_steps else None

    def _in_train_mode(self, step: AlignedStep, *, is_evaluation: bool) -> Finding | None:
        """A finding where the last evaluations ran in train mode, or the end of one."""
        seen, is_known = self._train_evaluations, self._last is not None and "in_train_mode" in self._last.values
        forwards = max((mode.num_train_evaluations for mode in step.odd_modes.values()), default=0)
        seen.observe(num_forwards=forwards, is_evaluation=is_evaluation)
        if seen.num >= self.config.evaluations and (self._last is None or is_known):
            what = f"model in train mode in the last {seen.num} evaluations, where batch norms learn and dropout acts: "
            text = f"{what}call model.eval() before, and model.train() after"
            values = {"in_train_mode": float(seen.num)}
            return self._found(Severity.WARNING, step.step, text, phase="forward", values=values)
        if not is_known:
            return None
        return self._last if seen.num else self._resolved(step.step, "last evaluation ran in eval mode")

    def _calm(self, step: int) -> Finding | None:
        if self._last is None or "evaluations" in self._last.values or self._num_good < self.config.persist_steps:
            return None
        return self._resolved(step, f"train mode for {self._num_good} steps in a row again")

    def _bad_modes(self, view: JobView, step: AlignedStep) -> dict[int, Mode]:
        is_declared = bool(view.config.get("frozen_norms"))
        return {
            rank: mode
            for rank, mode in step.odd_modes.items()
            if not mode.is_training
            or (mode.num_norms_in_eval and not is_declared)
            or (mode.num_dropouts_in_eval and not self._is_part_frozen)
        }

    def _after_evaluation(self, step: int, bad: dict[int, Mode]) -> Finding | None:
        """The first forward after a validation may be the validation's own, with gradients enabled."""
        if not bad:
            self._num_evaluations = 0
            return self._resolved(step, "last evaluation ran without gradients")
        self._evaluated = step
        self._num_evaluations += 1
        if self._num_evaluations < self.config.evaluations:
            return None
        num = float(self._num_evaluations)
        what = f"gradients enabled in the last {num:.0f} evaluations: wrap them in torch.no_grad()"
        return self._found(Severity.INFO, step, what, phase="forward", values={"evaluations": num})

    def _report(self, step: AlignedStep, bad: dict[int, Mode]) -> Finding:
        ranks = tuple(sorted(bad))
        first = bad[ranks[0]]
        where = "" if len(ranks) == step.num_present else f" on {list_ranks(ranks)}"
        parts = [
            f"{num} {kind}{'s' if num > 1 else ''}"
            for num, kind in ((first.num_norms_in_eval, "batch norm"), (first.num_dropouts_in_eval, "dropout"))
            if num
        ]
        what = "model" if not first.is_training else " and ".join(parts)
        also = f" ({' and '.join(parts)})" if not first.is_training and parts else ""
        return self._found(
            Severity.WARNING,
            step.step,
            f"{what}{also} in eval mode for {self._num_bad:,} training steps{where}: model.train() missing?",
            onset=self._began,
            ranks=() if len(ranks) == step.num_present else ranks,
            phase="forward",
            values={"ranks": float(len(ranks)), "norms": float(first.num_norms_in_eval)},
        )


def _with_evaluations(step: AlignedStep) -> dict[int, Mode]:
    """The ranks that ran forwards in eval mode, with gradients enabled, before those of the step."""
    return {rank: mode for rank, mode in step.odd_modes.items() if mode.num_evaluations}
