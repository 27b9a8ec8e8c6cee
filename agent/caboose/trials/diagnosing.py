"""`diagnose_gradients` and `analyze_activations`: one half of an inspection each, on the first batches of some data.

Design
------
Both run `inspect`'s own code. A gradient of one batch has its noise, so several batches can be asked for: a number is
then the mean over them, and a layer that is bad in one of them is bad. Activations need no loss: the model is called
with the batch's inputs.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from caboose.trials import orientation, plots
from caboose.trials.inspecting import FINE, Inspection, look, look_at_outputs
from caboose.trials.layer_statistics import GradientStatistics
from caboose.trials.progress import ProgressLine
from caboose.trials.sources import BatchSource, as_loader
from caboose.trials.trial import LossFunction, Trial


@dataclass(frozen=True, slots=True)
class GradientDiagnosis:
    """The gradients of some batches."""

    inspection: Inspection
    num_batches: int

    @property
    def issues(self) -> list[str]:
        """What is wrong, one line each; the model as a whole first."""
        found = [f"the model: {finding}; {finding.fix}" for finding in self.inspection.findings]
        return [*found, *(f"{g.name}: {g.verdict}" for g in self.inspection.gradients if g.verdict not in FINE)]

    @property
    def is_healthy(self) -> bool:
        """Whether there are no issues."""
        return not self.issues

    @property
    def norms(self) -> dict[str, float]:
        """The gradient norm of each parameter that has one."""
        return {g.name: g.norm for g in self.inspection.gradients if g.has_gradient}

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**self.inspection.as_json(), "issues": self.issues, "num_batches": self.num_batches}

    def __str__(self) -> str:
        return _page(self.inspection, self.inspection.gradient_table(), self.issues, "gradients look healthy")

    def plot(self, path: "str | Path | None" = None) -> Any:
        """The flow of the gradient through the layers; written to a file if a path is given (.png, .svg or .html)."""
        return self.inspection.plot(path)


@dataclass(frozen=True, slots=True)
class ActivationAnalysis:
    """The outputs of every module on one batch."""

    inspection: Inspection

    @property
    def issues(self) -> list[str]:
        """What is wrong, one line each."""
        found = [
            f"{a.name}: {a.verdict}, {ADVICE[a.verdict]}" for a in self.inspection.activations if a.verdict != "ok"
        ]
        return [f"not seen: {self.inspection.blindness}", *found] if self.inspection.blindness else found

    @property
    def is_healthy(self) -> bool:
        """Whether there are no issues."""
        return not self.issues

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        known = self.inspection.as_json()
        return {"activations": known["activations"], "blindness": known["blindness"], "issues": self.issues}

    def __str__(self) -> str:
        return _page(None, self.inspection.output_table(), self.issues, "activations look healthy")

    def plot(self, path: "str | Path | None" = None) -> Any:
        """The size of the outputs over the depth; written to a file if a path is given (.png, .svg or .html)."""
        return plots.show(self.inspection.output_chart(), path)


ADVICE = {
    "not finite": "look at its inputs and weights, or run caboose.hunt_nan",
    "dead": "lower the learning rate, use He initialisation, LeakyReLU or GELU",
    "saturated": "normalise its input, use Xavier initialisation, or ReLU instead of sigmoid and tanh",
    "flat": "its output hardly differs between samples: larger initial weights, or normalise its input",
    "huge": "smaller initial weights, or normalise its input",
}


def _page(inspection: Inspection | None, table: str, issues: Sequence[str], fine: str) -> str:
    lines = [] if inspection is None else [f"loss {inspection.loss:.6g}", ""]
    lines += [table, "", orientation.TEXT]
    wrapped = [textwrap.fill(f"! {issue}", 98, subsequent_indent="  ") for issue in issues]
    return "\n".join([*lines, *(wrapped or [fine])])


def diagnose_gradients(
    model: torch.nn.Module,
    loss: LossFunction,
    data: Any,
    *,
    num_batches: int = 1,
    split: Any = None,
    progress: bool | None = None,
) -> GradientDiagnosis:
    """The gradient of every parameter on the first batches of `data` (a loader, one batch), and what is wrong.

    `loss` is a criterion, or a function of (model, batch) or of (outputs, targets). Everything is restored.
    """
    if num_batches < 1:
        raise ValueError(f"diagnose_gradients(num_batches={num_batches}): give at least 1")
    source = BatchSource("diagnose_gradients", as_loader(data), "data")
    trial = Trial("diagnose_gradients", model, loss, split=split)
    with trial, source, ProgressLine(num_batches, is_shown=progress if trial.ranks.rank == 0 else False) as bar:
        batches = trial.ranks.together(lambda: source.take(num_batches))
        batches = batches[: trial.ranks.least(len(batches))]
        found = []
        for number, batch in enumerate(batches, 1):
            found.append(look(trial, batch))
            bar.show(f"gradients of batch {number} of {len(batches)}", 1)
        return GradientDiagnosis(_together(found), len(found))


def analyze_activations(
    model: torch.nn.Module, data: Any, *, loss: LossFunction | None = None, split: Any = None
) -> ActivationAnalysis:
    """The output of every module on the first batch of `data` (a loader or one batch): size, zeros, dead, saturated.

    The model is called with the inputs of the batch; with `loss`, as that calls it. Everything is restored.
    """
    source = BatchSource("analyze_activations", as_loader(data), "data")
    trial = Trial("analyze_activations", model, loss or _no_loss, split=split)
    with trial, source:
        batch = trial.ranks.together(lambda: source.take(1)[0])
        run: Callable[[], Any] = (lambda: trial.loss(batch)) if loss else (lambda: trial.forward(batch))
        return ActivationAnalysis(look_at_outputs(trial, run))


def _no_loss(model: torch.nn.Module, batch: Any) -> Any:
    raise AssertionError("activations need no loss")


def _together(found: Sequence[Inspection]) -> Inspection:
    """The mean over the batches, with the worst verdict of each parameter."""
    if len(found) == 1:
        return found[0]
    merged = []
    for looks in zip(*(inspection.gradients for inspection in found), strict=True):
        bad = next((each for each in looks if each.verdict not in FINE), None)
        mean = _mean(looks)
        merged.append(mean if bad is None else replace(mean, verdict=bad.verdict))
    loss = math.fsum(inspection.loss for inspection in found) / len(found)
    return replace(found[0], loss=loss, gradients=tuple(merged))


def _mean(looks: Sequence[GradientStatistics]) -> GradientStatistics:
    seen = [each for each in looks if each.has_gradient]
    if not seen:
        return looks[0]
    number = len(seen)
    return replace(
        seen[0],
        norm=sum(each.norm for each in seen) / number,
        mean=sum(each.mean for each in seen) / number,
        std=sum(each.std for each in seen) / number,
        lowest=min(each.lowest for each in seen),
        highest=max(each.highest for each in seen),
        zeros=sum(each.zeros for each in seen) / number,
        num_bad=sum(each.num_bad for each in seen),
    )
