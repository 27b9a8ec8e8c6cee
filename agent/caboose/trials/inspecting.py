"""`inspect`: every layer's gradient and output on one batch, with verdicts."""

import math
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from caboose.observe.activations import Activations
from caboose.observe.layers import plain_name
from caboose.observe.opaque import is_compiled, reason_for_blindness
from caboose.tensors.placement import Placements, own
from caboose.trials import orientation, plots
from caboose.trials.layer_statistics import GradientStatistics, OutputStatistics, judge_activation, judge_gradients
from caboose.trials.orientation import ModelFinding
from caboose.trials.trial import LossFunction, Trial
from caboose_plots import BAD, FAINT, LINE, MARK, Chart, Series

NAME_WIDTH = 32
FINE = ("ok", "frozen", "large", "small")
"""Verdicts that are no suspicion by themselves."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The gradients and outputs of one batch."""

    loss: float
    gradients: tuple[GradientStatistics, ...]
    """In the order of the model's parameters."""
    activations: tuple[OutputStatistics, ...]
    """In the order of execution; of this rank's own batch."""
    blindness: str
    """Why there are no activations; empty if there are."""

    @property
    def total_norm(self) -> float:
        """The gradient norm of the whole model."""
        return orientation.total_norm(self.gradients)

    @property
    def findings(self) -> tuple[ModelFinding, ...]:
        """What is unhealthy in all layers together, which no comparison between layers shows."""
        return orientation.findings(self.gradients, self.loss)

    def suspects(self) -> list[str]:
        """Problems, one line each: of the model, of gradients, of outputs; frozen parameters are not among them."""
        whole = [f"the model: {finding}" for finding in self.findings]
        looks = [f"{g.name}: gradient {g.verdict}" for g in self.gradients if g.verdict not in FINE]
        return [*whole, *looks, *(f"{a.name}: output {a.verdict}" for a in self.activations if a.verdict != "ok")]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "loss": self.loss,
            "total_norm": self.total_norm,
            "findings": [asdict(finding) for finding in self.findings],
            "gradients": [{**asdict(look), "rms": look.rms} for look in self.gradients],
            "activations": [asdict(look) for look in self.activations],
            "blindness": self.blindness,
        }

    def __str__(self) -> str:
        return "\n".join(
            [f"loss {self.loss:.6g}", "", self.gradient_table(), "", self.output_table(), "", *self._conclusions()]
        )

    def gradient_table(self) -> str:
        """Of every parameter, with the total and what is healthy."""
        columns = f"{'norm':>8} {'mean':>8} {'std':>7} {'min':>8} {'max':>8} {'zeros':>6}"
        lines = [f"{'gradient of':{NAME_WIDTH}} {columns}  verdict"]
        for look in self.gradients:
            numbers = " " * len(columns)
            if look.has_gradient:
                extremes = f"{look.lowest:8.1e} {look.highest:8.1e}"
                numbers = f"{look.norm:8.2e} {look.mean:8.1e} {look.std:7.1e} {extremes} {look.zeros:6.1%}"
            lines.append(f"{_short(look.name):{NAME_WIDTH}} {numbers}  {_marked(look.verdict)}")
        ratio = orientation.spread(self.gradients)
        between = "" if ratio is None else f"   largest over smallest weight: {ratio:,.3g}"
        return "\n".join([*lines, f"{'all of them':{NAME_WIDTH}} {self.total_norm:8.2e}{between}"])

    def output_table(self) -> str:
        """Of every module."""
        lines = [f"{'output of':{NAME_WIDTH}} {'std':>9} {'mean':>10} {'highest':>9} {'zeros':>6}  verdict"]
        if self.blindness:
            lines.append(f"not seen: {self.blindness}")
        for seen in self.activations:
            numbers = f"{seen.std:9.2e} {seen.mean:10.1e} {seen.highest:9.2e} {seen.zeros:6.1%}"
            lines.append(f"{_short(seen.name):{NAME_WIDTH}} {numbers}  {_marked(seen.verdict)}")
        return "\n".join(lines)

    def _conclusions(self) -> list[str]:
        lines = [orientation.TEXT]
        for finding in self.findings:
            lines += textwrap.wrap(f"! {finding}", 98, subsequent_indent="  ")
            lines += textwrap.wrap(f"  fix: {finding.fix}", 98, subsequent_indent="       ")
        return lines

    def plot(self, path: "str | Path | None" = None) -> Any:
        """The flow of the gradient through the layers; written to a file if a path is given (.png, .svg or .html)."""
        return plots.show(self.gradient_chart(), path)

    def gradient_chart(self) -> Chart:
        """What `plot` shows."""
        looks = [look for look in self.gradients if look.has_gradient]
        names = [look.name for look in looks]
        # A layer without a gradient has no place on a logarithmic axis: its name has no bar.
        bars = [
            Series(
                name,
                names,
                [_height(look.rms) if (look.verdict in FINE) is is_ok else None for look in looks],
                "bars",
                color,
            )
            for name, color, is_ok in (("root mean square", LINE, True), ("of a suspect", BAD, False))
            if is_ok or any(look.verdict not in FINE for look in looks)
        ]
        tops = [_height(max(abs(look.lowest), abs(look.highest))) for look in looks]
        series = [*bars, Series("largest element", names, tops, "dashes", MARK)]
        title, x = "Gradient flow", "parameter, from input to output"
        return Chart(title, x, "gradient", series, note=self._note(), is_y_log=True)

    def output_chart(self) -> Chart:
        """The size of each module's output, and the shares of dead and saturated units."""
        names = [seen.name for seen in self.activations]
        suspects = [seen.name for seen in self.activations if seen.verdict != "ok"]
        note = f"{len(suspects)} suspects: {', '.join(suspects[:3])}" if suspects else "no output stands out"
        series = [
            Series("standard deviation", names, [_height(seen.std) for seen in self.activations], "bars", LINE),
            Series("share of zeros", names, [_height(seen.zeros) for seen in self.activations], "dashes", FAINT),
            Series("dead units", names, [_height(seen.dead) for seen in self.activations], "dots", BAD),
            Series("saturated units", names, [_height(seen.saturated) for seen in self.activations], "dots", MARK),
        ]
        drawn = [each for each in series if any(value is not None for value in each.y)]
        return Chart("Outputs of the modules", "module, in order", "size, or share", drawn, note=note, is_y_log=True)

    def _note(self) -> str:
        suspects = self.suspects()
        return f"{len(suspects)} suspects: {', '.join(suspects[:3])}" if suspects else "no layer stands out"


def inspect(model: torch.nn.Module, loss_fn: LossFunction, batch: Any, *, split: Any = None) -> Inspection:
    """Runs one forward and backward of the batch, summarises every layer, and restores everything."""
    with Trial("inspect", model, loss_fn, split=split) as trial:
        return look(trial, batch)


def look(trial: Trial, batch: Any) -> Inspection:
    """The same within a trial; afterwards its gradients are those of the batch."""
    outputs = look_at_outputs(trial, lambda: trial.loss(batch))
    trial.repeat_noise()
    loss = trial.backward(batch)
    return replace(outputs, loss=loss, gradients=tuple(_gradients(trial)))


def look_at_outputs(trial: Trial, run: Callable[[], Any]) -> Inspection:
    """The outputs of every module while something runs; no loss and no gradients."""
    # A trial runs a compiled model eagerly.
    blindness = "" if is_compiled(trial.model) else reason_for_blindness(trial.model)
    return Inspection(math.nan, (), () if blindness else tuple(_activations(trial, run)), blindness)


def _activations(trial: Trial, run: Callable[[], Any]) -> list[OutputStatistics]:
    seen = Activations(trial.model, lambda _what, function: function)
    seen.arm(trial.model)
    try:
        with torch.no_grad():
            run()
    finally:
        seen.disarm()
    silent = seen.silent_fractions()
    order, arrays = seen.take()
    found = []
    for place, row in enumerate(order):
        number = {name: float(values[place]) for name, values in arrays.items() if values.dim() == 1}
        saturated = number["activation_saturated"]
        found.append(
            judge_activation(
                OutputStatistics(
                    name=seen.modules[row].name,
                    kind=seen.modules[row].kind,
                    mean=number["activation_mean"],
                    std=number["activation_std"],
                    highest=number["activation_max"],
                    zeros=number["activation_zero_fraction"],
                    saturated=saturated if saturated >= 0 else None,
                    dead=silent.get(row),
                )
            )
        )
    return found


@torch.no_grad()
def _gradients(trial: Trial) -> list[GradientStatistics]:
    """The complete gradient of each parameter, summed over the ranks where it is sharded."""
    placements = Placements(trial.model, trial.ranks.num)
    kinds = {id(p): type(m).__name__ for m in trial.model.modules() for p in m.parameters(recurse=False)}
    named = [(plain_name(name), p) for name, p in trial.model.named_parameters()]
    sums, lows, highs = [], [], []
    for _, parameter in named:
        replicas = placements.of(parameter).replicas if trial.is_sharded else 1
        gradient = None if parameter.grad is None else own(parameter.grad).detach()
        if gradient is not None and gradient.is_sparse:
            gradient = gradient.to_dense()
        if gradient is None or not gradient.numel():
            sums.append([float(gradient is not None), 0.0, 0.0, 0.0, 0.0])
            lows.append(float("inf"))
            highs.append(float("-inf"))
            continue
        values = gradient.double()
        parts = (values.sum(), values.square().sum(), (values == 0).sum(), (~torch.isfinite(values)).sum())
        sums.append([1.0, *(float(part) / replicas for part in parts)])
        lows.append(float(values.min()))
        highs.append(float(values.max()))
    if trial.is_sharded:
        sums = trial.ranks.total(torch.tensor(sums, dtype=torch.float64)).tolist()
        lows = trial.ranks.total(lows, dist.ReduceOp.MIN).tolist()
        highs = trial.ranks.total(highs, dist.ReduceOp.MAX).tolist()
    found = []
    for (name, parameter), (has, total, squares, zeros, bad), low, high in zip(named, sums, lows, highs, strict=True):
        count = max(1, parameter.numel())
        mean = total / count
        looked = GradientStatistics(name, kinds.get(id(parameter), ""), tuple(parameter.shape), parameter.requires_grad)
        if has:
            looked = GradientStatistics(
                looked.name,
                looked.kind,
                looked.shape,
                looked.is_trained,
                has_gradient=True,
                norm=squares**0.5 if squares >= 0 else float("nan"),
                mean=mean,
                std=max(0.0, squares / count - mean**2) ** 0.5,
                lowest=low,
                highest=high,
                zeros=zeros / count,
                num_bad=round(bad),
            )
        found.append(looked)
    return judge_gradients(found)


def _height(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else "..." + name[3 - NAME_WIDTH :]


def _marked(verdict: str) -> str:
    return verdict if verdict in FINE else f"! {verdict}"
